"""Finds the attention of a model: a graph walk that gives one ``AttentionSite`` per layer."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from minicache.exporter import graph as g
from minicache.exporter.deviations import deviations
from minicache.exporter.facts import ModelFacts
from minicache.exporter.forms import (
    attention,
    concat_attention,
    decomposed,
    group_query,
    multi_head,
    unsupported,
)
from minicache.exporter.forms.grown_cache import Mismatch, find_grown_caches
from minicache.exporter.mask_probe import probe_masks
from minicache.exporter.sites import AttentionSite, ModelDescription
from minicache.runtime.errors import UnsupportedModelError

# Unsqueeze takes its axes as an input from here on, and so do the nodes that we add.
OLDEST_OPSET = 13
LARGEST = 131072  # heads of a layer times their size
DTYPES = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
}


def find_attention(model: ir.Model, facts: ModelFacts | None = None) -> ModelDescription:
    """Understands a model's attention and cache.

    Args:
        model: the model; its graph stays as it is, value types are filled in.
        facts: what the files beside the model say.

    Raises:
        UnsupportedModelError: with the pattern tried, what was found instead, where, and a remedy.
    """
    facts = facts or ModelFacts()
    description = find_sites(model, facts)
    probe_masks(model, description, facts)
    description.notes += deviations(description, facts)
    return description


def find_sites(model: ir.Model, facts: ModelFacts) -> ModelDescription:
    """Finds the sites without proving their masks: all that running the original needs.

    Raises:
        UnsupportedModelError: as ``find_attention``, but for masks.
    """
    opset = model.opset_imports.get("", 0)
    if opset < OLDEST_OPSET:
        raise UnsupportedModelError(
            f"The graph has opset {opset}, this exporter needs {OLDEST_OPSET} or newer; "
            "export it again with `--opset 18`"
        )
    unsupported.refuse_inputs(model)
    unsupported.refuse_known(model)
    inputs = len(model.graph.inputs)
    common_passes.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    if len(model.graph.inputs) != inputs:  # what onnx_ir leaves when it cannot write the graph
        raise UnsupportedModelError(
            "The graph holds something that cannot be written again; the file is damaged: copy or "
            "export it again"
        )
    sites = _match(model, facts)
    if not sites:
        raise unsupported.refuse_no_cache(model)
    _number(sites)
    _check(model, sites)
    by_name = {value.name: value for value in model.graph.inputs}
    logits = _logits(model, sites)
    description = ModelDescription(
        form="+".join(sorted({site.form for site in sites})),
        sites=sites,
        dtype=DTYPES[sites[0].dtype],
        input_ids=by_name["input_ids"],
        attention_mask=by_name.get("attention_mask"),
        position_ids=by_name.get("position_ids"),
        logits=logits,
        vocab_size=g.static_dim(logits, 2) or facts.vocab_size or 0,
        fixed_batch=g.static_dim(by_name["input_ids"], 0) or 0,
    )
    _check_sizes(description)
    if not description.vocab_size:
        raise UnsupportedModelError(
            f"The output {logits.name!r} has no fixed vocabulary size; "
            "put config.json beside the model"
        )
    return description


def _check_sizes(description: ModelDescription) -> None:
    """Refuses graphs made for one batch size, one call length or one cache length."""
    remedy = f"export the model with dynamic axes, e.g. {unsupported.EXPORT}"
    ids, past = description.input_ids, description.sites[0].past_key
    if description.fixed_batch > 1:
        raise UnsupportedModelError(
            f"The graph takes batches of exactly {description.fixed_batch} rows; {remedy}"
        )
    for value, axis, what in ((ids, 1, "tokens per call"), (past, 2, "cached tokens")):
        size = g.static_dim(value, axis)
        if size is not None:
            raise UnsupportedModelError(
                f"The input {value.name!r} is made for exactly {size} {what}; {remedy}"
            )


def _match(model: ir.Model, facts: ModelFacts) -> list[AttentionSite]:
    """The sites of all forms; layers of one model may have different ones."""
    try:
        caches = find_grown_caches(model)
    except Mismatch as mismatch:
        raise mismatch.refusal("attention over Concat(past, new) (F1, F2, F5)") from None
    return [
        *group_query.match(model, facts),
        *attention.match(model),
        *decomposed.match(caches),
        *concat_attention.match(caches),
        *multi_head.match(model, caches),
    ]


def _number(sites: list[AttentionSite]) -> None:
    """Gives sites their layer index: the number in the cache's name, else the order found."""
    numbers = [g.input_index(site.past_key.name) for site in sites]
    usable = all(number is not None for number in numbers) and len(set(numbers)) == len(sites)
    for order, (site, number) in enumerate(zip(sites, numbers, strict=True)):
        site.layer = number if usable and number is not None else order
    sites.sort(key=lambda site: site.layer)
    for layer, site in enumerate(sites):
        site.layer = layer


