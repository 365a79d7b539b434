"""Groups of every mode, and the walks that the GPU kernels go beside the reference.

A walk is a ragged prefill, decode steps, a ragged chunk, going back to other tokens, and going on.
Nothing here needs more than NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicache.exporter import schemas
from tests.helpers import Call, Text, make_attributes, make_text, poisoned_state
from tests.plugins.aligned_text import aligned_attributes, make_alignment
from tests.plugins.comparison import Comparison, State
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.tolerances import ATTENTION_GPU, MASS_GPU

Step = tuple[list[int], list[int]]  # past and new tokens of both rows


@dataclass(frozen=True)
class Size:
    """How large groups and walks are.

    Attributes:
        given: attributes of the groups.
        segment_length: L, where keys are framed.
        subspace: attributes of groups in that mode.
        local: attributes of sliding windows.
        steps: of a walk, in order.
        capacity: C.
        retained: M.
    """

    given: Mapping[str, int]
    segment_length: int
    subspace: Mapping[str, Any]
    local: Mapping[str, int]
    steps: Sequence[Step]
    capacity: int
    retained: int

    @property
    def heads(self) -> dict[str, int]:
        """Attributes of groups in mode ``exact``."""
        names = ("head_size", "num_heads", "kv_num_heads")
        return {name: self.given[name] for name in names}


# Programs cost in an interpreter: as few tokens as leave codes in two tiles of 16. X is 6.
PREFILL, DECODE, CHUNK = ([0, 0], [26, 9]), ([26, 9], [1, 1]), ([27, 10], [5, 0])
BACK = ([28, 8], [1, 3])  # from 32 and 10: both rows go back
SMALL = Size(
    given={"window": 4, "sinks": 3, "ring_slots": 10, "head_size": 32, "num_heads": 4,
           "kv_num_heads": 2},
    segment_length=16,
    subspace={},
    local={"local_window_size": 12, "ring_slots": 20},
    steps=(PREFILL, DECODE, CHUNK, BACK),
    capacity=48,
    retained=4,
)  # fmt: skip

# What a model has; several segments, and several blocks of everything.
MIXED = (8, 32, 4, 64, 2, 64)
LARGE = Size(
    given={"window": 64, "sinks": 4, "ring_slots": 128, "head_size": 128, "num_heads": 8,
           "kv_num_heads": 2},
    segment_length=128,
    subspace={"key_bits": MIXED, "value_bits": MIXED},
    local={"local_window_size": 200, "ring_slots": 264},
    steps=(([0, 0], [570, 150]), ([570, 150], [1, 1]), ([571, 151], [37, 0]),
           ([580, 120], [1, 3]), ([581, 123], [1, 1])),
    capacity=640,
    retained=24,
)  # fmt: skip

Group = tuple[dict[str, Any], Sequence[State]]  # attributes, and tables of every layer


def subspace(size: Size = SMALL, **given: Any) -> Group:
    """Attributes and tables of a group in subspace mode."""
    base = {**size.given, "segment_length": size.segment_length, **size.subspace}
    attributes = subspace_attributes(**base | given)
    return attributes, make_tables(attributes, seed=1, dtype=np.float16)


def slerp(size: Size = SMALL, **given: Any) -> Group:
    """Attributes of a group in the paper's mode."""
    return make_attributes(**{**size.given, "mode": "slerp", **given}), ()


def aligned(size: Size = SMALL, **given: Any) -> Group:
    """Attributes and tables of a group in a common basis."""
    base = {**size.given, "segment_length": size.segment_length}
    attributes = aligned_attributes(**base | given)
    return attributes, make_alignment(attributes)


MODES: dict[str, Callable[[Size], Group]] = {
    "exact": lambda size: (make_attributes(**size.heads), ()),
    "sliding": lambda size: (make_attributes(**size.heads, **size.local), ()),
    "subspace": lambda size: subspace(size, group_size=2),
    "joint heads": lambda size: subspace(size, code_heads=1, rotary_interleaved=1),
    "slerp": lambda size: slerp(size, key_bits=16, value_bits=4, magnitude="upper"),
    "threshold": lambda size: slerp(size, retention="threshold", retention_threshold=0.7),
    "minmax": lambda size: slerp(
        size, retention="minmax", retention_gamma=0.3, retention_scope="any-head"
    ),
    "budget": lambda size: slerp(size, retention="budget", magnitude="blended"),
    "aligned": lambda size: aligned(size, key_bits=4),
    "deltas": lambda size: slerp(
        size,
        delta_bits=4,
        slerp_t=0.5,
        key_bits=4,
        value_bits=8,
        retention="threshold",
        retention_threshold=0.3,
    ),
    "aligned deltas": lambda size: aligned(
        size, delta_bits=2, slerp_t=0.5, key_bits=16, value_bits=4, magnitude="blended"
    ),
    "observing": lambda size: subspace(size, group_size=2, evicts=1, observes=3),
    "observing exact": lambda size: (make_attributes(**size.heads, evicts=1, observes=-1), ()),
}

# As well, with rows that evict between calls (``tests.plugins.evicting_walk``).
EVICTING: dict[str, Callable[[Size], Group]] = {
    "evicting exact": lambda size: (make_attributes(**size.heads, evicts=1), ()),
    "evicting subspace": lambda size: subspace(size, evicts=1, group_size=2),
    "evicting by attention": lambda size: aligned(size, evicts=1, observes=-1),
    "evicting budget": lambda size: slerp(size, evicts=1, retention="budget"),
    "evicting deltas": lambda size: aligned(
        size, evicts=1, delta_bits=4, slerp_t=0.5, key_bits=4, retention="threshold",
        retention_threshold=0.3,
    ),
}  # fmt: skip


def empty_state(attributes: dict[str, Any], size: Size, dtype: Any = np.float16) -> State:
    """Of two rows, poisoned; ``dtype`` is the model's."""
    kind = dtype if attributes["mode"] == "exact" else np.float16
    length = schemas.segment_length(attributes)
    segments = size.capacity // length + 2 if length else 1  # of a text that is a little longer
    return poisoned_state(attributes, 2, size.capacity, size.retained, kind, segments)


def walk_text(attributes: dict[str, Any], size: Size, dtype: Any = np.float16) -> Text:
    """A text for two rows."""
    return make_text(attributes, size.capacity, batch=2, dtype=dtype, noise=0.4)


def compare(group: Any) -> Comparison:
    """Kernels of a GPU beside the reference."""
    comparison = Comparison(group)
    comparison.tolerance = ATTENTION_GPU[np.dtype(group.dtype).name]
    if group.attributes["mode"] != "exact":
        comparison.mass_tolerance = MASS_GPU
    return comparison


def walk_calls(attributes: dict[str, Any], text: Text, steps: Sequence[Step]) -> list[Call]:
    """The calls of a walk; where one starts before the end of the last, the text is another."""
    capacity = text.query.shape[2]
    other = make_text(attributes, capacity, batch=2, dtype=text.query.dtype, seed=1, noise=0.8)
    calls = []
    ends = [0, 0]
    for past, new in steps:
        for row, (start, end) in enumerate(zip(past, ends, strict=True)):
            for name in ("query", "key", "value") if start < end else ():
                getattr(text, name)[:, row, start:] = getattr(other, name)[:, row, start:]
        calls.append(text.call(past, new, capacity=capacity))
        ends = [p + n for p, n in zip(past, new, strict=True)]
    return calls
