"""Reads ``AttentionFacts`` from transformers' ``config.json`` and GenAI's ``genai_config.json``.

A key that is missing, of the wrong type or out of range says nothing, and so does a model type
whose rule of sliding layers is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from minicache.exporter.attention_facts import FULL, SLIDING, AttentionFacts, Stated

CONFIG, GENAI = "config.json", "genai_config.json"
SMALLEST, LARGEST = 1e-6, 1e12  # of any number here; beyond is damage
MOST_LAYERS = 10_000
# Older files leave it to the code of the model type: layer i is full where i + 1 is a multiple.
_PATTERNS = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
# Model types whose every layer slides where a window is given and no layer is named.
_ALL_SLIDE = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
_PLAIN_ROPE = (None, "default")


def read_attention_facts(config: Mapping[str, Any], genai: Mapping[str, Any]) -> AttentionFacts:
    """Reads both files; ``config.json``, which is the original model's, goes first.

    Args:
        config: of ``config.json``, the decoder's section merged in.
        genai: the section ``model`` of ``genai_config.json``.
    """
    outer, builder = _File(config, CONFIG), _File(genai, GENAI)
    inner = builder.section("decoder")
    sliding = _sliding(outer)
    return AttentionFacts(
        num_layers=_num_layers(outer) or inner.size("num_hidden_layers"),
        num_heads=outer.size("num_attention_heads", "n_head", "n_heads")
        or inner.size("num_attention_heads"),
        num_kv_heads=outer.size("num_key_value_heads") or inner.size("num_key_value_heads"),
        head_dim=outer.size("head_dim") or inner.size("head_size"),
        vocab_size=outer.size("vocab_size") or builder.size("vocab_size"),
        scale=_scale(outer),
        softcap=outer.number_or_null("attn_logit_softcapping"),
        final_softcap=outer.number("final_logit_softcapping"),
        rotary=outer.number("partial_rotary_factor", "rotary_pct")
        or outer.section("rope_parameters").number("partial_rotary_factor"),
        thetas=_thetas(outer),
        **(_genai_sliding(inner) if sliding["sliding"] is None else sliding),
    )


class _File:
    """The keys of one file; each look-up gives None for what is no such thing."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self.name = values, name

    def number(self, *keys: str) -> Stated | None:
        """The first of the keys that has a positive number."""
        for key in keys:
            value = self.values.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if SMALLEST < value < LARGEST:
                text = f"{value:.0f}" if value == int(value) else f"{value:g}"
                return Stated(value, f"{key} {text}", self.name)
        return None

    def size(self, *keys: str) -> Stated | None:
        """Likewise a whole number."""
        whole = [key for key in keys if isinstance(self.values.get(key), int)]
        return self.number(*whole)

    def number_or_null(self, key: str) -> Stated | None:
        """A positive number, or the value 0 where the file says null."""
        if key in self.values and self.values[key] is None:
            return Stated(0, f"{key} null", self.name)
        return self.number(key)

    def strings(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        whole = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return tuple(value) if whole and value else ()

    def section(self, key: str) -> _File:
        value = self.values.get(key)
        return _File(value if isinstance(value, dict) else {}, self.name)


def _attending(file: _File) -> tuple[str, ...]:
    """Types of the layers that attend: hybrids have recurrent ones between them."""
    types = file.strings("layer_types") or file.strings("attention_layers")
    return tuple(kind for kind in types if kind in (*SLIDING, *FULL, "chunked_attention"))


def _num_layers(file: _File) -> Stated | None:
    """Layers with a cache of their own: neither recurrent ones nor those that share one."""
    stated = file.size("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    attending = len(_attending(file))
    if 0 < attending < len(file.strings("layer_types")):
        return Stated(attending, f"{attending} attention layers", file.name)
    shared = file.size("num_kv_shared_layers")
    if stated is None or shared is None:
        return stated
    return Stated(stated.value - shared.value, f"{stated.text}, {shared.text}", file.name)


def _scale(file: _File) -> Stated | None:
    base = file.number("query_pre_attn_scalar")
    if base is not None:
        return Stated(1 / math.sqrt(base.value), base.text, file.name)
    return file.number("attention_multiplier")


def _sliding(file: _File) -> dict[str, Any]:
    """The facts of ``AttentionFacts.window``: the window, and what says which layers slide."""
    types, model_type = _attending(file), file.values.get("model_type")
    window = file.number_or_null("sliding_window")
    if file.strings("attention_layers"):
        window = file.size("window_size")
    if file.values.get("use_sliding_window") is False:
        window = Stated(0, "use_sliding_window false", file.name)
    elif window is None and set(types) == {"full_attention"}:
        window = Stated(0, "full attention", file.name)
    known: dict[str, Any] = {"sliding": window}
    pattern = file.size("sliding_window_pattern", "_sliding_window_pattern")
    first = file.values.get("max_window_layers")
    if types:
        known["layer_types"] = types
    elif pattern is not None:
        known["pattern"] = int(pattern.value)
    elif isinstance(model_type, str) and model_type in _PATTERNS:
        known["pattern"] = _PATTERNS[model_type]
    elif file.values.get("use_sliding_window") is True:
        known["first_sliding"] = first if type(first) is int else None
    elif isinstance(model_type, str) and model_type in _ALL_SLIDE:
        known["first_sliding"] = 0
    return known


def _genai_sliding(file: _File) -> dict[str, Any]:
    """The builder lists sliding layers; a section without a list is about chunks of a prompt."""
    section, count = file.section("sliding_window"), file.size("num_hidden_layers")
    layers, size = section.values.get("layers"), section.size("window_size")
    if not isinstance(layers, list) or size is None or count is None:
        return {}
    slide = {layer for layer in layers if type(layer) is int}
    every = range(min(int(count.value), MOST_LAYERS))
    types = [SLIDING[0] if layer in slide else FULL[0] for layer in every]
    window = Stated(size.value, f"a sliding window of {size.value:g}", file.name)
    return {"sliding": window, "layer_types": tuple(types)}


def _thetas(file: _File) -> dict[str, Stated]:
    """Bases by type of layer, without those of scaled frequencies."""
    parameters = file.section("rope_parameters")
    kinds = (SLIDING[0], FULL[0])
    found: dict[str, Stated | None]
    if any(kind in parameters.values for kind in kinds):
        found = {kind: _theta(parameters.section(kind)) for kind in kinds}
    elif (local := file.number("rope_local_base_freq")) is not None:
        found = {SLIDING[0]: local, FULL[0]: _theta(file)}
    else:
        found = {"": _theta(parameters if parameters.values else file)}
    return {kind: theta for kind, theta in found.items() if theta is not None}


def _theta(file: _File) -> Stated | None:
    scaling = file.section("rope_scaling").values
    types = (file.values.get("rope_type"), scaling.get("rope_type"), scaling.get("type"))
    plain = all(kind in _PLAIN_ROPE for kind in types)
    return file.number("rope_theta", "rotary_emb_base") if plain else None
