"""A merge group, run layer after layer as a graph would run its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minicache.exporter import schemas
from minicache.plugins.reference.frame import Tables
from minicache.plugins.reference.node import run_node
from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.state import State


def run_group(
    attributes: Mapping[str, Any],
    state: State,
    queries: Sequence[Array],
    keys: Sequence[Array],
    values: Sequence[Array],
    past_lengths: Array,
    total_lengths: Array,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    tables: Sequence[Tables] = (),
) -> tuple[list[Array], State]:
    """Runs the G nodes of a group for one call.

    Args:
        attributes: of any node of the group; ``group_slot`` is set here.
        state: before the call; left as it is.
        queries: per layer ``[B, S, H*D]``.
        keys: per layer ``[B, S, Hk*D]``.
        values: likewise.
        past_lengths: ``[B]`` int32.
        total_lengths: ``[B]`` int32.
        attention_bias: ``[B or 1, H, S, C]``, given to every layer.
        head_sink: ``[H]``, likewise.
        tables: per layer the constant inputs of its node by name: decoders, ``rope_frequencies``,
            and on the writer encoders, of ``subspace`` with steps.

    Returns:
        The attention ``[B, S, H*D]`` of every layer, and the state after the call.
    """
    outputs, after = [], state
    for slot in range(len(queries)):
        full = schemas.attributes_with_defaults({**attributes, "group_slot": slot})
        inputs = {"query": queries[slot], "key": keys[slot], "value": values[slot]}
        inputs |= {"past_lengths": past_lengths, "total_lengths": total_lengths}
        if attention_bias is not None:
            inputs["attention_bias"] = attention_bias
        if head_sink is not None:
            inputs["head_sink"] = head_sink
        inputs |= tables[slot] if tables else {}
        inputs |= {f"past_{name}": array for name, array in state.items()}
        if schemas.is_writer(full):
            for other in range(slot):
                inputs |= {f"k_{other}": keys[other], f"v_{other}": values[other]}
        result = run_node(full, inputs)
        outputs.append(result["attention"])
        if schemas.is_writer(full):
            after = {name: result[f"present_{name}"] for name in state}
    return outputs, after
