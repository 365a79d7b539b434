"""Interleaved timing, spreads and bounds of the CPU benchmarks."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.cpu.agreement import Agreement
from benchmarks.cpu.asked import asked
from benchmarks.cpu.formats import Format, formats, subspace
from benchmarks.cpu.library import Choice
from benchmarks.cpu.our_layers import coded_spans, full_state, node_attributes
from benchmarks.cpu.rounds import interleaved, ratio
from benchmarks.cpu.step_shape import StepShape
from benchmarks.cpu.traffic import our_traffic, plain_traffic, visible
from minicache.runtime.spread import Spread


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def test_ratios_are_of_the_same_round() -> None:
    found = ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0])
    assert (found.p25, found.median, found.p75) == pytest.approx((2.5, 3.0, 3.5))
    assert Spread.of([1.0]).scaled(2) == Spread(2.0, 2.0, 2.0)


def test_contestants_take_turns() -> None:
    clock, order = Clock(), []

    def run(name: str, seconds: float) -> None:
        order.append(name)
        clock.spend(seconds)

    runs = {"a": lambda: run("a", 1.0), "b": lambda: run("b", 4.0)}
    times = interleaved(runs, 2, clock, seconds=1e-9)
    assert times == {"a": [1.0, 1.0], "b": [4.0, 4.0]}
    # One run to warm up, two that count; the order turns round.
    assert "".join(order) == "aaabbb" + "bbbaaa"
    order.clear()
    interleaved(runs, 2, clock, seconds=0)
    assert "".join(order) == "ab" + "ba", "what takes long runs once"


def test_a_turn_lasts_as_long_as_asked() -> None:
    clock = Clock()
    count = [0]

    def run() -> None:
        count[0] += 1
        clock.spend(0.1)

    interleaved({"a": run}, 1, clock, seconds=0.55)
    assert count[0] == 1 + 6


def test_bounds_are_of_a_format_its_maths_and_its_instruction_set() -> None:
    form = "subspace G=2"
    assert asked(form, Choice("", "int8"), "GQA fp32") == 11
    assert asked(form, Choice("", "fp32"), "GQA fp32") == 5
    assert asked(form, Choice("avx2", "fp32"), "GQA int8") == 2
    assert asked(form, Choice("avx2", "fp32"), "GQA fp32") is None
    assert asked("exact fp16", Choice(), "GQA fp16") == 4


def test_subspace_formats_take_two_bits_per_element() -> None:
    for group, code_heads, share in ((1, 0, 1), (2, 0, 1), (3, 0, 1), (1, 1, 8)):
        bits = subspace(group, code_heads, share)["key_bits"]
        stored = sum(width * count for width, count in zip(bits[0::2], bits[1::2], strict=True))
        assert stored == 2 * group * share * 128


def test_bytes_that_must_move() -> None:
    shape = StepShape((101, 51), kv_heads=2, heads=4, head_size=128)
    assert shape.capacity == 112
    assert plain_traffic(shape, 0.5).total == 2 * (100 + 50) * 2 * 128 * 0.5
    known = formats(2)
    assert our_traffic(known["exact fp16"], shape).total == 2 * 150 * 2 * 128 * 2
    sliding = Format("sliding", {"local_window_size": 64, "ring_slots": 128})
    assert visible(sliding, shape) == [64, 51]
    # The second row of 50 tokens is short enough to be all exact; the first reads [4, 36) as codes.
    form = known["subspace G=2"]
    assert coded_spans(node_attributes(form, shape), shape) == [(4, 36), (4, 4)]
    traffic = our_traffic(form, shape)
    assert traffic.cache == 32 * 2 * (2 * 64 + 4) + (150 - 32) * 2 * 2 * 128 * 2
    assert traffic.tables == 2 * 144 * 2 * 128 * (2 + 2)
    deltas = our_traffic(known["slerp 4 bit, deltas 4 bit"], shape)
    assert deltas.cache == 32 * 2 * 2 * (64 + 2 + 64 + 2) + (150 - 32) * 2 * 2 * 128 * 2


def test_retained_tokens_are_marked() -> None:
    form = formats(2)["slerp 8 bit"]
    kept = Format("kept", {**form.attributes, "retention": "threshold"}, retained=0.05)
    shape = StepShape((401,), kv_heads=2, heads=4)
    state = full_state(kept, shape, seed=0)
    places = state["retained_position"][0]
    assert len(set(places)) == round(0.05 * shape.capacity) and places.min() >= 4
    assert places.max() < 401 - 1 - 64
    marked = np.signbit(state["key_magnitude"][0]).all((0, 2))
    assert sorted(places) == list(np.flatnonzero(marked))


def test_agreement_by_hand() -> None:
    original = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
    other = np.log(np.array([[0.5, 0.5], [0.4, 0.6]], np.float32))
    found = Agreement.of(original, other, np.array([0, 0]))
    assert found.top1 == 0.5
    assert found.perplexity_ratio == pytest.approx(np.sqrt(0.9 / 0.4))
    assert found.kl == pytest.approx((0.9 * np.log(0.9 / 0.4) + 0.1 * np.log(0.1 / 0.6)) / 2)
