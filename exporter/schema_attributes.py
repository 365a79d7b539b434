"""The attributes of ``com.minicache::MiniCacheAttention``: names, defaults, choices.

A part of the one schema table, which is ``minicache.exporter.schemas``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DOMAIN = "com.minicache"
OP_TYPE = "MiniCacheAttention"
VERSION = 1

MODES = ("exact", "slerp", "subspace")
MAGNITUDES = ("own", "upper", "blended")
RETENTIONS = ("none", "threshold", "minmax", "budget")
RETENTION_SCOPES = ("mean", "any-head")
CODE_LAYOUTS = ("row", "tile")
CODE_BITS = (16, 8, 4, 2)
DELTA_BITS = (16, 4, 2)
CAPACITY_MULTIPLE = 16  # tokens: one key tile


@dataclass(frozen=True)
class Attribute:
    """One node attribute: ``kind`` is int, float, string or ints; a default of None: required."""

    name: str
    kind: str
    default: Any
    doc: str


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("num_heads", "int", None, "query heads H"),
    Attribute("kv_num_heads", "int", None, "kv heads Hk, a divisor of H"),
    Attribute("head_size", "int", None, "head size D"),
    Attribute("code_heads", "int", 0, "code heads Hc, a divisor of Hk; 0 means Hk"),
    Attribute("mode", "string", "exact", "exact | slerp | subspace"),
    Attribute("group_slot", "int", 0, "this layer's place in its group, 0..G-1; G-1 writes"),
    Attribute("group_size", "int", 1, "layers of the group G"),
    Attribute("key_bits", "ints", (), "segments of the key code: bits, count, bits, count, ..."),
    Attribute("value_bits", "ints", (), "segments of the value code, likewise"),
    Attribute("code_layout", "string", "row", "row | tile: how codes lie in memory"),
    Attribute("slerp_t", "float", 0.6, "SLERP parameter t of the paper (Eq. 3)"),
    Attribute("magnitude", "string", "own", "own | upper | blended: what restores a layer"),
    Attribute("delta_bits", "int", 0, "bits of a pair's deltas: 16, 4 or 2; 0: none"),
    Attribute("delta_rank", "int", 0, "components of a pair's deltas in a basis; 0: none"),
    Attribute("retention", "string", "none", "none | threshold | minmax | budget"),
    Attribute("retention_threshold", "float", 0.9, "threshold: retain below this cosine"),
    Attribute("retention_gamma", "float", 0.05, "minmax: the paper's gamma"),
    Attribute("retention_scope", "string", "mean", "mean | any-head: how heads vote on a token"),
    Attribute("window", "int", 64, "recent tokens W that stay exact"),
    Attribute("sinks", "int", 4, "first tokens N that stay exact"),
    Attribute("ring_slots", "int", 128, "slots of the ring of recent tokens: W + rewind slack X"),
    Attribute("segment_length", "int", 0, "keys are coded relative to segments of L; 0 off"),
    Attribute("rotary_interleaved", "int", 0, "RoPE pairs are (2i, 2i+1), not (i, i+n/2)"),
    Attribute("scale", "float", 0.0, "score scale; 0 means 1/sqrt(D)"),
    Attribute("softcap", "float", 0.0, "scores become softcap*tanh(score/softcap); 0 off"),
    Attribute("local_window_size", "int", 0, "sliding window: visible iff 0 <= i-j < it; 0 off"),
    Attribute("key_head_permutation", "ints", (), "[G*Hk] head of layer g that joins code head h"),
    Attribute("value_head_permutation", "ints", (), "[G*Hk] likewise for values"),
    Attribute("has_bias", "int", 0, "attention_bias is present"),
    Attribute("has_sink", "int", 0, "head_sink is present"),
    Attribute("has_decoder", "int", 0, "key_decoder and value_decoder are present"),
    Attribute("evicts", "int", 0, "tokens may be evicted: the state evicted is present"),
    Attribute("observes", "int", 0, "queries per call that attention_mass adds up; -1: all"),
)

# Of TensorRT nodes, which are ``threaded``: each returns every state that it reads, for a chain.
PLUGIN_ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("plugin_namespace", "string", DOMAIN, "namespace of the plugin"),
    Attribute("plugin_version", "string", str(VERSION), "version of the plugin"),
    Attribute("carries_kernels", "int", 0, "this node takes the kernels into the engine"),
)


def attributes_with_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every attribute of the table, ``given`` values over the defaults.

    Raises:
        ValueError: an unknown attribute, a missing required one, or a value outside its choices.
    """
    known = {attribute.name for attribute in ATTRIBUTES + PLUGIN_ATTRIBUTES}
    if unknown := set(given) - known:
        raise ValueError(f"{OP_TYPE} has no attribute {sorted(unknown)[0]!r}")
    values: dict[str, Any] = {}
    for attribute in ATTRIBUTES:
        if attribute.default is None and attribute.name not in given:
            raise ValueError(f"{OP_TYPE} needs the attribute {attribute.name!r}")
        value = given.get(attribute.name, attribute.default)
        values[attribute.name] = tuple(value) if attribute.kind == "ints" else value
    choices = {"mode": MODES, "magnitude": MAGNITUDES, "retention": RETENTIONS}
    choices |= {"retention_scope": RETENTION_SCOPES, "code_layout": CODE_LAYOUTS}
    for name, allowed in choices.items():
        if values[name] not in allowed:
            raise ValueError(f"{OP_TYPE}: {name} is {values[name]!r}, not one of {allowed}")
    values["code_heads"] = values["code_heads"] or values["kv_num_heads"]
    values["scale"] = values["scale"] or values["head_size"] ** -0.5
    return values
