"""Where a graph disagrees with the configuration beside it: the export follows the graph, loudly.

Exporters lose things: a sliding window (GenAI builder on Mistral, mobius on Gemma 3), the softcap
of attention scores (optimum on Gemma 2). Such a graph runs, and differs from the model that it was
made from. That is not ours to repair, the user may want exactly these logits, but it must not stay
hidden. Forms play no part here: only what was found of each site is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.attention_facts import Stated
from minicache.exporter.facts import ModelFacts
from minicache.exporter.layer_text import layers_text
from minicache.exporter.rope_facts import find_rope
from minicache.exporter.sites import AttentionSite, ModelDescription

FOLLOWS = "the export follows the graph"
OTHER_MODEL = "the configuration may be another model's"
DIFFER = "outputs differ from the original model's"
_PROJECTIONS = frozenset({"MatMul", "Gemm", "MatMulNBits"})

Found = tuple[Stated, str, str]  # what is stated, what the graph has, what comes of it


@dataclass(frozen=True)
class Deviation:
    """A disagreement: the layers that it is about (none: the whole model), and its sentence."""

    layers: tuple[int, ...]
    text: str


def deviations(description: ModelDescription, facts: ModelFacts) -> list[str]:
    """The sentences of ``find_deviations``."""
    return [deviation.text for deviation in find_deviations(description, facts)]


def find_deviations(description: ModelDescription, facts: ModelFacts) -> list[Deviation]:
    """One per disagreement and the layers that share it; empty where all agrees.

    Args:
        description: a model whose masks are proved, so that ``local_window`` is known.
        facts: what the files beside it say.
    """
    found = [Deviation((), text) for text in _of_model(description, facts)]
    checks: tuple[Callable[[AttentionSite, ModelFacts], Found | None], ...] = (
        _heads, _kv_heads, _head_dim, _window, _softcap, _scale, _rotary_dim, _theta
    )  # fmt: skip
    for check in checks:
        layers: dict[Found, list[int]] = {}
        for site in description.sites:
            if (one := check(site, facts)) is not None:
                layers.setdefault(one, []).append(site.layer)
        found += [Deviation(tuple(among), _sentence(one, among)) for one, among in layers.items()]
    return found


def _sentence(found: Found, layers: Sequence[int]) -> str:
    stated, graph, effect = found
    return (
        f"{stated.file} says {stated.text} for {layers_text(layers)}, {graph} there: "
        f"{FOLLOWS}; {effect}"
    )


def _of_model(description: ModelDescription, facts: ModelFacts) -> Iterable[str]:
    stated, count = facts.attention, len(description.sites)
    if (layers := stated.num_layers) is not None and layers.value != count:
        yield (
            f"{layers.file} says {layers.text}, the graph has {count} attention layers: "
            f"{FOLLOWS}; {OTHER_MODEL}"
        )
    if (vocabulary := stated.vocab_size) is not None and vocabulary.value != description.vocab_size:
        yield (
            f"{vocabulary.file} says {vocabulary.text}, the graph returns "
            f"{description.vocab_size} logits per token: {FOLLOWS}; its vocabulary may be padded"
        )
    if (cap := stated.final_softcap) is not None and _uncapped(description.logits):
        yield f"{cap.file} says {cap.text}, the graph does not cap its logits: {FOLLOWS}; {DIFFER}"


def _uncapped(logits: ir.Value) -> bool:
    """Whether logits come straight from a projection; other nodes may cap them in their own way."""
    for node in g.ancestors(logits, _PROJECTIONS):
        if node.op_type in _PROJECTIONS:
            return True
        if node.op_type not in ("Cast", "Identity", "Mul", "Div", "Add", "Reshape"):
            return False
    return False


def _heads(site: AttentionSite, facts: ModelFacts) -> Found | None:
    stated = facts.attention.num_heads
    if stated is None or stated.value == site.num_heads:
        return None
    return stated, f"the graph has {site.num_heads} query heads", OTHER_MODEL


def _kv_heads(site: AttentionSite, facts: ModelFacts) -> Found | None:
    stated = facts.attention.num_kv_heads
    if stated is None or stated.value == site.num_kv_heads:
        return None
    repeated = site.num_kv_heads == site.num_heads and not site.num_kv_heads % stated.value
    times = site.num_kv_heads / stated.value
    effect = f"its cache is {times:.0f} times as large as needed" if repeated else OTHER_MODEL
    return stated, f"the graph caches {site.num_kv_heads} kv heads", effect


def _head_dim(site: AttentionSite, facts: ModelFacts) -> Found | None:
    stated = facts.attention.head_dim
    if stated is None or stated.value == site.head_dim:
        return None
    return stated, f"the graph's heads have {site.head_dim} components", OTHER_MODEL


def _window(site: AttentionSite, facts: ModelFacts) -> Found | None:
    stated = facts.attention.window(site.layer)
    if stated is None:
        return None
    # A window that no text outgrows hides nothing.
    limit = facts.max_positions or math.inf
    wanted, own = (w if 0 < w < limit else 0 for w in (stated.value, site.local_window))
    if wanted == own:
        return None
    graph = (
        f"the graph attends to the last {site.local_window} tokens"
        if own
        else "the graph attends to everything"
    )
    beyond = min(w for w in (wanted, own) if w)
    return stated, graph, f"outputs beyond {beyond:.0f} tokens differ from the original model's"


def _softcap(site: AttentionSite, facts: ModelFacts) -> Found | None:
    stated = facts.attention.softcap
    if stated is None or math.isclose(stated.value, site.softcap, rel_tol=1e-3):
        return None
    has = f"a softcap of {site.softcap:g}" if site.softcap else "no softcap"
    return stated, f"the graph has {has}", DIFFER


def _scale(site: AttentionSite, facts: ModelFacts) -> Found | None:
    stated = facts.attention.scale
    if stated is None or math.isclose(stated.value, site.scale, rel_tol=1e-3):
        return None
    graph = f"which is a scale of {stated.value:.6g}, the graph has {site.scale:.6g}"
    return stated, graph, f"unless its weights make up for it, {DIFFER}"


def _rotary_dim(site: AttentionSite, facts: ModelFacts) -> Found | None:
    stated, rope = facts.attention.rotary, find_rope(site)
    if stated is None or rope is None or rope.rotary_dim is None:
        return None
    if int(stated.value * site.head_dim) == rope.rotary_dim:
        return None
    graph = f"the graph rotates {rope.rotary_dim} of {site.head_dim} components"
    return stated, graph, DIFFER


def _theta(site: AttentionSite, facts: ModelFacts) -> Found | None:
    stated, rope = facts.attention.theta(site.layer), find_rope(site)
    if stated is None or rope is None or len(rope.frequencies) < 2:
        return None
    if rope.has_base(stated.value):
        return None
    base = f"a base of {rope.base:.6g}" if rope.base else "other frequencies"
    return stated, f"the graph's RoPE has {base}", DIFFER
