"""Candidates: the bytes that a plan promises are those of the codecs made for it."""

from __future__ import annotations

import pytest

from minicache.exporter.baselines.subspace_simulation import bytes_per_token
from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.planner.candidate import CurveSet, fp16_bytes, make_codecs
from minicache.exporter.planner.structure import Structure, structures
from minicache.runtime.errors import PlanError
from tests.exporter.calibration.test_codec import (
    HEADS,
    LAYERS,
    SIZE,
    make_calibration,
    make_layers,
)

WEIGHTS = {"key": (1.0, 30.0, 5.0), "value": (0.1, 2.0, 40.0)}


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    made = make_calibration(*make_layers(rank=12))
    made.weigh(WEIGHTS)
    return made


def test_a_plain_cache_is_two_bytes_per_element(calibration: Calibration) -> None:
    assert fp16_bytes(calibration) == 2 * 2 * LAYERS * HEADS * SIZE


@pytest.mark.parametrize("structure", [Structure(1), Structure(2), Structure(3, 2)])
@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
def test_codecs_take_the_bytes_of_the_candidate(
    calibration: Calibration, structure: Structure, share: float
) -> None:
    """Within the budget, and every layer reads the codes of its whole group."""
    curves = CurveSet.of(calibration, structure)
    budget = max(int(share * fp16_bytes(calibration)), curves.smallest)
    candidate = curves.candidate(budget)
    codecs = candidate.codecs(calibration)
    sizes = [bytes_per_token(codec.key) + bytes_per_token(codec.value) for codec in codecs]
    assert sum(sizes) == candidate.bytes_per_token <= budget
    read = sum(size * len(codec.layers) for size, codec in zip(sizes, codecs, strict=True))
    assert candidate.bytes_read == read
    assert candidate.ratio == fp16_bytes(calibration) / candidate.bytes_per_token
    assert candidate.bits_per_element == pytest.approx(16 / candidate.ratio)
    for group, codec in zip(candidate.groups, codecs, strict=True):
        assert group.layers == codec.layers and group.code_heads == len(codec.key.encoder)
        assert codec.key.bits_per_element == pytest.approx(group.key_bits_per_element)
        assert codec.value.bits_per_element == pytest.approx(group.value_bits_per_element)


def test_the_predicted_loss_is_the_sum_of_the_expected_errors(calibration: Calibration) -> None:
    """In nats, as the weights are nats per error."""
    candidate = CurveSet.of(calibration, Structure(2)).candidate(200)
    expected = 0.0
    for group, codec in zip(candidate.groups, candidate.codecs(calibration), strict=True):
        for kind, code in (("key", codec.key), ("value", codec.value)):
            energy = calibration.basis(kind, group.layers, group.code_heads).energy
            expected += code.distortion * energy
    assert candidate.predicted == pytest.approx(expected)


def test_more_bytes_promise_less_loss(calibration: Calibration) -> None:
    curves = CurveSet.of(calibration, Structure(3))
    losses = [curves.candidate(budget).predicted for budget in (24, 60, 96, 150, 200)]
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == len(losses)


def test_the_smallest_codes_are_a_budget_and_one_byte_less_is_none(
    calibration: Calibration,
) -> None:
    for structure in structures(calibration.layers, 3, "any"):
        curves = CurveSet.of(calibration, structure)
        assert curves.candidate(curves.smallest).bytes_per_token == curves.smallest
        with pytest.raises(PlanError, match=f"take {curves.smallest};"):
            curves.candidate(curves.smallest - 1)


def test_exact_groups_need_no_codec(calibration: Calibration) -> None:
    candidate = CurveSet.of(calibration, Structure(1)).candidate(150)
    exact = [type(group)(layers=group.layers) for group in candidate.groups[:2]]
    codecs = make_codecs([*exact, candidate.groups[2]], calibration)
    assert [codec.layers for codec in codecs] == [(2,)]
