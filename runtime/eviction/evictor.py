"""When rows of a session evict, and of which tokens a policy may choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.cache import Cache, round_capacity
from minicache.runtime.errors import CapacityError, SessionError
from minicache.runtime.eviction.choose import BLOCK, choose_evicted
from minicache.runtime.eviction.compact import compact_row, retained_slots, segments_of
from minicache.runtime.eviction.entry import EvictionEntry
from minicache.runtime.eviction.policy import HeldTokens, Policy
from minicache.runtime.manifest import Manifest
from minicache.runtime.retention import extra_slots

if TYPE_CHECKING:
    from minicache.runtime.eviction.slot_move import SlotMove
    from minicache.runtime.model import Model

# Beyond the budget, where whole blocks do not reach it: a rest of the first segment, which begins
# with the sinks, and one of the last, which is not complete.
RESTS = 2 * BLOCK


def least_slots(policy: Policy, call: int) -> int:
    """Slots per row with which calls of ``call`` new tokens always find room."""
    return round_capacity(policy.budget + max(call, policy.spare or 0) + RESTS)


class Evictor:
    """Evicts tokens of the rows of one session.

    Attributes:
        policy: what chooses.

    Args:
        manifest: of a folder that was exported with ``--evict``.
        cache: the session's buffers. Of those that lie on a device it brings to the host what a
            choice needs, when it must choose; nobody else changes ``evicted``, which is not asked
            back.

    Raises:
        PackageError: the manifest's entry is damaged.
        SessionError: tokens that may not be evicted exceed the budget.
    """

    def __init__(self, manifest: Manifest, cache: Cache) -> None:
        entry = EvictionEntry.from_dict(manifest.eviction)
        self.policy = entry.policy
        self._tiled, self._lengths = entry.tiled, entry.segment_lengths
        self._cache = cache
        self._slack, self._window = manifest.rewind_slack, manifest.window
        self._groups = {g: cache.group(g) for g in cache.groups if "evicted" in cache.group(g)}
        self._pasts = {(state.group, state.name): past for past, state in cache.states.items()}
        self._keeps_retained = {
            number
            for number, group in self._groups.items()
            if "retained_position" in group and extra_slots(manifest, number)
        }
        for number in self._keeps_retained:
            self._check_side_buffer(number)

    def _check_side_buffer(self, number: int) -> None:
        group = self._groups[number]
        kept = group["retained_position"].shape[1]
        stay = group["exact_key"].shape[3] + RESTS + kept
        if self.policy.budget < stay:
            raise SessionError(
                f"{self.policy.text} keeps {self.policy.budget} tokens, but {kept} in the side "
                f"buffer, sinks, window and rewind slack stay, {stay} in all; export with a larger "
                "budget or a smaller --retention-capacity"
            )

    @property
    def longest_call(self) -> int:
        """New tokens per row for which a call always finds room; 1 or more."""
        return max(self._cache.capacity - self.policy.budget - RESTS, 1)

    def evicted(self, row: int) -> int:
        """Tokens that are evicted from a row: in the group with the fewest."""
        return min((int(group["evicted"][row, -1]) for group in self._groups.values()), default=0)

    def make_room(
        self,
        model: Model,
        rows: slice,
        lengths: npt.NDArray[np.int32],
        new: npt.NDArray[np.integer],
    ) -> None:
        """Evicts what must go before a call.

        Args:
            model: whose state the cache is.
            rows: of the call.
            lengths: [n] tokens that they hold, evicted ones included.
            new: [n] tokens that the call brings.

        Raises:
            CapacityError: a call brings more tokens than there is room for; nothing has changed.
            SessionError: the device refused a copy.
        """
        capacity, budget = self._cache.capacity, self.policy.budget
        limit = capacity if self.policy.spare is None else min(capacity, budget + self.policy.spare)
        over = []
        for row, length, count in zip(range(rows.start, rows.stop), lengths, new, strict=True):
            for number, group in self._groups.items():
                held = int(length) - int(group["evicted"][row, -1])
                if held + count > capacity and count > self.longest_call:
                    raise CapacityError(
                        f"row {row} keeps up to {budget} tokens in {capacity} slots, {count} new "
                        f"ones in one call do not fit; give at most {self.longest_call} per call, "
                        "or open the session with more cache_tokens"
                    )
                if count and held + count > limit:
                    wanted = held - min(budget, capacity - int(count))
                    over.append((row, number, int(length), wanted))
        for row, number, length, wanted in over:
            self._evict(model, row, number, length, wanted)

    def cuts(self, lengths: npt.NDArray[np.integer]) -> set[int]:
        """Where the ends of prompts begin whose queries are observed; a call must end there.

        Args:
            lengths: [n] tokens of the prompts.
        """
        if self.policy.spare is not None:
            return set()
        begins = lengths - self.policy.observes
        return {int(begin) for begin in begins[begins > 0]}

    def before_part(
        self,
        model: Model,
        rows: slice,
        part: npt.NDArray[np.integer],
        left: npt.NDArray[np.integer],
    ) -> None:
        """Before a call with a part of a prompt: only the queries of its end count.

        Args:
            model: whose state the cache is.
            rows: of the call.
            part: [n] tokens of the prompts that the call brings.
            left: [n] tokens of them that are not read yet, those of the call included.
        """
        if self.policy.spare is not None:
            return
        mass = [past for g in self._groups for past in self._named(g, "attention_mass")]
        begins = rows.start + np.flatnonzero((left == self.policy.observes) & (part > 0))
        for row in begins.tolist():
            for past in mass:
                self._cache.arrays[past][row] = 0
            model.push(slice(row, row + 1), mass)

    def after_part(
        self,
        model: Model,
        rows: slice,
        part: npt.NDArray[np.integer],
        left: npt.NDArray[np.integer],
        lengths: npt.NDArray[np.int32],
    ) -> None:
        """After the call: cuts rows whose prompt has ended back, and gives their memory back.

        Args:
            model: as ``before_part``.
            rows: likewise.
            part: likewise.
            left: likewise.
            lengths: [n] tokens that the rows hold now, evicted ones included.
        """
        if self.policy.spare is not None:
            return
        for index in np.flatnonzero((left == part) & (part > 0)):
            row, length = rows.start + int(index), int(lengths[index])
            for number, group in self._groups.items():
                held = length - int(group["evicted"][row, -1])
                if held > self.policy.budget:
                    self._evict(model, row, number, length, held - self.policy.budget)
                    left_over = length - int(group["evicted"][row, -1])
                    model.release_slots(number, row, round_capacity(left_over))

    def _evict(self, model: Model, row: int, number: int, length: int, wanted: int) -> None:
        """Evicts from one row of one group.

        Tokens in the side buffer of ``budget`` retention stay: going back must find there whatever
        a run without detour would have.
        """
        group, segment_length = self._groups[number], self._lengths.get(number, 0)
        model.pull(slice(row, row + 1), self._named(number, "attention_mass", "retained_position"))
        table = group["evicted"][row]
        held = length - int(table[-1])
        mass = group["attention_mass"][row, :held] if "attention_mass" in group else None
        may_go = self._may_go(group, held)
        if number in self._keeps_retained:
            slots = retained_slots(group["retained_position"][row], table, segment_length)
            may_go[slots[slots < held]] = False
        gone = choose_evicted(
            self.policy.worth(HeldTokens(held, mass)),
            may_go,
            segments_of(table, segment_length, held),
            wanted,
        )
        if not gone.any():
            return

        def move(name: str, slots: SlotMove) -> None:
            model.move_slots(self._pasts[number, name], row, slots)

        compact_row(group, row, gone, length=segment_length, tiled=self._tiled, move=move)
        model.push(slice(row, row + 1), self._named(number, "evicted", "retained_position"))

    def _named(self, number: int, *names: str) -> list[str]:
        """Those states of a group that it has, by graph input name."""
        return [self._pasts[number, name] for name in names if (number, name) in self._pasts]

    def _may_go(self, group: dict[str, npt.NDArray[Any]], held: int) -> npt.NDArray[np.bool_]:
        """Whether each token [held] may go: no sink, and none that going back makes new again."""
        coded = "key_code" in group
        window = self._window if coded else 0
        sinks = group["exact_key"].shape[3] - self._window - self._slack if coded else 0
        may_go = np.zeros(held, bool)
        # Nothing is evicted behind c0 - X: there, a slot is a position less all that was evicted.
        end = held - window - self._slack
        may_go[max(sinks, self.policy.sinks) : max(end, 0)] = True
        return may_go
