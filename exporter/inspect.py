"""What the exporter finds in a model, for ``minicache inspect``: no rewriting, no output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minicache.exporter.find_attention import find_attention
from minicache.exporter.io import find_model_file, load_model, read_facts, weight_bytes
from minicache.exporter.sites import DECOMPOSED, AttentionSite

FORMS = {
    "F1": "F1: MatMul/Softmax attention over Concat(past, new)",
    "F4": "F4: com.microsoft GroupQueryAttention",
}


def inspect_model(path: Path | str) -> dict[str, Any]:
    """Describes a model.

    Args:
        path: the model, or its folder.

    Returns:
        Facts that JSON can hold; ``layers`` has one line per run of equal layers.

    Raises:
        MiniCacheError: as ``load_model`` and ``find_attention``.
    """
    file = find_model_file(path)
    model, facts = load_model(file), read_facts(file)
    description = find_attention(model, facts)
    sites = description.sites
    bytes_per_token = sum(2 * s.num_kv_heads * s.head_dim * s.dtype.itemsize for s in sites)
    return {
        "file": str(file),
        "form": FORMS[description.form],
        "opset": model.opset_imports.get("", 0),
        "dtype": description.dtype,
        "weights_mb": round(weight_bytes(model) / 1e6, 1),
        "vocab_size": description.vocab_size,
        "max_positions": facts.max_positions,
        "num_layers": len(sites),
        "kv_bytes_per_token": int(bytes_per_token),
        "layers": _layers(sites),
        "notes": list(description.notes),
    }


def _line(site: AttentionSite) -> str:
    parts = [f"{site.num_heads} query heads, {site.num_kv_heads} kv heads of {site.head_dim}"]
    parts.append(f"scale {site.scale:.6g}")
    if site.rope is not None:
        pairs = "interleaved" if site.rope.interleaved else "half-split"
        parts.append(f"RoPE over {site.rope.rotary_dim} ({pairs}) inside the op")
    elif site.rope_key:
        parts.append("RoPE before the cache")
    elif site.form == DECOMPOSED:
        parts.append("no RoPE found")
    parts.append(f"sliding window {site.local_window}" if site.local_window else "full attention")
    if site.softcap:
        parts.append(f"softcap {site.softcap:g}")
    if site.head_sink is not None:
        parts.append("head sinks")
    return ", ".join(parts)


def _layers(sites: list[AttentionSite]) -> list[str]:
    """Runs of layers with the same description, e.g. ``0-3: 9 query heads, ...``."""
    lines: list[tuple[int, int, str]] = []
    for site in sites:
        text = _line(site)
        if lines and lines[-1][2] == text:
            lines[-1] = (lines[-1][0], site.layer, text)
        else:
            lines.append((site.layer, site.layer, text))
    return [f"{a}: {text}" if a == b else f"{a}-{b}: {text}" for a, b, text in lines]
