"""Deltas of a pair in the reference: what they are, and what they restore."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.plugins.reference.delta import SMALLEST_COSINE, split_pair
from minicache.plugins.reference.primitives import slerp, to_magnitude_direction
from tests.helpers import assert_close, chunks, make_text
from tests.plugins.aligned_text import plain_turn, turned_text
from tests.plugins.delta_text import delta_attributes, make_bases, tables_of
from tests.plugins.plain import plain_slerp_mode
from tests.plugins.slerp_text import SMALL, TOKENS, run_slerp
from tests.tolerances import FP16_ULP, SAME_FORMULA

TWO = {"num_heads": 4, "kv_num_heads": 2}
ALIGNED = {**TWO, "has_decoder": 1, "segment_length": 8}
KINDS: list[dict[str, int]] = [{"delta_bits": b} for b in (16, 4, 2)]
KINDS += [{"delta_rank": r} for r in (1, 3, 16)]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"code_layout": "tile", "key_bits": 4, "value_bits": 16},
    {"magnitude": "upper", "key_bits": 16},
    {**TWO, "magnitude": "blended", "retention": "budget", "code_layout": "tile"},
    {**TWO, "key_head_permutation": (0, 1, 1, 0), "value_head_permutation": (1, 0, 0, 1)},
    {**ALIGNED, "key_head_permutation": (1, 0, 0, 1), "retention": "minmax"},
    {**ALIGNED, "code_layout": "tile", "value_bits": 4, "retention": "threshold"},
    {"has_sink": 1, "has_bias": 1, "softcap": 2.5, "local_window_size": 9},
    {"sinks": 0, "window": 0, "ring_slots": 1},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_is_attention_over_direction_and_delta(
    variant: dict[str, Any], kind: dict[str, int]
) -> None:
    """By each layer's own cosine and own delta, though one of them is stored with two signs."""
    attributes = delta_attributes(**SMALL | variant | kind)
    tables = tables_of(attributes)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    turn = {}
    if attributes["has_decoder"]:
        text = turned_text(attributes, tables, text)
        turn = {"turn": plain_turn(attributes, tables)}
    calls = list(chunks(TOKENS, 2, 17))
    actual, state = run_slerp(attributes, text, calls, tables=tables)
    expected = plain_slerp_mode(attributes, text, calls, bases=make_bases(attributes), **turn)
    assert_close(actual, expected, 4 * FP16_ULP)
    assert np.isfinite(state["key_delta_ratio"][:, :, attributes["sinks"] : 20]).all()


@pytest.mark.parametrize("aligned", [{}, ALIGNED], ids=["plain", "aligned"])
@pytest.mark.parametrize("kind", [{"delta_bits": 16}, {"delta_rank": 16}], ids=str)
def test_with_all_of_it_both_layers_come_back(
    kind: dict[str, int], aligned: dict[str, Any]
) -> None:
    """16 bits, or a basis of the whole space: as if every token were exact, but for fp16."""
    attributes = delta_attributes(**SMALL | aligned | kind, key_bits=16, value_bits=16)
    tables = tables_of(attributes)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    calls = [(0, 20), (20, 10), (30, 10)]
    actual, _ = run_slerp(attributes, text, calls, tables=tables)
    wide = {**attributes, "window": TOKENS, "ring_slots": TOKENS + 6}
    exact, _ = run_slerp(wide, text, calls, tables=tables)
    assert_close(actual, exact, 4 * FP16_ULP)
    without = {**attributes, "delta_bits": 0, "delta_rank": 0}
    bare = [{n: a for n, a in table.items() if "delta" not in n} for table in tables]
    merged, _ = run_slerp(without, text, calls, tables=bare)
    assert np.abs(merged - exact).max() > 0.1 * np.abs(exact).max()


@pytest.mark.parametrize(("bits", "fewer"), [(2, 0), (4, 2), (16, 4)])
def test_more_bits_restore_more(bits: int, fewer: int) -> None:
    """Each width is nearer to the exact result than the next smaller one, or than no delta."""
    attributes = delta_attributes(**SMALL, delta_bits=bits, key_bits=16, value_bits=16)
    text, calls = make_text(attributes, TOKENS, dtype=np.float64), [(0, 20), (20, 20)]
    wide = {**attributes, "window": TOKENS, "ring_slots": TOKENS + 6}
    exact, _ = run_slerp(wide, text, calls)
    errors = [
        np.sqrt(np.mean((run_slerp({**attributes, "delta_bits": b}, text, calls)[0] - exact) ** 2))
        for b in (bits, fewer)
    ]
    assert errors[0] < 0.7 * errors[1]


