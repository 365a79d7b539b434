"""Masks are proved by running them."""

from __future__ import annotations

import pytest

from minicache.exporter.attention_facts import AttentionFacts, Stated
from minicache.exporter.facts import ModelFacts
from minicache.exporter.find_attention import find_attention
from minicache.exporter.mask_probe import LONGEST_PAST, _long_past
from minicache.runtime.errors import UnsupportedModelError
from tests.exporter.graphs import decomposed_model


def test_causal() -> None:
    assert find_attention(decomposed_model("causal")).sites[0].local_window == 0


def test_sliding_window() -> None:
    assert find_attention(decomposed_model("window")).sites[0].local_window == 3


def test_a_bias_is_refused_with_its_value() -> None:
    with pytest.raises(UnsupportedModelError, match=r"adds -?\d+ to attention scores.*ALiBi"):
        find_attention(decomposed_model("bias"))


def test_no_mask_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="applies no mask"):
        find_attention(decomposed_model("none"))


def test_another_pattern_is_refused() -> None:
    model = decomposed_model("window")
    near = next(node for node in model.graph if node.op_type == "Less")
    near.op_type = "Greater"  # sees only what is far away
    with pytest.raises(UnsupportedModelError, match="neither causal nor a sliding window"):
        find_attention(model)


def test_a_window_beyond_the_usual_probe_is_looked_for_where_the_configuration_has_one() -> None:
    attention = AttentionFacts(sliding=Stated(30_000, "sliding_window 30000", "config.json"))
    assert _long_past(ModelFacts()) == LONGEST_PAST - 1
    assert _long_past(ModelFacts(attention=attention)) == 30_001
    assert _long_past(ModelFacts(max_positions=4096, attention=attention)) == 4095
