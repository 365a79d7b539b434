"""What the plan refuses, how it cuts a call, and in which order it launches."""

from __future__ import annotations

from typing import Any

import pytest

from minicache.plugins.triton.variant import parse_key
from minicache.runtime.errors import UnsupportedModelError
from tests.helpers import make_attributes
from tests.plugins.gpu.planned import arguments, plan_of
from tests.plugins.subspace_text import subspace_attributes

pytestmark = pytest.mark.usefixtures("ort_library")

LARGE: dict[str, Any] = {
    "head_size": 128, "num_heads": 32, "kv_num_heads": 8, "segment_length": 1024,
    "key_bits": (8, 16, 4, 64), "value_bits": (4, 64, 2, 64), "window": 128, "ring_slots": 256,
}  # fmt: skip


SLERP = {"mode": "slerp", "window": 4, "ring_slots": 8}


@pytest.mark.parametrize(
    ("attributes", "options", "words"),
    [
        (make_attributes(**SLERP, code_layout="tile"), {}, "code_layout is 'tile'"),
        (make_attributes(**SLERP, slerp_t=0.5, delta_rank=2), {}, "delta_rank is 2: the GPU"),
        (subspace_attributes(segment_length=40), {}, "segment_length is 40"),
        (make_attributes(), {"types": {"T": "float32"}}, "the model is of type float"),
        (make_attributes(**SLERP), {"types": {"exact": "float32"}}, "past_exact_key' has type"),
        (make_attributes(**SLERP, retention="minmax"), {"types": {"retained": "bfloat16"}},
         "past_retained_key' has type bfloat16"),
        (make_attributes(**SLERP), {"capacity": 1 << 28}, "capacity is 268435456"),
        (subspace_attributes(evicts=1, segment_length=64), {"segments": 1 << 22},
         "past_evicted' is for texts of 268435456 tokens"),
    ],
)  # fmt: skip
def test_refusals(attributes: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        plan_of(attributes, **{"capacity": 64, **options})


def test_heads_that_share_codes_share_a_job() -> None:
    """[Hk] heads by job, [jobs] key code heads, [jobs] value code heads, padding, permutations."""
    orders = {
        "key_head_permutation": (2, 0, 3, 1),
        "value_head_permutation": (0, 2, 1, 3),
    }
    shared = subspace_attributes(num_heads=4, kv_num_heads=4, code_heads=2, **orders)
    # Key code heads hold the heads {0, 2} and {1, 3}, so do those of values.
    table = plan_of(shared, capacity=64).table
    assert table == [0, 2, 1, 3, 0, 1, 0, 1, *(2, 0, 3, 1), *(0, 2, 1, 3)]
    orders["value_head_permutation"] = (0, 1, 2, 3)
    apart = subspace_attributes(num_heads=4, kv_num_heads=4, code_heads=2, **orders)
    table = plan_of(apart, capacity=64).table
    assert table == [0, 2, 1, 3, 0, 0, 1, 1, 0, 1, 0, 1, *(2, 0, 3, 1), *(0, 1, 2, 3)]
    assert len(plan_of(make_attributes(), capacity=64).table) == 4 + 2


def test_decode_is_split_so_that_all_processors_work() -> None:
    attributes = subspace_attributes(**LARGE)
    (one,) = arguments(plan_of(attributes, multiprocessors=132), "attend_codes")
    assert one["splits"] == 33 and one["jobs"] == 8  # two programs for each processor
    (many,) = arguments(plan_of(attributes, batch=64), "attend_codes")
    assert many["splits"] == 1
    (short,) = arguments(plan_of(attributes, capacity=1024), "attend_codes")
    assert short["splits"] == 4  # of 256 tokens at least
    exact = make_attributes(**{n: LARGE[n] for n in ("head_size", "num_heads", "kv_num_heads")})
    (launch,) = arguments(plan_of(exact), "attend_exact")
    assert launch["exact_splits"] == launch["parts"] == 27


def test_scratch_is_bounded_by_chunks_of_new_tokens() -> None:
    plan = plan_of(subspace_attributes(**LARGE), tokens=2048)
    assert plan.scratch <= (64 << 20) + 4096
    calls = arguments(plan, "finish")
    assert len(calls) > 1
    assert [call["first"] for call in calls[1:]] == [
        call["first"] + call["count"] for call in calls[:-1]
    ]
    assert calls[0]["first"] == 0 and calls[-1]["first"] + calls[-1]["count"] == 2048
    for kernel in ("project", "attend_codes", "attend_exact"):
        assert len(arguments(plan, kernel)) == len(calls)


def test_scratch_has_room_for_the_segments_of_the_longest_text() -> None:
    """Where tokens are evicted, it is longer than the capacity; queries are per segment."""
    given = {**LARGE, "segment_length": 64}
    short = plan_of(subspace_attributes(**given, evicts=1), capacity=1024, segments=16)
    assert short.scratch == plan_of(subspace_attributes(**given), capacity=1024).scratch
    long = plan_of(subspace_attributes(**given, evicts=1), capacity=1024, segments=64)
    (launch,) = (one for one in long.launches if one.key.startswith("project|"))
    assert launch.grid[1] == 64
    (codes,) = arguments(long, "attend_codes")
    assert codes["segments"] == 64
    queries = 48 * LARGE["num_heads"] * (2 * 80 + 4)  # of the further segments, with their offsets
    assert abs(long.scratch - short.scratch - queries) < 4096


def test_reads_of_the_state_come_before_writes() -> None:
    attributes = make_attributes(**SLERP, retention="budget", group_size=9)
    plan = plan_of(attributes, capacity=64, retained=8)
    assert [launch.key.partition("|")[0] for launch in plan.launches] == [
        "active", "project", "attend_codes", "attend_exact", "finish",
        "gather", "gather", "encode", "encode",
        "retain", "retain_store", "retain_store", "mark", "store", "store",
    ]  # fmt: skip
    kinds = {"first_layer": [0, 8]}
    for kernel in ("gather", "retain_store", "store"):
        assert [x["first_layer"] for x in arguments(plan, kernel)] == kinds["first_layer"]


def test_calls_without_tokens_launch_nothing() -> None:
    names = {
        launch.key.partition("|")[0]
        for launch in plan_of(make_attributes(**SLERP), tokens=0, capacity=64).launches
    }
    assert names == set()


def test_what_is_not_aligned_takes_kernels_that_count_on_nothing() -> None:
    """Rows of 40 bytes, and tensors at odd places."""
    narrow = make_attributes(**SLERP, head_size=80, key_bits=4)
    hints = {
        launch.key.partition("|")[0]: parse_key(launch.key).hinted
        for launch in plan_of(narrow, capacity=64).launches
    }
    assert not hints["attend_codes"] and hints["attend_exact"] and hints["store"]
    odd = plan_of(make_attributes(), capacity=64, address=260)
    assert not any(parse_key(launch.key).hinted for launch in odd.launches)


def test_small_tables_lie_anywhere() -> None:
    """A row on its own begins where those before it end."""
    tables = ("past_evicted", "past_retained_position", "past_retained_similarity")
    attributes = subspace_attributes(**LARGE, evicts=1)
    odd = plan_of(attributes, capacity=64, places=dict.fromkeys(tables, 4))
    assert all(parse_key(launch.key).hinted for launch in odd.launches)
    attributes = make_attributes(**SLERP, retention="budget")
    tables = (*tables, "past_similarity_range")
    odd = plan_of(attributes, capacity=64, retained=3, places=dict.fromkeys(tables, 8))
    assert all(parse_key(launch.key).hinted for launch in odd.launches)


@pytest.mark.parametrize(
    ("bits", "blocks"),
    [((8, 64), (64, 32, 16, 64)), ((8, 16, 4, 32, 2, 64), (32, 32, 16, 32))],
    ids=["one width", "mixed"],
)
def test_blocks_of_codes_lie_in_one_segment(bits: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    for length, block in zip((1024, 96, 48, 0), blocks, strict=True):
        attributes = subspace_attributes(segment_length=length, key_bits=bits, value_bits=bits)
        plan = plan_of(attributes, capacity=96)
        keys = [launch.key for launch in plan.launches if launch.key.startswith("attend_codes|")]
        assert all(dict(parse_key(key).constants)["BLOCK_N"] == block for key in keys)


def test_large_codes_take_few_rows_at_once() -> None:
    """More columns than a program's registers hold for 32 rows."""
    joint = (8, 128, 4, 512, 2, 512)
    attributes = subspace_attributes(
        group_size=6, head_size=64, key_bits=joint, value_bits=joint, segment_length=1024
    )
    plan = plan_of(attributes, tokens=96, capacity=96)
    keys = [launch.key for launch in plan.launches if launch.key.startswith("attend_codes|")]
    assert {dict(parse_key(key).constants)["BLOCK_M"] for key in keys} == {16}
