"""The shapes that a TensorRT engine is built for: one profile for decode steps, one for prefill.

Letters: B batch, S new tokens of a call, K positions with logits, C capacity.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicache.exporter.schemas import CAPACITY_MULTIPLE
from minicache.runtime.cache import resolve_shape, round_capacity
from minicache.runtime.manifest import Manifest

DECODE, PREFILL = "decode", "prefill"
PREFILL_TOKENS = 512  # of one call; longer texts are read in chunks

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """The largest sizes of a call; the smallest are one row, token and position, and 16 slots.

    Attributes:
        name: ``decode`` or ``prefill``.
        batch: largest B.
        tokens: largest S.
        positions: largest K.
        capacity: largest C, a multiple of 16.
    """

    name: str
    batch: int
    tokens: int
    positions: int
    capacity: int

    def covers(self, batch: int, tokens: int, positions: int, capacity: int) -> bool:
        """Whether a call of these sizes can run in this profile."""
        return (
            batch <= self.batch
            and tokens <= self.tokens
            and positions <= self.positions
            and capacity <= self.capacity
        )

    def shapes(self, manifest: Manifest) -> dict[str, tuple[Shape, Shape, Shape]]:
        """Smallest, most likely and largest shape of each graph input.

        TensorRT tunes for the middle one; it is the largest, where time is spent.

        Raises:
            PackageError: a state's shape names a symbol that the manifest does not define.
        """
        least = Profile(self.name, 1, 1, 1, CAPACITY_MULTIPLE)._inputs(manifest)
        most = self._inputs(manifest)
        return {name: (least[name], most[name], most[name]) for name in most}

    def _inputs(self, manifest: Manifest) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {
            "input_ids": (self.batch, self.tokens),
            "past_lengths": (self.batch,),
            "total_lengths": (self.batch,),
            "logit_positions": (self.batch, self.positions),
        }
        for state in manifest.state:
            shapes[state.past] = resolve_shape(state, manifest, self.batch, self.capacity)
        return shapes


def engine_profiles(
    manifest: Manifest, batch: int = 1, tokens: int = PREFILL_TOKENS
) -> tuple[Profile, Profile]:
    """The profiles of an engine in the order in which it is given them: decode, prefill.

    Args:
        manifest: of the exported folder.
        batch: largest B.
        tokens: largest S of a prefill call.
    """
    capacity = round_capacity(manifest.max_sequence_length)
    longest = min(tokens, manifest.max_sequence_length)
    return (
        Profile(DECODE, batch, 1, 1, capacity),
        Profile(PREFILL, batch, longest, longest, capacity),
    )
