"""The one schema table of ``com.minicache::MiniCacheAttention`` version 1.

The ONNX Runtime library, the TensorRT plugin, the NumPy reference, the docs and the tests follow
this table; nothing else states names, order, types or shapes. It imports nothing heavy.

One node stands for one attention layer. The nodes of a merge group carry ``group_slot`` 0..G-1; the
node of slot G-1, the *writer*, also encodes and returns all state tensors; the others (*readers*)
return the attention output only. An absent input or output is left out, never an empty name.

Shape letters: B batch, S new tokens, H query heads, Hk kv heads, Hc code heads, D head size,
C capacity, G layers of the group, R code components, N sinks, X rewind slack, M retained capacity,
P slots of the side buffer (M, and X more for ``budget``), n segments of the longest text. T is the
model's type (fp32, fp16, bf16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minicache.exporter.schema_attributes import (
    ATTRIBUTES,
    CAPACITY_MULTIPLE,
    CODE_BITS,
    CODE_LAYOUTS,
    DELTA_BITS,
    DOMAIN,
    MAGNITUDES,
    MODES,
    OP_TYPE,
    PLUGIN_ATTRIBUTES,
    RETENTION_SCOPES,
    RETENTIONS,
    VERSION,
    Attribute,
    attributes_with_defaults,
)
from minicache.exporter.state_shapes import (
    SEGMENT_ALIGNMENT,
    code_bytes,
    delta_code,
    magnitude_count,
    retained_extra,
    state_shape,
)

__all__ = [
    "ATTRIBUTES",
    "CAPACITY_MULTIPLE",
    "CODE_BITS",
    "CODE_LAYOUTS",
    "DELTA_BITS",
    "DOMAIN",
    "INPUTS",
    "MAGNITUDES",
    "MODES",
    "OP_TYPE",
    "OUTPUT",
    "PLUGIN_ATTRIBUTES",
    "RETENTIONS",
    "RETENTION_SCOPES",
    "SEGMENT_ALIGNMENT",
    "STATES",
    "VERSION",
    "Attribute",
    "Tensor",
    "attributes_with_defaults",
    "code_bytes",
    "delta_code",
    "input_names",
    "is_aligned",
    "is_writer",
    "magnitude_count",
    "output_names",
    "retained_extra",
    "segment_length",
    "state_names",
    "state_shape",
]


@dataclass(frozen=True)
class Tensor:
    """One input or output: element type and shape as text, and when it is present."""

    name: str
    dtype: str
    shape: str
    present: str
    doc: str


INPUTS: tuple[Tensor, ...] = (
    Tensor("query", "T", "[B, S, H*D]", "always", "after RoPE and query norm"),
    Tensor("key", "T", "[B, S, Hk*D]", "always", "after RoPE and key norm"),
    Tensor("value", "T", "[B, S, Hk*D]", "always", "as projected"),
    Tensor("past_lengths", "int32", "[B]", "always", "tokens in the cache before this call"),
    Tensor("total_lengths", "int32", "[B]", "always", "tokens after it; total-past rows are valid"),
    Tensor("attention_bias", "T", "[B or 1, H, S, C]", "has_bias", "added to the scaled scores"),
    Tensor("head_sink", "T", "[H]", "has_sink", "a logit per head that joins the softmax sum"),
    Tensor("key_decoder", "fp32|fp16", "[Hk, R, D]", "has_decoder", "from key code to vector"),
    Tensor("value_decoder", "fp32|fp16", "[Hk, R, D]", "has_decoder", "likewise for values"),
    Tensor("rope_frequencies", "fp32", "[D_rot/2]", "segmented", "angle per position and pair"),
    Tensor("key_encoder", "fp32|fp16", "[Hc, R, G*(Hk/Hc)*D]", "encodes", "from keys to code"),
    Tensor("key_step", "fp32", "[Hc, R]", "steps", "quantisation step per key component"),
    Tensor("value_encoder", "fp32|fp16", "[Hc, R, G*(Hk/Hc)*D]", "encodes", "likewise for values"),
    Tensor("value_step", "fp32", "[Hc, R]", "steps", "quantisation step per value component"),
    Tensor("key_delta_basis", "fp32|fp16", "[Hk, rank, D]", "delta_rank", "rows are orthonormal"),
    Tensor("value_delta_basis", "fp32|fp16", "[Hk, rank, D]", "delta_rank", "likewise for values"),
)

# State tensors follow the inputs above in this order, named past_minicache.{g}.NAME; the writer
# returns them in the same order, named present_minicache.{g}.NAME and bound to the same memory.
STATES: tuple[Tensor, ...] = (
    Tensor("key_code", "int8", "[B, Hc, C, key bytes]", "coded", "raw bytes of the key codes"),
    Tensor("value_code", "int8", "[B, Hc, C, value bytes]", "coded", "likewise for values"),
    Tensor("key_magnitude", "fp16", "[B, Hc, C, G or 1]", "coded", "sign bit: token is retained"),
    Tensor("value_magnitude", "fp16", "[B, Hc, C, G or 1]", "coded", "sign bit: token is retained"),
    Tensor("key_delta", "int8", "[B, Hc, C, delta bytes]", "deltas", "what the directions lack"),
    Tensor("value_delta", "int8", "[B, Hc, C, delta bytes]", "deltas", "likewise for values"),
    Tensor("key_delta_ratio", "fp16", "[B, Hc, C, 1]", "deltas", "delta's length to direction's"),
    Tensor("value_delta_ratio", "fp16", "[B, Hc, C, 1]", "deltas", "likewise for values"),
    Tensor("exact_key", "T|fp16", "[B, G, Hk, slots, D]", "always", "sinks, then the ring"),
    Tensor("exact_value", "T|fp16", "[B, G, Hk, slots, D]", "always", "sinks, then the ring"),
    Tensor("retained_key", "T|fp16", "[B, G, Hk, P, D]", "retains", "full keys of retained tokens"),
    Tensor("retained_value", "T|fp16", "[B, G, Hk, P, D]", "retains", "full values, likewise"),
    Tensor("retained_position", "int32", "[B, P]", "retains", "-1 (or a position not coded): free"),
    Tensor("retained_similarity", "fp32", "[B, P]", "retains", "mean cosine of the retained token"),
    Tensor("similarity_range", "fp32", "[B, X+1, 2]", "retains", "lowest, highest cosine up to c0"),
    Tensor("evicted", "int32", "[B, n+1]", "evicts", "tokens evicted below each segment's start"),
    Tensor("attention_mass", "fp32", "[B, C]", "observes", "attention that each slot got"),
)

# On the writer the new keys and values of slots 0..G-2 come last: k_0, v_0, k_1, v_1, ...
OUTPUT = Tensor("attention", "T", "[B, S, H*D]", "always", "padded and empty rows are zero")


def is_writer(attributes: Mapping[str, Any]) -> bool:
    """Whether the node encodes and returns the state of its group."""
    return bool(attributes["group_slot"] == attributes["group_size"] - 1)


def is_aligned(attributes: Mapping[str, Any]) -> bool:
    """Whether the node merges by ``slerp`` in a common basis (docs/operator.md, Aligned slerp)."""
    return bool(attributes["mode"] == "slerp" and attributes["has_decoder"])


def segment_length(attributes: Mapping[str, Any]) -> int:
    """L where the node's keys are coded relative to segments; else 0: one segment for all."""
    return int(attributes["segment_length"]) if _present("segmented", attributes) else 0


