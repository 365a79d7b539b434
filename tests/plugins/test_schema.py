"""The schema table: arity, shapes, and that the documentation knows every name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minicache.exporter import schemas
from minicache.plugins.reference import new_state
from tests.helpers import make_attributes

OPERATOR = Path(__file__).parents[2] / "docs" / "operator.md"
ALWAYS = ["query", "key", "value", "past_lengths", "total_lengths"]
EXACT = ["past_exact_key", "past_exact_value"]
CODED = ["past_key_code", "past_value_code", "past_key_magnitude", "past_value_magnitude", *EXACT]
DELTAS = [f"past_{n}" for n in ("key_delta", "value_delta", "key_delta_ratio", "value_delta_ratio")]
BASES = ["key_delta_basis", "value_delta_basis"]
RETAINS = [
    f"past_{n}"
    for n in (
        "retained_key",
        "retained_value",
        "retained_position",
        "retained_similarity",
        "similarity_range",
    )
]
ENCODES = ["key_encoder", "key_step", "value_encoder", "value_step"]
DECODERS = ["key_decoder", "value_decoder"]

ARITIES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, [*ALWAYS, *EXACT]),
    ({"has_bias": 1, "has_sink": 1}, [*ALWAYS, "attention_bias", "head_sink", *EXACT]),
    ({"mode": "slerp", "group_slot": 0}, [*ALWAYS, *CODED]),
    ({"mode": "slerp", "group_slot": 1}, [*ALWAYS, *CODED, "k_0", "v_0"]),
    ({"mode": "slerp", "group_slot": 2, "group_size": 3, "retention": "budget"},
     [*ALWAYS, *CODED, *RETAINS, "k_0", "v_0", "k_1", "v_1"]),
    ({"mode": "slerp", "has_decoder": 1, "group_slot": 0, "retention": "budget"},
     [*ALWAYS, *DECODERS, *CODED, *RETAINS]),
    ({"mode": "slerp", "has_decoder": 1, "group_slot": 1},
     [*ALWAYS, *DECODERS, "key_encoder", "value_encoder", *CODED, "k_0", "v_0"]),
    ({"mode": "slerp", "has_decoder": 1, "group_slot": 0, "segment_length": 16},
     [*ALWAYS, *DECODERS, "rope_frequencies", *CODED]),
    ({"mode": "slerp", "group_slot": 0, "segment_length": 16}, [*ALWAYS, *CODED]),
    ({"mode": "slerp", "group_slot": 0, "delta_bits": 4}, [*ALWAYS, *CODED[:4], *DELTAS, *EXACT]),
    ({"mode": "slerp", "group_slot": 1, "delta_rank": 2, "has_decoder": 1},
     [*ALWAYS, *DECODERS, "key_encoder", "value_encoder", *BASES, *CODED[:4], *DELTAS, *EXACT,
      "k_0", "v_0"]),
    ({"mode": "subspace", "has_decoder": 1, "group_size": 2, "retention": "budget"},
     [*ALWAYS, *DECODERS, *CODED]),
    ({"evicts": 1}, [*ALWAYS, *EXACT, "past_evicted"]),
    ({"mode": "slerp", "group_slot": 1, "evicts": 1, "observes": -1, "retention": "budget"},
     [*ALWAYS, *CODED, *RETAINS, "past_evicted", "past_attention_mass", "k_0", "v_0"]),
    ({"mode": "subspace", "has_decoder": 1, "segment_length": 16},
     [*ALWAYS, *DECODERS, "rope_frequencies", *ENCODES, *CODED]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "inputs"), ARITIES, ids=lambda value: str(value)[:60])
def test_arity_follows_the_attributes(given: dict[str, Any], inputs: list[str]) -> None:
    """An absent input is left out; the writer returns every state, a reader only attention."""
    attributes = make_attributes(**given)
    assert schemas.input_names(attributes) == inputs
    states = [f"present_{name}" for name in schemas.state_names(attributes)]
    writer = attributes["group_slot"] == attributes["group_size"] - 1
    assert schemas.output_names(attributes) == ["attention", *(states if writer else [])]


@pytest.mark.parametrize(
    ("bits", "size"),
    [
        ((8, 80), 80),
        ((4, 80), 40),
        ((16, 80), 160),
        ((8, 8, 4, 8, 2, 8), 16),
        ((2, 64), 16),
        ((), 0),
    ],
)
def test_code_bytes_are_padded_segments(bits: tuple[int, ...], size: int) -> None:
    """Each segment is rounded up to 4 bytes."""
    assert schemas.code_bytes(bits) == size


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"local_window_size": 8, "ring_slots": 12},
        {"local_window_size": 80, "ring_slots": 90},
        {
            "mode": "slerp",
            "group_size": 3,
            "kv_num_heads": 2,
            "num_heads": 2,
            "retention": "minmax",
        },
        {"mode": "slerp", "magnitude": "upper", "key_bits": 4, "value_bits": 16},
        {"mode": "slerp", "retention": "budget", "window": 8, "ring_slots": 20},
        {"mode": "slerp", "delta_bits": 2},
        {"mode": "slerp", "delta_rank": 3},
        {"evicts": 1, "observes": 4},
    ],
)
def test_state_shapes_follow_the_table(given: dict[str, Any]) -> None:
    """Each state has the shape that the table states in letters."""
    attributes = make_attributes(**given)
    letters = {
        "B": 2,
        "Hk": attributes["kv_num_heads"],
        "Hc": attributes["code_heads"],
        "C": 64,
        "D": 16,
        "G": attributes["group_size"],
        "P": 5 + schemas.retained_extra(attributes),
        "X+1": attributes["ring_slots"] - attributes["window"] + 1,
        "2": 2,
        "n+1": 4,
    }
    letters["slots"] = attributes["sinks"] + attributes["ring_slots"]
    if attributes["mode"] == "exact":
        window = attributes["local_window_size"]
        letters["slots"] = min(64, attributes["ring_slots"]) if window else 64
    letters["key bytes"] = schemas.code_bytes(attributes["key_bits"])
    letters["value bytes"] = schemas.code_bytes(attributes["value_bits"])
    letters["delta bytes"] = schemas.code_bytes(schemas.delta_code(attributes))
    letters["1"] = 1
    letters["G or 1"] = letters["G"] if attributes["magnitude"] == "own" else 1
    text = {state.name: state.shape for state in schemas.STATES}
    for name, array in new_state(attributes, 2, 64, 5, segments=3).items():
        expected = tuple(letters[letter] for letter in text[name].strip("[]").split(", "))
        assert array.shape == expected, name


def test_the_empty_state_is_empty() -> None:
    """Free slots are -1."""
    state = new_state(make_attributes(mode="slerp", retention="budget"), 2, 32, 3)
    assert (state["retained_position"] == -1).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"colour": 1}, "no attribute 'colour'"),
        ({"mode": "fast"}, "mode is 'fast'"),
        ({"retention": "all"}, "retention is 'all'"),
    ],
)
def test_unknown_attributes_and_choices_are_refused(given: dict[str, Any], words: str) -> None:
    """A misspelt attribute or choice is named."""
    with pytest.raises(ValueError, match=words):
        make_attributes(**given)


def test_required_attributes_are_named() -> None:
    """A node without its sizes is refused by name."""
    with pytest.raises(ValueError, match="needs the attribute 'num_heads'"):
        schemas.attributes_with_defaults({})


def test_every_attribute_and_tensor_says_what_it_is() -> None:
    """The documentation's table is the schema table: each row has words, shape and condition."""
    for attribute in schemas.ATTRIBUTES:
        assert attribute.doc, attribute.name
        assert attribute.kind in ("int", "float", "string", "ints")
    for tensor in (*schemas.INPUTS, *schemas.STATES, schemas.OUTPUT):
        assert tensor.doc, tensor.name
        assert tensor.shape.startswith("["), tensor.name
    names = [a.name for a in schemas.ATTRIBUTES]
    assert len(names) == len(set(names))


def test_the_operator_page_refers_to_the_table_and_names_what_it_explains() -> None:
    """docs/operator.md points to the table, and names the states, modes, policies and layouts."""
    page = OPERATOR.read_text()
    assert "exporter/schemas.py" in page
    words = [*schemas.MODES, *schemas.MAGNITUDES, *schemas.RETENTIONS, *schemas.CODE_LAYOUTS]
    words += [*schemas.RETENTION_SCOPES, "attention_bias", "head_sink", "similarity_range"]
    words += ["evicted", "attention_mass", "delta_bits", "delta_rank", "key_delta_basis"]
    words += ["key_delta_ratio", "value_delta"]
    for word in words:
        assert f"`{word}" in page or word in page, word
