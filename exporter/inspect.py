"""What the exporter finds in a model, for ``minicache inspect``: nothing is run, nothing written.

It goes the way of an export up to the proof of parity, so that it refuses what an export refuses,
with the same sentence.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir

from minicache.exporter.deviations import find_deviations
from minicache.exporter.facts import ModelFacts
from minicache.exporter.find_attention import DTYPES, find_attention
from minicache.exporter.inspect_layers import layer_facts
from minicache.exporter.inspect_merge import layer_notes, merge_kinds, mode_facts, target_facts
from minicache.exporter.io import find_model_file, load_model, read_facts, weight_bytes
from minicache.exporter.normalise import rewrite
from minicache.exporter.sites import ModelDescription

SCHEMA = 1  # of the dictionary; docs/models.md describes it
FORMS = {
    "F1": "MatMul and Softmax over Concat(past, new)",
    "F2": "ai.onnx Attention over Concat(past, new)",
    "F3": "ai.onnx Attention with past and present",
    "F4": "com.microsoft GroupQueryAttention",
    "F5": "com.microsoft MultiHeadAttention over Concat(past, new)",
}


def inspect_model(path: Path | str) -> dict[str, Any]:
    """Describes a model.

    Args:
        path: the model, or its folder.

    Returns:
        Facts that JSON can hold, with the keys that docs/models.md describes.

    Raises:
        MiniCacheError: as ``export_model`` up to its proof of parity.
    """
    file = find_model_file(path)
    model, facts = load_model(file), read_facts(file)
    description = find_attention(model, facts)
    found = _model_facts(file, model, description, facts)
    layers = layer_facts(description)
    deviating = find_deviations(description, facts)
    normalised = rewrite(model, description)
    kinds = merge_kinds(normalised.layers)
    modes = mode_facts(normalised.layers, facts, file.parent)
    notes = layer_notes(kinds, modes, deviating)
    for layer in layers:
        number = layer["layer"]
        layer["kind"] = next(n for n, kind in enumerate(kinds) if number in kind["layers"])
        layer["notes"] = notes.get(number, [])
    return {
        **found,
        "layers": layers,
        "kinds": kinds,
        "modes": modes,
        "targets": target_facts(normalised),
        "notes": list(description.notes),
    }


def _model_facts(
    file: Path, model: ir.Model, description: ModelDescription, facts: ModelFacts
) -> dict[str, Any]:
    sites = description.sites
    forms = sorted({site.form for site in sites})
    elements = sum(2 * site.num_kv_heads * site.head_dim * site.dtype.itemsize for site in sites)
    return {
        "schema": SCHEMA,
        "file": str(file),
        "form": "+".join(forms),
        "form_text": "; ".join(FORMS.get(form, form) for form in forms),
        "model_type": facts.model_type,
        "producer": {"name": model.producer_name or "", "version": model.producer_version or ""},
        "ir_version": model.ir_version,
        "opset": model.opset_imports.get("", 0),
        "opsets": {domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        "dtype": description.dtype,
        "weights_mb": round(weight_bytes(model) / 1e6, 1),
        "weights_mb_by_type": _weights_by_type(model),
        "vocab_size": description.vocab_size,
        "max_positions": facts.max_positions,
        "num_layers": len(sites),
        "kv_bytes_per_token": int(elements),
    }


def _weights_by_type(model: ir.Model) -> dict[str, float]:
    """Megabytes of initializers by element type, the largest first; packed ones are uint8."""
    found: Counter[str] = Counter()
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            kind = value.const_value.dtype
            found[DTYPES.get(kind, kind.name.lower())] += value.const_value.nbytes
    return {name: round(size / 1e6, 3) for name, size in found.most_common()}
