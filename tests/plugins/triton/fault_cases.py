"""Small walks that find faults of the kernels; see ``seeded_faults``.

Each compares with the reference, and raises AssertionError where kernels differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minicache.plugins.reference import run_group
from minicache.runtime.eviction.compact import compact_row
from tests.helpers import Text, make_attributes, make_text, poisoned_state
from tests.plugins.aligned_text import aligned_attributes, make_alignment
from tests.plugins.evicting_walk import EvictingWalk
from tests.plugins.gpu.gpu_group import GpuGroup
from tests.plugins.gpu.walk_modes import (
    DECODE,
    PREFILL,
    aligned,
    compare,
    empty_state,
    slerp,
    walk_calls,
    walk_text,
)
from tests.plugins.gpu.walk_modes import SMALL as WALK
from tests.plugins.gpu.walk_modes import subspace as subspace_group
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.plugins.triton.attend_call import Blocks
from tests.plugins.triton.attend_walk import AttendWalk, compare_walk
from tests.plugins.triton.encode_walk import EncodeWalk

SMALL: dict[str, Any] = {"window": 5, "sinks": 3, "ring_slots": 9, "segment_length": 16}
ORDERS = {"key_head_permutation": (0, 1, 1, 0), "value_head_permutation": (1, 0, 0, 1)}
EVICTS: dict[str, Any] = {"evicts": 1, "window": 3, "sinks": 2, "ring_slots": 8}
TWO_HEADS: dict[str, Any] = {"num_heads": 2, "kv_num_heads": 2}


def even_text(attributes: dict[str, Any], tokens: int, **given: Any) -> Text:
    """A text whose queries are short, so that every token that is visible has some weight."""
    text = make_text(attributes, tokens, dtype=np.float16, **given)
    text.query *= np.float16(0.2)
    return text


def exact() -> None:
    """Several tiles in two splits, then new tokens that see each other."""
    attributes = make_attributes()
    text = even_text(attributes, 72, batch=2)
    compare_walk(attributes, text, [((0, 0), (70, 20)), ((70, 20), (2, 1))], capacity=80, skip=1)


def sliding() -> None:
    """A ring of slots."""
    attributes = make_attributes(local_window_size=20, ring_slots=30)
    text = even_text(attributes, 48)
    compare_walk(attributes, text, [((0,), (44,)), ((44,), (4,))], capacity=48, skip=1)


def subspace() -> None:
    """Three segments; two heads whose value codes are not those of their key codes."""
    variant = SMALL | TWO_HEADS | ORDERS | {"code_heads": 2, "group_size": 2}
    bits = {"key_bits": (8, 16, 4, 16), "value_bits": (4, 32)}
    attributes = subspace_attributes(**variant | bits)
    tables = make_tables(attributes, dtype=np.float16)
    text = even_text(attributes, 96)
    calls = [((0,), (92,)), ((92,), (1,))]
    compare_walk(attributes, text, calls, tables=tables, capacity=96, skip=1, layers=[1])


def retained() -> None:
    """Marked codes, and each layer's own magnitudes."""
    policy = {"mode": "slerp", "retention": "threshold", "retention_threshold": 0.7}
    attributes = make_attributes(**SMALL | policy | {"segment_length": 0})
    text = even_text(attributes, 48)
    calls = [((0,), (44,)), ((44,), (1,))]
    compare_walk(attributes, text, calls, capacity=48, retained=12, skip=1, layers=[1])


def codes() -> None:
    """Merged directions of 4 and 16 bits, heads matched, and lengths beyond fp16."""
    variant = SMALL | TWO_HEADS | ORDERS | {"segment_length": 0, "mode": "slerp"}
    attributes = make_attributes(**variant | {"key_bits": 4, "value_bits": 16})
    text = make_text(attributes, 24, dtype=np.float16)
    for array in (text.key, text.value):
        array[:, :, 6] = np.sign(array[:, :, 6]) * np.float16(60000)
    encode(attributes, text, [((0,), (16,)), ((16,), (3,))])


def pair() -> None:
    """Deltas of 4 bits beside directions of 8, as the plan launches them."""
    attributes, _ = slerp(delta_bits=4, slerp_t=0.5)
    text = walk_text(attributes, WALK)
    text.query *= np.float16(0.2)
    comparison = compare(GpuGroup(attributes, empty_state(attributes, WALK)))
    for call in walk_calls(attributes, text, [PREFILL, DECODE]):
        comparison.step(call)


def observed() -> None:
    """Masses of a call of several launches, then of a decode step, beside a sink."""
    policy = {"retention": "threshold", "retention_threshold": 0.7}
    attributes, _ = slerp(evicts=1, observes=4, has_sink=1, **policy)
    text = walk_text(attributes, WALK)
    text.query *= np.float16(0.2)
    options = {"scratch_bytes": 30_000}
    comparison = compare(GpuGroup(attributes, empty_state(attributes, WALK), options=options))
    for call in walk_calls(attributes, text, [PREFILL, DECODE]):
        comparison.step(call)