def _present(condition: str, attributes: Mapping[str, Any]) -> bool:
    subspace = attributes["mode"] == "subspace"
    calibrated = subspace or is_aligned(attributes)
    known = {
        "always": True,
        "coded": attributes["mode"] != "exact",
        "deltas": bool(delta_code(attributes)),
        "retains": attributes["mode"] == "slerp" and attributes["retention"] != "none",
        "segmented": calibrated and attributes["segment_length"] > 0,
        "encodes": calibrated and is_writer(attributes),
        "steps": subspace and is_writer(attributes),
    }
    return bool(known[condition] if condition in known else attributes[condition])


def state_names(attributes: Mapping[str, Any]) -> list[str]:
    """Names of the state tensors of a node's group, in input order."""
    return [state.name for state in STATES if _present(state.present, attributes)]


def input_names(attributes: Mapping[str, Any]) -> list[str]:
    """Names of a node's inputs in order; ``attributes`` are complete, with defaults."""
    names = [tensor.name for tensor in INPUTS if _present(tensor.present, attributes)]
    names += [f"past_{name}" for name in state_names(attributes)]
    others = range(attributes["group_size"] - 1) if is_writer(attributes) else ()
    return names + [f"{kind}_{slot}" for slot in others for kind in "kv"]


def output_names(attributes: Mapping[str, Any], threaded: bool = False) -> list[str]:
    """Names of a node's outputs: attention, then states of the writer, or ``threaded`` of all."""
    if not (threaded or is_writer(attributes)):
        return [OUTPUT.name]
    return [OUTPUT.name] + [f"present_{name}" for name in state_names(attributes)]
