"""Access to the cache of an exact session, in which position p of the text lies in slot p."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.errors import SessionError
from minicache.runtime.manifest import CAPACITY, Manifest, StateTensor
from minicache.runtime.session import Session

Array = npt.NDArray[Any]


def can_simulate(manifest: Manifest) -> bool:
    """Whether an exact export holds every token in its own slot, as ``ExactCache`` needs it."""
    return all(map(_in_own_slots, manifest.state))


def _in_own_slots(state: StateTensor) -> bool:
    exact = state.name in ("exact_key", "exact_value") and CAPACITY in state.shape
    return exact and state.dtype != "bfloat16"  # held as bits, which cannot be computed with


class ExactCache:
    """The key and value buffers of a session by layer, ``[Hk, C, D]``: views that can be written.

    Args:
        session: of an export in ``exact`` mode, one row.

    Attributes:
        session: the session.
        keys: by layer, post-RoPE keys ``[Hk, C, D]`` of the model's type.
        values: likewise values.

    Raises:
        SessionError: the session has several rows, codes, sliding windows, or is bf16.
    """

    def __init__(self, session: Session) -> None:
        states = session.manifest.state
        if session.batch_size != 1:
            raise SessionError(
                f"cache codecs are simulated on one row, the session has {session.batch_size}"
            )
        other = [state for state in states if not _in_own_slots(state)]
        if other or not states:
            found = f"has {other[0].name!r} ({other[0].dtype})" if other else "has no cache"
            raise SessionError(
                "cache codecs are simulated on an export in exact mode, fp32 or fp16 and without "
                f"sliding windows; {str(session.folder)!r} {found}"
            )
        self.session = session
        # Not `cache_tensors`: those views cannot be written. The kernels read this memory.
        arrays = session._cache.arrays
        by_name: dict[str, list[Array]] = {"exact_key": [], "exact_value": []}
        for state in sorted(states, key=lambda state: state.group):
            by_name[state.name].append(arrays[state.past][0, 0])
        self.keys, self.values = by_name["exact_key"], by_name["exact_value"]

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return int(self.session.lengths[0])

    def read(self, start: int, end: int) -> tuple[list[Array], list[Array]]:
        """Copies of the keys and values ``[Hk, T, D]`` by layer at positions [start, end)."""
        keys = [array[:, start:end].copy() for array in self.keys]
        return keys, [array[:, start:end].copy() for array in self.values]

    def write(self, keys: list[Array], values: list[Array], start: int) -> None:
        """Overwrites positions [start, start + T) with ``[Hk, T, D]`` by layer."""
        for arrays, layers in ((self.keys, keys), (self.values, values)):
            for array, layer in zip(arrays, layers, strict=True):
                # NaN and infinities of a broken codec would look like a bad codec's perplexity.
                if not np.isfinite(layer).all():
                    raise SessionError("the codec gives values that are not finite")
                array[:, start : start + layer.shape[1]] = layer
