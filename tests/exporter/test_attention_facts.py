"""What configuration files of many kinds say of each layer, and what they leave unsaid."""

from __future__ import annotations

from typing import Any

import pytest

from minicache.exporter.attention_facts import AttentionFacts
from minicache.exporter.read_attention_facts import read_attention_facts

SLIDING, FULL = "sliding_attention", "full_attention"


def windows(config: dict[str, Any], layers: int = 6) -> list[float | None]:
    """The window of each layer; 0 is full attention, None is silence."""
    facts = read_attention_facts(config, {})
    found = [facts.window(layer) for layer in range(layers)]
    return [None if stated is None else stated.value for stated in found]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 8}, [8] * 6),
        ({"model_type": "mistral", "sliding_window": None}, [0] * 6),
        ({"model_type": "gemma2", "sliding_window": 8}, [8, 0, 8, 0, 8, 0]),
        ({"model_type": "gemma3_text", "sliding_window": 8}, [8, 8, 8, 8, 8, 0]),
        ({"sliding_window": 8, "_sliding_window_pattern": 3}, [8, 8, 0, 8, 8, 0]),
        ({"sliding_window": 8, "layer_types": [FULL, SLIDING]}, [0, 8, None, None, None, None]),
        ({"layer_types": [FULL] * 6}, [0] * 6),
        ({"layer_types": [SLIDING] * 6}, [None] * 6),
        ({"layer_types": [SLIDING] * 6, "sliding_window": None}, [None] * 6),
        ({"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 2}, [0] * 6),
        (
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 4},
            [0, 0, 0, 0, 8, 8],
        ),
        # Which layers slide is the code's secret in these.
        ({"model_type": "new_model", "sliding_window": 8}, [None] * 6),
        ({"model_type": "qwen2", "sliding_window": 8}, [None] * 6),
        ({"window_size": 8, "attention_layers": ["global", "local"] * 3}, [0, 8, 0, 8, 0, 8]),
        ({"sliding_window": 8, "layer_types": ["chunked_attention", FULL]}, [None, 0] + [None] * 4),
        # Layers without a KV cache do not count.
        (
            {"sliding_window": 8, "layer_types": ["conv", SLIDING, "linear_attention", FULL]},
            [8, 0, None, None, None, None],
        ),
    ],
)
def test_windows(config: dict[str, Any], expected: list[float | None]) -> None:
    assert windows(config) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"n_layer": 4}, 4),
        ({"num_hidden_layers": 4, "layer_types": ["conv", FULL, "conv", FULL]}, 2),
        ({"num_hidden_layers": 30, "num_kv_shared_layers": 10}, 20),
        ({}, None),
    ],
)
def test_layers_with_a_cache(config: dict[str, Any], expected: float | None) -> None:
    stated = read_attention_facts(config, {}).num_layers
    assert (stated and stated.value) == expected


def test_bases_of_rope() -> None:
    nested = {SLIDING: {"rope_theta": 1e4}, FULL: {"rope_theta": 1e6, "rope_type": "linear"}}
    config = {"rope_parameters": nested, "layer_types": [SLIDING, FULL], "sliding_window": 8}
    facts = read_attention_facts(config, {})
    assert facts.theta(0).value == 1e4  # type: ignore[union-attr]
    assert facts.theta(1) is None  # scaled
    assert read_attention_facts({"rotary_emb_base": 1e4}, {}).theta(7).value == 1e4  # type: ignore[union-attr]


def test_the_original_models_file_goes_first() -> None:
    decoder = {"num_hidden_layers": 5, "head_size": 64}
    facts = read_attention_facts({"num_hidden_layers": 4}, {"decoder": decoder})
    assert (facts.num_layers.value, facts.num_layers.file) == (4, "config.json")  # type: ignore[union-attr]
    assert facts.head_dim.file == "genai_config.json"  # type: ignore[union-attr]


def test_sections_of_prompt_chunks_are_no_windows() -> None:
    decoder = {"num_hidden_layers": 4, "sliding_window": {"window_size": 64, "pad_value": 0}}
    assert read_attention_facts({}, {"decoder": decoder}).sliding is None


KEYS = (
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "attention_layers", "window_size",
    "sliding_window_pattern", "model_type", "rope_theta", "rope_parameters", "rope_scaling",
    "rope_local_base_freq", "partial_rotary_factor", "num_kv_shared_layers", "decoder",
)  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        "8",
        [8],
        {"a": 8},
        True,
        -1,
        0,
        1e300,
        5e-324,
        float("nan"),
        float("inf"),
        10**400,
        [[]],
        [{}],
        "",
    ],
    ids=repr,
)
def test_values_of_wrong_type_or_range_say_nothing(value: Any) -> None:
    wrong = dict.fromkeys(KEYS, value)
    if value in ("8", ""):
        del wrong["model_type"]
    facts = read_attention_facts(wrong, wrong | {"decoder": wrong})
    assert facts == AttentionFacts()
    assert facts.window(0) is facts.theta(0) is None


def test_absurd_counts_cost_nothing() -> None:
    decoder = {"num_hidden_layers": 10**9, "sliding_window": {"window_size": 8, "layers": [0]}}
    facts = read_attention_facts({"num_hidden_layers": 10**9}, {"decoder": decoder})
    assert len(facts.layer_types) <= 10_000