def test_the_rank_keeps_what_lies_in_its_basis() -> None:
    """Layers whose directions differ along two axes only lose nothing at rank 2."""
    attributes = delta_attributes(**SMALL, delta_rank=2, key_bits=16, value_bits=16)
    bases = make_bases(attributes)
    rng, text = np.random.default_rng(3), make_text(attributes, TOKENS, dtype=np.float64)
    for kind in ("key", "value"):
        array, basis = getattr(text, kind), bases[f"{kind}_delta_basis"][0].astype(float)
        common = rng.standard_normal(array.shape[1:])
        common -= common @ basis.T @ basis
        common /= np.linalg.norm(common, axis=-1, keepdims=True)
        apart = 0.5 * rng.standard_normal((*common.shape[:-1], 2)) @ basis
        array[0], array[1] = common + apart, common - apart
    calls, tables = [(0, 20), (20, 20)], [bases, bases]
    actual, _ = run_slerp(attributes, text, calls, tables=tables)
    wide = {**attributes, "window": TOKENS, "ring_slots": TOKENS + 6}
    assert_close(actual, run_slerp(wide, text, calls, tables=tables)[0], 4 * FP16_ULP)


VECTORS = st.lists(st.integers(-20, 20), min_size=6, max_size=6).filter(any)


@given(a=VECTORS, b=VECTORS)
def test_the_deltas_of_a_pair_are_antipodal(a: list[int], b: list[int]) -> None:
    """u_0 - c e = -(u_1 - c e) for the direction e halfway, whose cosine c with both is one."""
    units = to_magnitude_direction(np.array([a, b]))[1]
    cosine, delta = split_pair(np.array([a, b], float))
    np.testing.assert_allclose(delta, (units[0] - units[1]) / 2, atol=SAME_FORMULA)
    if np.linalg.norm(units[0] + units[1]) / 2 <= SMALLEST_COSINE:
        return
    direction = slerp(units[0], units[1], 0.5)
    cosines = units @ direction
    np.testing.assert_allclose(cosines, cosine, atol=SAME_FORMULA)
    deltas = units - cosines[:, None] * direction
    np.testing.assert_allclose(deltas[0], -deltas[1], atol=SAME_FORMULA)
    np.testing.assert_allclose(deltas[0], delta, atol=SAME_FORMULA)
    assert abs(float(delta @ direction)) < SAME_FORMULA


@given(a=VECTORS, b=VECTORS, t=st.sampled_from((0.25, 0.6)))
def test_elsewhere_than_halfway_they_are_not(a: list[int], b: list[int], t: float) -> None:
    """At another t the layer that the direction is nearer to has the shorter delta."""
    units = to_magnitude_direction(np.array([a, b]))[1]
    angle = float(np.arccos(np.clip(units[0] @ units[1], -1, 1)))
    if not 0.1 < angle < np.pi / 2:
        return
    direction = slerp(units[0], units[1], t)
    lengths = np.linalg.norm(units - (units @ direction)[:, None] * direction, axis=-1)
    np.testing.assert_allclose(lengths, np.sin([t * angle, (1 - t) * angle]), atol=SAME_FORMULA)
    assert abs(lengths[0] - lengths[1]) > 0.01


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize(
    ("second", "limit"),
    [(1.0, 0.0), (-1.0, SMALLEST_COSINE), (0.0, 0.0)],
    ids=["equal", "opposed", "zero"],
)
def test_layers_without_an_arc_are_restored(second: float, limit: float, bits: int) -> None:
    """Equal, opposed and zero layers: nothing is lost but what the direction's rounding loses."""
    attributes = delta_attributes(**SMALL, delta_bits=16, key_bits=bits, value_bits=bits)
    text, calls = make_text(attributes, TOKENS, dtype=np.float64), [(0, 20), (20, 20)]
    for array in (text.key, text.value):
        array[1] = 2 * second * array[0]
    actual, state = run_slerp(attributes, text, calls)
    wide = {**attributes, "window": TOKENS, "ring_slots": TOKENS + 6}
    exact, _ = run_slerp(wide, text, calls)
    merged, _ = run_slerp({**attributes, "delta_bits": 0}, text, calls)
    rounding = np.abs(merged[0] - exact[0]).max() / np.abs(exact[0]).max()
    assert_close(actual[0], exact[0], 2 * (limit + rounding + FP16_ULP))
    assert_close(actual[1], exact[1], 4 * (limit + rounding + FP16_ULP))
    if second >= 0:
        assert (state["key_delta_ratio"][:, :, SMALL["sinks"] : 20] == 0).all()
