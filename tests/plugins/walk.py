"""Walks through texts that go back and on in another way, and the fresh runs that they equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from minicache.exporter import schemas
from minicache.plugins.reference import run_group, tile_to_row
from minicache.plugins.reference.retention import active_slots
from minicache.plugins.reference.state import Span, exact_slot
from tests.helpers import Call, Text, assert_close, make_text

Array = np.ndarray
State = dict[str, Array]
TOKENS, CAPACITY = 44, 48
# W is less than X: tokens are coded, then dropped.
SMALL = {"mode": "slerp", "window": 2, "sinks": 3, "ring_slots": 8}
POLICIES: dict[str, dict[str, Any]] = {
    "none": {},
    "threshold": {"retention": "threshold", "retention_threshold": 0.7},
    "minmax": {"retention": "minmax", "retention_gamma": 0.3},
    "budget": {"retention": "budget"},
}


class Group(Protocol):
    """What runs the nodes of a group call by call, and holds its state."""

    @property
    def state(self) -> State: ...

    def step(self, call: Call) -> list[Array]: ...


class ReferenceGroup:
    """The reference as such a group."""

    def __init__(
        self, attributes: dict[str, Any], state: State, tables: Sequence[State] = ()
    ) -> None:
        self.attributes, self.state, self.tables = attributes, state, tables

    def step(self, call: Call) -> list[Array]:
        """Runs one call; returns the attention of every layer and replaces ``state``."""
        outputs, self.state = run_group(
            self.attributes, self.state, *call.arguments, tables=self.tables
        )
        return outputs


@dataclass
class Row:
    """Where one batch row is, and the calls that a run without detours would have made."""

    calls: list[tuple[int, int]] = field(default_factory=list)
    furthest: int = 0

    @property
    def length(self) -> int:
        return sum(self.calls[-1]) if self.calls else 0

    def go_back(self, length: int) -> None:
        """Drops the tokens from ``length`` on; a call is cut where it brought some of them."""
        kept = [(past, min(new, length - past)) for past, new in self.calls if past < length]
        self.calls = kept
        self.furthest = self.furthest if length else 0

    def go_on(self, new: int) -> None:
        """Appends a call."""
        if new:
            self.calls.append((self.length, new))
            self.furthest = max(self.furthest, self.length)

    def places(self, slack: int, policy: str) -> list[int]:
        """Lengths to which the row may go back: the present one comes last."""
        floor = max(0, self.furthest - slack)
        places = list(range(floor, self.length + 1))
        if policy == "minmax":  # within a call, its other tokens stay decided with the dropped ones
            borders = {0, *(past for past, _ in self.calls), self.length}
            places = [place for place in places if place in borders]
        return places if floor == 0 else [0, *places]


def walk(
    data: st.DataObject, attributes: dict[str, Any], make: Callable[[int], Group], tolerance: float,
    dtype: Any = np.float32, change: Callable[[Text], Text] = lambda text: text,
) -> None:  # fmt: skip
    """Goes back by up to X tokens and on with other ones, again and again, in two ragged rows.

    Then each row goes on as one that never went back does: the outputs are the same, and so is
    all of the state that a later call may read.

    Args:
        data: chooses the calls.
        attributes: of the group.
        make: an empty group for a number of rows.
        tolerance: of the outputs.
        dtype: of the text.
        change: what to make of each random text, position by position.
    """
    slack = attributes["ring_slots"] - attributes["window"]
    # Ever less similar layers: what is dropped widens the range, and evicts what was retained.
    texts = [
        change(
            make_text(attributes, TOKENS, batch=2, dtype=dtype, seed=seed, noise=0.1 + 0.2 * seed)
        )
        for seed in range(8)
    ]
    text, rows, group = texts[0], [Row(), Row()], make(2)
    for number in range(1, data.draw(st.integers(2, 7), "calls")):
        for index, row in enumerate(rows):
            place = data.draw(st.sampled_from(row.places(slack, attributes["retention"])), "to")
            if place < row.length:
                row.go_back(place)
                for name in ("query", "key", "value"):
                    other = getattr(texts[number], name)[:, index, place:]
                    getattr(text, name)[:, index, place:] = other
        past = [row.length for row in rows]
        most = 24 if number == 1 else data.draw(st.sampled_from([1, 1, slack, 12]), "most")
        new = [data.draw(st.integers(0, min(most, TOKENS - 4 - p)), "new") for p in past]
        group.step(text.call(past, new, slots=max(1, *new)))
        for row, count in zip(rows, new, strict=True):
            row.go_on(count)
    fresh = [make(1) for _ in rows]
    mine = [Text(*(x[:, i : i + 1] for x in (text.query, text.key, text.value))) for i in (0, 1)]
    for row, alone, words in zip(rows, fresh, mine, strict=True):
        for past_, new_ in row.calls:
            alone.step(words.call([past_], [new_]))
    for new_ in (1, 2, 1):
        past = [row.length for row in rows]
        outputs = np.stack(group.step(text.call(past, [new_, new_])))
        for index, row in enumerate(rows):
            expected = np.stack(fresh[index].step(mine[index].call([past[index]], [new_])))
            assert_close(outputs[:, index : index + 1], expected, tolerance, f"row {index}")
            row.go_on(new_)
            states = ({n: a[i] for n, a in s.items()} for s, i in (
                (group.state, index), (fresh[index].state, 0)))  # fmt: skip
            assert_same_reads(attributes, *states, row)


def assert_same_reads(attributes: dict[str, Any], a: State, b: State, row: Row) -> None:
    """Whether two states of a row are the same where a later call may read them, bit by bit."""
    sinks, window, ring = (attributes[name] for name in ("sinks", "window", "ring_slots"))
    end = Span(0, row.length, sinks, window).encoded[1]
    positions = np.arange(max(sinks, row.furthest - ring), row.length)
    positions = np.concatenate([np.arange(min(sinks, row.length)), positions])
    slots = exact_slot(attributes, {}, 0, positions)
    for kind in ("key", "value"):
        pairs = [[x[f"exact_{kind}"][:, :, slots] for x in (a, b)]]
        pairs.append([x[f"{kind}_magnitude"][:, sinks:end].view(np.uint16) for x in (a, b)])
        for name in ("code", "delta")[: 2 if schemas.delta_code(attributes) else 1]:
            codes = [x[f"{kind}_{name}"] for x in (a, b)]
            if attributes["code_layout"] == "tile":
                codes = [tile_to_row(code, kind) for code in codes]
            pairs.append([code[:, sinks:end] for code in codes])
        if schemas.delta_code(attributes):
            ratios = [x[f"{kind}_delta_ratio"] for x in (a, b)]
            pairs.append([ratio[:, sinks:end].view(np.uint16) for ratio in ratios])
        for pair in pairs:
            np.testing.assert_array_equal(*pair, kind)
    if "retained_position" not in a:
        return
    oldest = Span(0, max(0, row.furthest - (ring - window)), sinks, window).encoded[1]
    for c in range(max(sinks, oldest), end + 1):
        for one, other in zip(_read_at(attributes, a, c), _read_at(attributes, b, c), strict=True):
            np.testing.assert_array_equal(one, other, f"the retained tokens of [{sinks}, {c})")


def _read_at(attributes: dict[str, Any], state: State, c: int) -> tuple[Array, ...]:
    """Positions and contents of the active tokens where the codes end at ``c``, and the range."""
    position, similarity = state["retained_position"], state["retained_similarity"]
    most = max(0, position.size - schemas.retained_extra(attributes))
    coded = attributes["sinks"], c
    at = active_slots(position, similarity, coded, attributes["retention"], most)
    ranges = state["similarity_range"]
    extent = ranges[(c - coded[0]) % len(ranges)] if c > coded[0] else np.zeros(2)
    vectors = (state[f"retained_{kind}"][:, :, at] for kind in ("key", "value"))
    return position[at], similarity[at], extent, *vectors