def observed_evicting() -> None:
    """Masses of a decode step of a row whose segments have lost tokens."""
    attributes, tables = subspace_group(window=3, segment_length=32, evicts=1, observes=-1)
    state = poisoned_state(attributes, 1, 112, segments=4)
    group = GpuGroup(attributes, state, tables=tables)
    text = even_text(attributes, 112)
    past = text.call([0], [96])
    _, wanted = run_group(attributes, state, *past.arguments, tables=tables)
    for name, array in wanted.items():
        group.state[name][...] = array
    compact_row(group.state, 0, np.isin(np.arange(96) // 16, [1, 2, 4]), length=32, tiled=False)
    compare(group).step(text.call([96], [1], slots=1))


def joint() -> None:
    """Components of 8, 4 and 2 bits, some beyond their grids, in two segments."""
    attributes = subspace_attributes(**SMALL | {"group_size": 2, "segment_length": 8})
    text = make_text(attributes, 24, dtype=np.float16)
    encode(attributes, text, [((0,), (16,)), ((16,), (1,))], make_tables(attributes))


def retention() -> None:
    """Going back, and on with another text."""
    policy = {"retention": "threshold", "retention_threshold": 0.75}
    retain(policy, [(0, 0, 24), (0, 24, 4), (1, 22, 1), (1, 23, 6)], [0.5, 0.5])


def eviction() -> None:
    """Tokens that are less alike throw others out of the side buffer: their marks go."""
    retain({"retention": "budget"}, [(0, 0, 20), (1, 20, 8)], [0.1, 2.0])


def retain(policy: dict[str, Any], calls: Any, noises: list[float]) -> None:
    """Compares the state after calls, each with tokens of one of several texts."""
    attributes = make_attributes(
        mode="slerp", window=2, sinks=3, ring_slots=8, head_size=8, **policy
    )
    texts = [
        make_text(attributes, 36, dtype=np.float16, seed=seed, noise=noise)
        for seed, noise in enumerate(noises)
    ]
    walk = EncodeWalk(attributes, batch=1, retained=4)
    for text, past, new in calls:
        walk.step(texts[text].call([past], [new]))
    walk.finish()


def encode(attributes: dict[str, Any], text: Any, calls: Any, tables: Any = ()) -> None:
    """Compares the state after every call."""
    walk = EncodeWalk(attributes, batch=1, tables=tables)
    for past, new in calls:
        walk.step(text.call(past, new))
    walk.finish()


def evicted_exact() -> None:
    """Exact tokens of which many went: they are read from, and written to, other slots."""
    attributes = make_attributes(evicts=1)
    evict(attributes, AttendWalk(attributes, poisoned_state(attributes, 2, 112)))
    evict(attributes, EncodeWalk(attributes, capacity=112))


def evicted_codes() -> None:
    """Segments of 32 tokens, cut to 16 or none, in tiles of 32."""
    variant = EVICTS | {"segment_length": 32, "group_size": 2}
    attributes = subspace_attributes(**variant | {"key_bits": (8, 16), "value_bits": (4, 32)})
    tables, blocks = make_tables(attributes, dtype=np.float16), Blocks(codes=32, splits=2)
    state = poisoned_state(attributes, 2, 112, segments=5)
    evict(attributes, AttendWalk(attributes, state, tables=tables, blocks=blocks, layers=[1]))


def evicted_writes() -> None:
    """A side buffer, and codes of a common basis that come to other slots."""
    variant = EVICTS | {"segment_length": 32, "retention": "budget"}
    attributes = aligned_attributes(**variant)
    tables = make_alignment(attributes)
    walk = EncodeWalk(attributes, tables=tables, capacity=112, retained=6, segments=5)
    evict(attributes, walk)


def evicted_joint() -> None:
    """Joint codes, written to other slots."""
    attributes = subspace_attributes(**EVICTS | {"segment_length": 32, "group_size": 2})
    tables = make_tables(attributes)
    evict(attributes, EncodeWalk(attributes, tables=tables, capacity=112, segments=5))


def evicted_pair() -> None:
    """Deltas of a pair in segments, as the plan launches them."""
    attributes, tables = aligned(
        evicts=1, window=3, sinks=2, ring_slots=8, segment_length=32, num_heads=2, kv_num_heads=1,
        delta_bits=4, slerp_t=0.5,
    )  # fmt: skip
    state = poisoned_state(attributes, 2, 112, segments=5)
    comparison = compare(GpuGroup(attributes, state, tables=tables))
    walk = EvictingWalk(attributes, even_text(attributes, 112, batch=2), "some", 1)
    walk.run(comparison.kernel, comparison.step)


def evict(attributes: dict[str, Any], walk: Any) -> None:
    """Compares calls of two rows that evict in between."""
    text = even_text(attributes, 112, batch=2)
    EvictingWalk(attributes, text, "some", 1).run(walk, walk.step)


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        exact,
        sliding,
        subspace,
        retained,
        codes,
        pair,
        joint,
        retention,
        eviction,
        evicted_exact,
        evicted_codes,
        evicted_writes,
        evicted_joint,
        evicted_pair,
        observed,
        observed_evicting,
    )
}
