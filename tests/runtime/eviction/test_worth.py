"""Policies by their text, and what a token is worth to each."""

from __future__ import annotations

import numpy as np
import pytest

from minicache.runtime.errors import PlanError
from minicache.runtime.eviction import H2O, HeldTokens, SnapKV, Streaming, parse_policy


def test_policies_are_read_from_their_text() -> None:
    assert parse_policy("streaming:4+1024") == Streaming(4, 1024)
    assert parse_policy("snapkv:512") == SnapKV(512)
    assert parse_policy("h2o:512") == H2O(512)
    for policy in (Streaming(4, 1024), SnapKV(512), H2O(512)):
        assert parse_policy(policy.text) == policy


@pytest.mark.parametrize(
    "given", ["", "streaming", "streaming:4", "snapkv:4+5", "h2o:-1", "h2o:0", "h2o:99999999"]
)
def test_other_texts_are_refused(given: str) -> None:
    with pytest.raises(PlanError, match="--evict"):
        parse_policy(given)


def test_worth_is_what_the_papers_say() -> None:
    """SnapKV pools over neighbours; H2O and SnapKV keep recent tokens; StreamingLLM the newest."""
    mass = np.zeros(100, np.float32)
    mass[50] = 1
    held = HeldTokens(100, mass)
    assert np.flatnonzero(SnapKV(60).worth(held) == 1).tolist() == list(range(47, 54))
    assert np.isinf(SnapKV(60).worth(held)[68:]).all()
    assert np.flatnonzero(H2O(60).worth(held) == 1).tolist() == [50]
    assert np.isinf(H2O(60).worth(held)[70:]).all() and np.isfinite(H2O(60).worth(held)[:70]).all()
    assert (np.diff(Streaming(4, 60).worth(held)) > 0).all()
