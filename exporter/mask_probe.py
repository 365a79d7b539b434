"""Proves what a mask is by computing it.

Normalising drops the mask nodes of the graph, so it must be certain that they mean "causal" or
"causal within a sliding window" and nothing else. The nodes differ between exporters and versions;
their result does not. So the part that computes the masks is cut out and run twice: a short prefill
on top of a past, and one step after a long past.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from minicache.exporter.facts import ModelFacts
from minicache.exporter.probe import evaluate
from minicache.exporter.sites import AttentionSite, MaskUse, ModelDescription
from minicache.runtime.errors import UnsupportedModelError

# A masked score is at most this (exporters use -inf, the smallest float, -65504 or -10000).
HIDDEN = -9999.0
LONGEST_PAST = 16384


def _kind(value: ir.Value) -> np.dtype[Any]:
    return np.dtype(np.int64 if value.dtype is None else value.dtype.numpy())


def token_feeds(
    description: ModelDescription, batch: int, past: int, new: int
) -> dict[ir.Value, np.ndarray]:
    """Inputs of the original graph for ``new`` tokens after ``past``; nothing is padded."""
    ids = description.input_ids
    feeds = {ids: np.zeros((batch, new), _kind(ids))}
    if (mask := description.attention_mask) is not None:
        feeds[mask] = np.ones((batch, past + new), _kind(mask))
    if (positions := description.position_ids) is not None:
        row = np.arange(past, past + new, dtype=_kind(positions))
        feeds[positions] = np.broadcast_to(row, (batch, new)).copy()
    for site in description.sites:
        # np.zeros takes address space only: nobody reads more than the shape.
        zeros = np.zeros((batch, site.num_kv_heads, past, site.head_dim), site.dtype.numpy())
        feeds[site.past_key] = feeds[site.past_value] = zeros
    return feeds


def position_feeds(
    description: ModelDescription, positions: ir.Value, batch: int, past: int, new: int
) -> dict[ir.Value, np.ndarray]:
    """As ``token_feeds`` where ``positions`` [B, S] have taken the place of ``position_ids``."""
    row = np.arange(past, past + new, dtype=np.int64)
    given = np.broadcast_to(row, (batch, new)).copy()
    return token_feeds(description, batch, past, new) | {positions: given}


def _mask_feeds(description: ModelDescription, past: int, new: int) -> dict[ir.Value, np.ndarray]:
    """Cuts the graph at queries, keys and grown caches too: masks read only their shapes."""
    feeds = token_feeds(description, 1, past, new)
    for site in description.sites:
        kind = site.dtype.numpy()
        if site.layout == "packed":
            continue
        for value in (site.present_key, site.present_value):
            grown = np.zeros((1, site.num_kv_heads, past + new, site.head_dim), kind)
            producer = value.producer()
            feeds[value] = grown
            if producer is not None and producer.op_type == "Identity" and producer.inputs[0]:
                feeds[producer.inputs[0]] = grown
        heads, size = site.num_heads, site.head_dim
        four = (site.query_layout or site.layout) == "BHSD"
        feeds[site.query] = np.zeros(
            (1, heads, new, size) if four else (1, new, heads * size), kind
        )
    return feeds


def _visible(mask: np.ndarray, use: MaskUse, new: int, total: int) -> np.ndarray:
    """A mask as booleans [..., new, total].

    Raises:
        UnsupportedModelError: the mask adds numbers that are neither 0 nor "hidden".
    """
    if use.kind == "add" or (use.kind == "add or keep" and mask.dtype != bool):
        numbers = mask.astype(np.float64)
        hidden = numbers <= HIDDEN
        bias = numbers[(numbers != 0) & ~hidden]
        if bias.size:
            raise UnsupportedModelError(
                f"{use.node} adds {bias.flat[0]:g} to attention scores: a position bias (ALiBi or "
                "relative positions), which is not supported; only causal and sliding masks are"
            )
        visible = ~hidden
    else:
        visible = mask.astype(bool) if use.kind != "drop" else ~mask.astype(bool)
    rows = np.broadcast_to(visible, np.broadcast_shapes(visible.shape, (1, 1, new, total)))
    return rows.reshape(-1, new, total)


def _causal(past: int, new: int, window: int) -> np.ndarray:
    distance = past + np.arange(new)[:, None] - np.arange(past + new)[None, :]
    return (distance >= 0) & ((distance < window) if window else True)


class _Prober:
    """Runs all masks of a model for one (past, new) at a time and keeps the results."""

    def __init__(self, model: ir.Model, description: ModelDescription) -> None:
        self.model, self.description = model, description
        uses = [use for site in description.sites for use in site.masks]
        self.values = list(dict.fromkeys(use.value for use in uses))

    def run(self, past: int, new: int) -> Mapping[ir.Value, np.ndarray]:
        if not self.values:
            return {}
        feeds = _mask_feeds(self.description, past, new)
        return dict(zip(self.values, evaluate(self.model, self.values, feeds), strict=True))


def _combined(
    site: AttentionSite, masks: Mapping[ir.Value, np.ndarray], past: int, new: int
) -> np.ndarray:
    total = past + new
    visible = np.ones((1, new, total), bool)
    for use in site.masks:
        try:
            visible = visible & _visible(masks[use.value], use, new, total)
        except ValueError as error:
            raise UnsupportedModelError(
                f"{use.node} applies a mask of shape {masks[use.value].shape} where "
                f"[..., {new}, {total}] was expected; report this graph"
            ) from error
    return visible


def _prompt_only(
    prober: _Prober, error: UnsupportedModelError
) -> list[Mapping[ir.Value, np.ndarray]]:
    """Masks of a prompt: those of some graphs are square, or one row (GenAI's fp16 for CPUs).

    Raises:
        UnsupportedModelError: ``error``, where these cannot be computed either.
    """
    try:
        return [prober.run(0, 16)]
    except UnsupportedModelError:
        raise error from None


def _long_past(facts: ModelFacts) -> int:
    """Cached tokens behind which a window shows, if there is one.

    Some graphs compute masks of all pairs, so that no more are probed than need be: a window beyond
    ``LONGEST_PAST`` is looked for where the configuration has one.
    """
    stated = facts.attention.sliding
    window = int(stated.value) if stated is not None else 0
    limit = max(LONGEST_PAST, window + 2)
    return max(32, min(facts.max_positions or limit, limit) - 1)


def probe_masks(model: ir.Model, description: ModelDescription, facts: ModelFacts) -> None:
    """Proves every site's mask and sets its ``local_window``.

    Raises:
        UnsupportedModelError: a mask is neither causal nor causal with a sliding window.
    """
    prober = _Prober(model, description)
    long_past = _long_past(facts)
    shapes = [(7, 9), (long_past, 1)]
    try:
        results = [prober.run(*shapes[0])]
    except UnsupportedModelError as error:
        shapes[0] = (0, 16)
        results = _prompt_only(prober, error)
        description.notes.append(
            "the original takes several tokens at once only while its cache is empty; the export "
            "takes them at any time"
        )
    results.append(prober.run(*shapes[1]))
    for site in description.sites:
        # Where the node is causal, and states its window, a mask may only narrow it.
        inherent = site.causal
        if not inherent and not site.masks:
            raise UnsupportedModelError(
                f"{site.node} (layer {site.layer}) applies no mask: the graph is not causal or "
                "takes one token at a time; export it with an attention mask"
            )
        if not site.masks:
            continue
        limit = site.local_window if inherent else 0
        step = _combined(site, results[1], *shapes[1])
        if inherent:
            step = step & _causal(*shapes[1], limit)
        seen = int(step[0, 0].sum())
        window = 0 if seen > long_past else seen
        for (past, new), masks in zip(shapes, results, strict=True):
            visible = _combined(site, masks, past, new)
            if inherent:
                visible = visible & _causal(past, new, limit)
            if not (visible == _causal(past, new, window)).all():
                raise UnsupportedModelError(
                    f"The mask of {site.node} (layer {site.layer}) is neither causal nor a sliding "
                    f"window: with {past} cached and {new} new tokens, new token 0 sees "
                    f"{int(visible[0, 0].sum())} tokens; such attention is not supported"
                )
        site.local_window = window
