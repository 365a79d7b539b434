"""The whole operator: what one ``com.minicache::MiniCacheAttention`` node computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference.attend import attention_weights, cached_tokens, weighted_values
from minicache.plugins.reference.checks import check_attributes, check_lengths, check_shapes
from minicache.plugins.reference.encode import write_row
from minicache.plugins.reference.eviction import add_mass, slot_map
from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.state import Attributes, Span


def run_node(attributes: Mapping[str, Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Runs one node.

    Args:
        attributes: of the node; defaults are filled in.
        inputs: one array per ``schemas.input_names``, none more.

    Returns:
        One new array per ``schemas.output_names``; the inputs are left as they are.

    Raises:
        CapacityError: a row's total length is beyond the capacity.
        ValueError: attributes, names, shapes or lengths that contradict docs/operator.md.
    """
    full = schemas.attributes_with_defaults(attributes)
    check_attributes(full)
    expected = schemas.input_names(full)
    if set(expected) != set(inputs):
        raise ValueError(f"the node takes the inputs {expected}, not {sorted(inputs)}")
    writer = schemas.is_writer(full)
    state = {name: inputs[f"past_{name}"] for name in schemas.state_names(full)}
    if writer:
        state = {name: array.copy() for name, array in state.items()}
    batch, new_tokens, _ = inputs["query"].shape
    check_shapes(full, inputs, state)
    check_lengths(full, inputs, state)

    shape = batch, new_tokens, full["num_heads"], full["head_size"]
    attention = np.zeros(shape)
    query = inputs["query"].astype(np.float64).reshape(shape)
    keys, values = _new_tokens(full, inputs, writer)
    for row in range(batch):
        span = _span(full, inputs, row)
        if span.new == 0:
            continue
        mine = [new[-1, row][:, : span.new].astype(np.float64) for new in (keys, values)]
        key, value, positions = cached_tokens(full, state, row, span, inputs)
        arrived = np.arange(span.past, span.total)
        weights = attention_weights(
            query[row, : span.new],
            np.concatenate([key, mine[0]], axis=1),
            np.concatenate([positions, arrived]),
            span.past,
            full,
            _bias(inputs, row),
            inputs["head_sink"].astype(np.float64) if full["has_sink"] else None,
        )
        value = np.concatenate([value, mine[1]], axis=1)
        attention[row, : span.new] = weighted_values(weights, value)
        if writer:
            if full["observes"]:
                where, mass = slot_map(full, state, row), state["attention_mass"][row]
                add_mass(full, mass, where.slots(positions), where.slots(arrived), weights)
            new_keys, new_values = (new[:, row][:, :, : span.new] for new in (keys, values))
            write_row(full, state, row, span, new_keys, new_values, inputs)
    flat = attention.reshape(batch, new_tokens, -1).astype(inputs["query"].dtype)
    return {"attention": flat} | ({f"present_{n}": a for n, a in state.items()} if writer else {})


def _bias(inputs: Mapping[str, Array], row: int) -> Array | None:
    if "attention_bias" not in inputs:
        return None
    bias = inputs["attention_bias"]
    chosen: Array = bias[row if bias.shape[0] > 1 else 0].astype(np.float64)
    return chosen


def _new_tokens(
    attributes: Attributes, inputs: Mapping[str, Array], writer: bool
) -> tuple[Array, Array]:
    """New keys and values ``[layers, B, Hk, S, D]`` float64: the node's own layer comes last."""
    others = range(attributes["group_size"] - 1) if writer else range(0)
    stacks = []
    for prefix, own in (("k", "key"), ("v", "value")):
        arrays = [inputs[f"{prefix}_{slot}"] for slot in others] + [inputs[own]]
        batch, tokens, _ = arrays[0].shape
        shape = len(arrays), batch, tokens, attributes["kv_num_heads"], attributes["head_size"]
        stacks.append(np.stack(arrays).astype(np.float64).reshape(shape).swapaxes(2, 3))
    return stacks[0], stacks[1]


def _span(attributes: Attributes, inputs: Mapping[str, Array], row: int) -> Span:
    past, total = (int(inputs[name][row]) for name in ("past_lengths", "total_lengths"))
    exact = attributes["mode"] == "exact"
    sinks, window = (0, 0) if exact else (attributes["sinks"], attributes["window"])
    return Span(past, total, sinks, window)
