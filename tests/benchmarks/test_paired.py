"""Statistics of paired comparisons."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.paired import DocumentRow, by_kind, mean_ratio, summarise, versus


def row(kind: str, document: int, extra: float, tokens: int = 100) -> DocumentRow:
    loss = 300.0 + document
    return DocumentRow(kind, str(document), tokens, loss + extra, loss, abs(extra), tokens // 2)


def test_ratios_by_hand() -> None:
    rows = [row("a", 0, 1.0), row("a", 1, 3.0), row("b", 2, -5.0, tokens=50)]
    found = summarise(rows)
    assert found.by_kind == pytest.approx({"a": np.exp(4 / 200), "b": np.exp(-5 / 50)})
    assert found.ratio.value == pytest.approx(np.exp((0.02 - 0.1) / 2))
    assert found.ratio.low is None and found.ratio.high is None, "one document of b"
    assert found.kl == pytest.approx((4 / 200 + 5 / 50) / 2)
    assert (found.top1, found.documents) == (0.5, 3)


def test_intervals_are_repeatable_and_hold_the_value() -> None:
    rng = np.random.default_rng(1)
    extra = {"a": rng.normal(2, 1, 16).tolist(), "b": rng.normal(5, 1, 16).tolist()}
    tokens = {kind: [100] * 16 for kind in extra}
    first, second = mean_ratio(extra, tokens), mean_ratio(extra, tokens)
    assert first == second
    assert first.low is not None and first.high is not None
    assert 1.0 < first.low < first.value < first.high
    # The standard error of the mean of two means of 16, by theory.
    spread = np.sqrt(sum(np.var(values) / 16 for values in extra.values())) / 2 / 100
    assert np.log(first.high / first.low) == pytest.approx(2 * 1.96 * spread, rel=0.1)


def test_resampling_stays_within_kinds() -> None:
    # Kinds that differ, documents of a kind that do not: nothing is uncertain.
    same = mean_ratio({"a": [1.0] * 4, "b": [9.0] * 2}, {"a": [100] * 4, "b": [100] * 2})
    assert same.low == pytest.approx(same.value) and same.high == pytest.approx(same.value)
    assert same.value == pytest.approx(np.exp(0.05))


def test_versus_pairs_documents() -> None:
    first = [row("a", n, 5.0 + n) for n in range(6)]
    second = [row("a", n, 4.0 + n) for n in (5, 3, 1, 9)]
    found = versus(first, second)
    # Documents differ, the difference of a pair does not.
    assert found.value == pytest.approx(np.exp(0.01))
    assert found.low == pytest.approx(found.value) and found.high == pytest.approx(found.value)
    with pytest.raises(ValueError, match="no document in common"):
        versus(first, [row("b", 1, 1.0)])


def test_kinds_keep_their_order() -> None:
    assert list(by_kind([row("b", 0, 1), row("a", 1, 1), row("b", 2, 1)])) == ["b", "a"]
