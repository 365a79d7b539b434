"""What ``inspect`` tells of each attention layer: facts of its site, JSON-ready."""

from __future__ import annotations

from typing import Any

from minicache.exporter.rope_facts import find_rope
from minicache.exporter.sites import AttentionSite, ModelDescription


def layer_facts(description: ModelDescription) -> list[dict[str, Any]]:
    """One dictionary per layer; the graph must still be the original one."""
    return [_facts(site) for site in description.sites]


def _facts(site: AttentionSite) -> dict[str, Any]:
    rope = find_rope(site)
    base = None if rope is None else rope.base
    return {
        "layer": site.layer,
        "form": site.form,
        "node": site.node,
        "num_heads": site.num_heads,
        "num_kv_heads": site.num_kv_heads,
        "head_dim": site.head_dim,
        "scale": site.scale,
        "rope": None
        if rope is None
        else {
            "where": rope.where,
            "rotary_dim": rope.rotary_dim,
            "interleaved": rope.interleaved,
            "base": None if base is None else float(f"{base:.5g}"),
        },
        "local_window": site.local_window,
        "softcap": site.softcap,
        "head_sink": site.head_sink is not None,
        "masks": [use.node for use in site.masks],
        "causal_operator": site.causal,
        "cached": {"key": site.past_key.name, "value": site.past_value.name},
        "kv_bytes_per_token": 2 * site.num_kv_heads * site.head_dim * int(site.dtype.itemsize),
    }
