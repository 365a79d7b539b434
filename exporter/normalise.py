"""Turns a model into the exact-cache form: same logits, cache in fixed in-place buffers.

The result reads ``input_ids`` (right-padded), ``past_lengths``, ``total_lengths``,
``logit_positions`` and the state of one ``MiniCacheAttention`` per layer; mask and position inputs
are gone. ``parity`` proves the result against the original.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from minicache.exporter.facts import ModelFacts
from minicache.exporter.find_attention import find_attention
from minicache.exporter.io import model_facts
from minicache.exporter.passes.add_runtime_inputs import AddRuntimeInputsPass, RuntimeInputs
from minicache.exporter.passes.drop_empty_rows import DropEmptyRowsPass
from minicache.exporter.passes.gather_logits import GatherLogitsPass
from minicache.exporter.passes.remove_old_inputs import RemoveOldInputsPass
from minicache.exporter.passes.replace_attention import ReplaceAttentionPass
from minicache.exporter.passes.replace_positions import ReplacePositionsPass
from minicache.exporter.sites import ModelDescription
from minicache.runtime.errors import MiniCacheError


@dataclass
class LayerSite:
    """One attention layer of the normalised graph.

    Attributes:
        layer: layer index; ``group`` index of its state too, while every group is one layer.
        node: its ``MiniCacheAttention`` node, ``mode`` exact, inputs in schema order.
        num_heads: query heads H.
        num_kv_heads: kv heads Hk.
        head_dim: head size D.
        local_window: sliding window; 0 when off.
        kind: layers of different kind must not share a group.
    """

    layer: int
    node: ir.Node
    num_heads: int
    num_kv_heads: int
    head_dim: int
    local_window: int
    kind: tuple[int | str, ...]


@dataclass
class NormalisedModel:
    """The normalised graph and what the planner needs to know of it.

    Attributes:
        model: the graph, changed in place.
        layers: its attention layers by index.
        dtype: type of model and cache: fp32, fp16 or bf16.
        vocab_size: last dimension of the logits.
        fixed_batch: 1 where the graph takes one row only; 0: any number.
        form: graph form of the original, as in ``sites``.
        notes: remarks for the report.
    """

    model: ir.Model
    layers: list[LayerSite]
    dtype: str
    vocab_size: int
    form: str
    fixed_batch: int = 0
    notes: list[str] = field(default_factory=list)


def run_passes(model: ir.Model, passes: list[ir.passes.InPlacePass]) -> None:
    """Runs passes in order; an error of the product's own family surfaces as itself."""
    for one in passes:
        try:
            one(model)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, MiniCacheError):
                cause = cause.__cause__
            if cause is None:
                raise
            raise cause from None


def normalise(model: ir.Model, facts: ModelFacts | None = None) -> NormalisedModel:
    """Rewrites ``model`` in place.

    Args:
        model: a loaded model of any supported form.
        facts: what the files beside the model say; None: read them where ``load_model`` read it.

    Raises:
        UnsupportedModelError: the model is of no supported form; it may be half rewritten then.
    """
    return rewrite(model, find_attention(model, facts or model_facts(model)))


def rewrite(model: ir.Model, description: ModelDescription) -> NormalisedModel:
    """Rewrites ``model``, whose attention ``find_attention`` found, in place.

    Raises:
        UnsupportedModelError: a part around the attention is not understood.
    """
    inputs = RuntimeInputs()
    replace = ReplaceAttentionPass(description, inputs)
    run_passes(
        model,
        [
            AddRuntimeInputsPass(description, inputs),
            replace,
            DropEmptyRowsPass(description, inputs),
            ReplacePositionsPass(description, inputs),
            GatherLogitsPass(description, inputs),
            RemoveOldInputsPass(description),
        ],
    )
    common_passes.TopologicalSortPass()(model)
    layers = [
        LayerSite(
            layer=site.layer,
            node=node,
            num_heads=site.num_heads,
            num_kv_heads=site.num_kv_heads,
            head_dim=site.head_dim,
            local_window=site.local_window,
            kind=(
                site.num_heads,
                site.num_kv_heads,
                site.head_dim,
                site.local_window,
                site.rope_key,
            ),
        )
        for site, node in zip(description.sites, replace.nodes, strict=True)
    ]
    return NormalisedModel(
        model,
        layers,
        description.dtype,
        description.vocab_size,
        description.form,
        description.fixed_batch,
        _notes(description),
    )


def _notes(description: ModelDescription) -> list[str]:
    windows: dict[int, list[int]] = {}
    for site in description.sites:
        if site.local_window:
            windows.setdefault(site.local_window, []).append(site.layer)
    sliding = [
        f"layers {', '.join(map(str, layers))}: sliding window {window}"
        for window, layers in windows.items()
    ]
    return [*description.notes, *sliding]
