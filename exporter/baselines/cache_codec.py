"""What a simulated cache codec is.

Layers are those of full attention: the others' rings stay as they are with every codec, ours and
others', so that all are judged on the same layers.

Letters: L layers, Hk kv heads, T tokens, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]


class CacheCodec(Protocol):
    """Replaces cached keys and values by what would be read back of their codes.

    A token is coded once, when it leaves the exact part of the cache: at the latest position that
    ``coded_end`` names after a call.
    """

    @property
    def name(self) -> str:
        """For tables."""
        ...

    @property
    def sinks(self) -> int:
        """First tokens of a text, which stay exact."""
        ...

    @property
    def window(self) -> int:
        """Most recent tokens, which are exact still."""
        ...

    @property
    def bits_per_element(self) -> float:
        """Bits per key or value element of coded tokens; scales per token or group included."""
        ...

    def coded_end(self, past: int) -> int:
        """Of ``past`` cached tokens, those in [sinks, coded_end) are coded.

        Never smaller than ``sinks``, even where fewer tokens are cached.
        """
        ...

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Codes tokens and reads them back.

        Args:
            keys_LHkTD: by layer, post-RoPE keys ``[Hk, T, D]`` of positions [start, start + T).
            values_LHkTD: likewise values.
            start: position of the first token; earlier ones are coded already.

        Returns:
            New keys and values by layer, fp32 ``[Hk, T, D]``; the arguments stay as they are.
        """
        ...

    def cache_bytes(self, context: int) -> int:
        """Bytes that ``context`` tokens of one row occupy: codes, scales, exact tokens in fp16.

        Without the rings of sliding-window layers (``CacheShape.ring_bytes``).
        """
        ...


def check_exact_part(sinks: int, window: int) -> None:
    """Checks a codec's ``sinks`` and ``window``.

    Raises:
        PlanError: one is negative.
    """
    if sinks < 0 or window < 0:
        raise PlanError(f"sinks is {sinks} and window {window}; give numbers of tokens, 0 or more")


def end_of_coded(past: int, sinks: int, window: int, block: int = 1) -> int:
    """End of the coded tokens when only whole blocks of ``block`` tokens are coded."""
    return sinks + max(past - window - sinks, 0) // block * block


def check_whole_blocks(method: str, block: int, tokens: int, start: int, sinks: int) -> None:
    """Checks that tokens to be coded are whole blocks, counted from the first coded position.

    Args:
        method: for the message.
        block: tokens of a block.
        tokens: to be coded.
        start: position of the first of them.
        sinks: first tokens, which are not coded.

    Raises:
        PlanError: they are not.
    """
    if tokens % block or (start - sinks) % block:
        raise PlanError(
            f"{method} codes whole groups of {block} tokens, not {tokens} from position {start}"
        )
