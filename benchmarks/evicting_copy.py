"""Copies an export with ``--evict`` added: the same codes, so that policies can be compared.

An export with ``--evict`` computes the same; this takes seconds, where planning takes minutes.

    python benchmarks/evicting_copy.py OUT OUT-h2o --evict h2o:512
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import onnx_ir as ir

from minicache.exporter import io, package, schemas
from minicache.exporter.passes.apply_plan import attention_nodes, attributes_of
from minicache.exporter.plan import Plan
from minicache.exporter.state_io import StateIo
from minicache.exporter.targets import find_target
from minicache.runtime.eviction.entry import EvictionEntry
from minicache.runtime.eviction.parse import parse_policy
from minicache.runtime.manifest import Manifest, StateTensor


def add_states(model: ir.Model, plan: Plan) -> tuple[list[StateTensor], dict[int, int]]:
    """Lets the nodes of a plan's graph evict; returns the new states and segment lengths."""
    nodes, policy = attention_nodes(model), parse_policy(plan.evict)
    states, lengths = [], {}
    for index, group in enumerate(plan.groups):
        members = [nodes[layer] for layer in group.layers]
        before = attributes_of(members[-1])
        if before["local_window_size"]:
            continue
        writer = {**before, "evicts": 1, "observes": policy.observes}
        lengths[index] = length = schemas.segment_length(writer)
        segments = -(-plan.max_sequence_length // length) if length else 1
        old = len(schemas.state_names(before))
        group_io = StateIo(index, writer, ir.DataType.FLOAT16, segments)
        pasts = group_io.pasts()[old:]
        for node in members:
            own = attributes_of(node)
            others = 2 * (len(members) - 1) if schemas.is_writer(own) else 0
            at = len(node.inputs) - others
            inputs = [*node.inputs[:at], *pasts, *node.inputs[at:]]
            writes = schemas.is_writer(own)
            count = len(node.outputs) + (len(pasts) if writes else 0)
            added = [ir.AttrInt64("evicts", 1), ir.AttrInt64("observes", policy.observes)]
            new = ir.Node(
                node.domain, node.op_type, inputs, num_outputs=count, name=node.name,
                attributes=[*node.attributes.values(), *added],
            )  # fmt: skip
            model.graph.insert_before(node, new)
            _take_over(model, node, new)
            if writes:
                for past, value in zip(pasts, new.outputs[-len(pasts) :], strict=True):
                    value.name = str(past.name).replace("past_", "present_", 1)
                    value.shape, value.type = past.shape, past.type
                    model.graph.outputs.append(value)
        model.graph.inputs.extend(pasts)
        states += group_io.tensors()[old:]
    return states, lengths


def _take_over(model: ir.Model, node: ir.Node, new: ir.Node) -> None:
    outputs = list(model.graph.outputs)
    for old, value in zip(node.outputs, new.outputs, strict=False):
        name, value.shape, value.type = old.name, old.shape, old.type
        if old in outputs:
            model.graph.outputs[outputs.index(old)] = value
        old.replace_all_uses_with(value)
        old.name, value.name = None, name
    model.graph.remove(node, safe=True)


def evicting_copy(folder: Path, output: Path, evict: str) -> None:
    """Writes ``output``, weights included."""
    manifest = Manifest.load(folder)
    plan = dataclasses.replace(Plan.from_dict(manifest.plan), evict=evict)
    model = io.load_model(folder / manifest.model)
    states, lengths = add_states(model, plan)
    io.save_model(model, output)
    package.copy_side_files(folder, output)
    tiled = find_target(manifest.target).code_layout == "tile"
    entry = EvictionEntry(parse_policy(evict), tiled, lengths)
    changes: dict[str, Any] = {"plan": plan.to_dict(), "eviction": entry.to_dict()}
    state = (*manifest.state, *states)
    dataclasses.replace(manifest, state=state, **changes).save(output)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("export", type=Path, help="folder that minicache-export wrote")
    parser.add_argument("output", type=Path, help="folder to make")
    parser.add_argument("--evict", required=True, metavar="POLICY")
    given = parser.parse_args()
    evicting_copy(given.export, given.output, given.evict)


if __name__ == "__main__":
    main()
