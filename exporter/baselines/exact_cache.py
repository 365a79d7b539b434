"""Access to the cache of an exact session.

Layers of full attention hold position p of the text in slot p; these are what codecs code. Layers
of sliding-window attention hold the last positions in a ring (p in slot p mod slots), which is
copied whole where a cache is kept, and is never coded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.errors import SessionError
from minicache.runtime.manifest import CAPACITY, Manifest, StateTensor
from minicache.runtime.session import Session

Array = npt.NDArray[Any]


def can_simulate(manifest: Manifest) -> bool:
    """Whether ``ExactCache`` takes an export: an exact one that holds something to code."""
    states = manifest.state
    return all(map(_is_exact, states)) and any(CAPACITY in state.shape for state in states)


def coded_layers(manifest: Manifest) -> list[int]:
    """Layers of an exact export that codes are for: those of full attention."""
    keys = [state for state in manifest.state if state.name == "exact_key"]
    return [state.group for state in keys if CAPACITY in state.shape]  # one layer is one group


def _is_exact(state: StateTensor) -> bool:
    exact = state.name in ("exact_key", "exact_value")
    return exact and state.dtype != "bfloat16"  # held as bits, which cannot be computed with


class ExactCache:
    """The key and value buffers of a session, ``[Hk, C, D]``: views that can be written.

    Args:
        session: of an export in ``exact`` mode, one row.

    Attributes:
        session: the session.
        keys: by layer of full attention, post-RoPE keys ``[Hk, C, D]`` of the model's type.
        values: likewise values.
        rings: keys and values of the other layers, ``[Hk, slots, D]``.

    Raises:
        SessionError: the session has several rows, codes, only sliding windows, or is bf16.
    """

    def __init__(self, session: Session) -> None:
        states = session.manifest.state
        if session.batch_size != 1:
            raise SessionError(
                f"cache codecs are simulated on one row, the session has {session.batch_size}"
            )
        if not can_simulate(session.manifest):
            other = [state for state in states if not _is_exact(state)]
            found = f"has {other[0].name!r} ({other[0].dtype})" if other else "has none"
            raise SessionError(
                "cache codecs are simulated on an export in exact mode, fp32 or fp16, with layers "
                f"of full attention; {str(session.folder)!r} {found}"
            )
        self.session = session
        # Not `cache_tensors`: those views cannot be written. The kernels read this memory.
        arrays = session._cache.arrays
        by_name: dict[str, list[Array]] = {"exact_key": [], "exact_value": []}
        self.rings: list[Array] = []
        for state in sorted(states, key=lambda state: state.group):
            kept = by_name[state.name] if CAPACITY in state.shape else self.rings
            kept.append(arrays[state.past][0, 0])
        self.keys, self.values = by_name["exact_key"], by_name["exact_value"]

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return int(self.session.lengths[0])

    def read(self, start: int, end: int) -> tuple[list[Array], list[Array]]:
        """Copies of the coded layers' keys and values ``[Hk, T, D]`` at [start, end)."""
        keys = [array[:, start:end].copy() for array in self.keys]
        return keys, [array[:, start:end].copy() for array in self.values]

    def write(self, keys: Sequence[Array], values: Sequence[Array], start: int) -> None:
        """Overwrites positions [start, start + T) with ``[Hk, T, D]`` by layer."""
        for arrays, layers in ((self.keys, keys), (self.values, values)):
            for array, layer in zip(arrays, layers, strict=True):
                # NaN and infinities of a broken codec would look like a bad codec's perplexity.
                if not np.isfinite(layer).all():
                    raise SessionError("the codec gives values that are not finite")
                array[:, start : start + layer.shape[1]] = layer

    def read_rings(self) -> list[Array]:
        """Copies of the rings, whatever they hold."""
        return [ring.copy() for ring in self.rings]

    def restore(
        self, keys: Sequence[Array], values: Sequence[Array], rings: Sequence[Array]
    ) -> None:
        """Brings back a whole cache, as ``read`` from 0 and ``read_rings`` gave it.

        Going back by ``Session.rewind`` would be limited to the rewind slack: later tokens have
        overwritten the rings. Here everything that the next call can read is written anew.
        """
        self.write(keys, values, 0)
        for ring, kept in zip(self.rings, rings, strict=True):
            ring[...] = kept
        self.session._restart(np.array([keys[0].shape[1]], np.int32))