def _check(model: ir.Model, sites: list[AttentionSite]) -> None:
    for site in sites:
        if site.dtype not in DTYPES:
            raise UnsupportedModelError(
                f"{site.past_key.name!r} has type {site.dtype.name}; only fp32, fp16 and bf16 "
                "caches are supported: export the model without a quantised cache"
            )
        for past in (site.past_key, site.past_value):
            heads, size = g.static_dim(past, 1), g.static_dim(past, 3)
            if heads not in (None, site.num_kv_heads) or size not in (None, site.head_dim):
                raise UnsupportedModelError(
                    f"The cache input {past.name!r} has {heads or '?'} heads of {size or '?'}, but "
                    f"{site.node} has {site.num_kv_heads} of {site.head_dim}: the graph does not "
                    f"fit its own attention; export the model again with {unsupported.EXPORT}"
                )
        if max(site.num_heads, site.num_kv_heads) * site.head_dim > LARGEST:
            raise UnsupportedModelError(
                f"{site.node} has {site.num_heads} query heads and {site.num_kv_heads} kv heads of "
                f"size {site.head_dim}, more than {LARGEST} numbers per token; the graph is "
                "damaged: copy or export it again"
            )
        if site.num_heads < 1 or site.num_heads % site.num_kv_heads:
            raise UnsupportedModelError(
                f"{site.node} has {site.num_heads} query heads, no multiple of its "
                f"{site.num_kv_heads} kv heads; report this graph"
            )
    for site in sites:
        for present in (site.present_key, site.present_value):
            _check_alone(site, present)
    used = {value for site in sites for value in (site.past_key, site.past_value)}
    for value in model.graph.inputs:
        if value not in used and len(value.shape or ()) == 4 and "past" in (value.name or ""):
            readers = [node for node, _ in g.data_uses(value)]
            raise UnsupportedModelError(
                f"The cache input {value.name!r} is read by "
                f"{g.describe(readers[0]) if readers else 'nothing'}, not by an attention that was "
                f"understood; export the model again with {unsupported.EXPORT}"
            )


def _check_alone(site: AttentionSite, present: ir.Value) -> None:
    """Refuses a cache that another layer reads, too, where the node of the site grows it."""
    writer = present.producer()
    if writer is None or writer.op_type in ("Concat", "Identity", "Cast"):
        return  # the walk from the Concat has met every reader
    for node, _ in g.data_uses(present):
        if not node.outputs[0].is_graph_output():
            raise UnsupportedModelError(
                f"{present.name!r}, the cache of {site.node}, is read by {g.describe(node)}, too: "
                "a cache shared by several layers (as of Gemma 3n and 4) is not supported"
            )


def _logits(model: ir.Model, sites: list[AttentionSite]) -> ir.Value:
    present = {value for site in sites for value in (site.present_key, site.present_value)}
    others = [value for value in model.graph.outputs if value not in present]
    named = [value for value in others if value.name == "logits"] or others
    if not named:
        raise UnsupportedModelError(
            "The graph returns no logits beside its cache; export it with the language model head"
        )
    return named[0]
