"""A walk of two ragged rows that evict between calls, seeded, with poison in all free slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from minicache.plugins.reference.state import Span
from tests.helpers import Call, Text, poison
from tests.plugins.evicting_row import SLACK, EvictingRow

Array = np.ndarray
State = dict[str, Array]
# Past and new tokens of both rows. Before each call but the first, rows evict; from the third on
# they have gone back by up to X = 5 tokens, and on with the same text.
CALLS = (([0, 0], [90, 45]), ([90, 45], [1, 1]), ([88, 41], [12, 0]), ([97, 41], [3, 30]))

# How many blocks go of a segment of which so many can, by a name for the test.
CHOICES: dict[str, Callable[[np.random.Generator], Callable[[int], int]]] = {
    "nothing": lambda _: lambda _most: 0,
    "all that may": lambda _: lambda most: most,
    "some": lambda rng: lambda most: int(rng.integers(0, most + 1)),
}


class EvictingWalk:
    """Makes calls, and evicts from the state before them.

    Args:
        attributes: of the group.
        text: of two rows, 112 tokens at least.
        choice: of ``CHOICES``.
        seed: of what goes.
        slack: X.
    """

    def __init__(
        self, attributes: dict[str, Any], text: Text, choice: str, seed: int, slack: int = SLACK
    ) -> None:
        self.attributes, self.text = attributes, text
        self.rng = np.random.default_rng(seed)
        self.blocks = CHOICES[choice](self.rng)
        self.rows = [EvictingRow(attributes, slack) for _ in range(2)]

    def run(
        self,
        group: Any,
        step: Callable[[Call], Any],
        calls: Sequence[tuple[list[int], list[int]]] = CALLS,
        put: Callable[[State], None] = lambda _: None,
    ) -> None:
        """Makes calls by ``step``.

        Args:
            group: whose ``state`` is changed in place, or is a copy.
            step: runs a call.
            calls: past and new tokens of both rows.
            put: takes a changed copy of the state, where it is one.
        """
        furthest = [0, 0]
        for number, (past, new) in enumerate(calls):
            held = SimpleNamespace(state=group.state)
            for index, row in enumerate(self.rows):
                row.set_length(furthest[index])  # evicts before it goes back
                if number:
                    row.evict(held, index, row.choose(held.state, index, self.blocks, self.rng))
                row.set_length(past[index])
                self.poison(held.state, index, past[index])
            put(held.state)
            step(self.text.call(past, new, slots=max(1, *new)))
            for index, row in enumerate(self.rows):
                row.set_length(past[index] + new[index])
                furthest[index] = row.length

    def poison(self, state: State, row: int, past: int) -> None:
        """Spoils all slots that hold nothing."""
        a = self.attributes
        gone, first = int(state["evicted"][row, -1]), 0
        if a["mode"] != "exact":
            first, past = a["sinks"], Span(past, past, a["sinks"], a["window"]).c0
        for name, array in state.items():
            kind, _, part = name.partition("_")
            slots = array[row]
            if part in ("code", "magnitude", "delta", "delta_ratio"):
                free = slots[:, max(past - gone, 0) :], slots[:, :first]
            elif kind == "exact" and a["mode"] == "exact":
                free = (slots[:, :, max(past - gone, 0) :],)
            else:
                continue
            for memory in free:
                poison({name: memory})
