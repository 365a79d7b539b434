"""Runs a part of a graph in ONNX Runtime, to learn what it computes instead of guessing.

Masks, positions and scales are computed by dozens of exporter-specific nodes. Cutting that part out
and running it on small inputs says what it is, whatever the nodes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from minicache.exporter.graph import describe
from minicache.exporter.time_limit import SECONDS, limited
from minicache.runtime.errors import MissingDependencyError, UnsupportedModelError
from minicache.runtime.ort import first_line


def _outer_values(node: ir.Node) -> list[ir.Value]:
    """Inputs of a node, and what its subgraphs (If, Loop) read from outside."""
    found = [value for value in node.inputs if value is not None]
    for attribute in node.attributes.values():
        if attribute.type != ir.AttributeType.GRAPH:
            continue
        graph = attribute.as_graph()
        inside = {id(value) for value in graph.inputs} | {
            id(value) for value in graph.initializers.values()
        }
        for inner in graph:
            inside |= {id(value) for value in inner.outputs}
            found += [value for value in _outer_values(inner) if id(value) not in inside]
        found += [value for value in graph.outputs if id(value) not in inside]
    return found


def _only_first_row(
    value: ir.Value, nodes: set[ir.Node], feeds: Mapping[ir.Value, np.ndarray]
) -> bool:
    """Whether ``nodes`` look up nothing but row 0 of a table."""
    graphs = {node.graph for node in nodes}
    # Nodes inside of an If or a Loop are not listed, but may be part of a listed one.
    uses = [use for use in value.uses() if use.node in nodes or use.node.graph not in graphs]
    for node, index in [(use.node, use.idx) for use in uses]:
        rows = node.inputs[1] if node.op_type == "Gather" and index == 0 else None
        if rows is None or rows not in feeds or feeds[rows].any():
            return False
        if node.attributes.get_int("axis", 0) != 0:
            return False
    return bool(uses)


def cut(
    model: ir.Model, outputs: Sequence[ir.Value], feeds: Mapping[ir.Value, np.ndarray]
) -> tuple[onnx.ModelProto, list[ir.Value], str]:
    """Builds the model that computes ``outputs`` from ``feeds``.

    Returns:
        The model, the feeds it really reads, and the folder of its external data.

    Raises:
        UnsupportedModelError: ``outputs`` depend on a graph input that is not fed.
    """
    needed: set[ir.Node] = set()
    used: dict[ir.Value, None] = {}
    weights: dict[str, ir.Value] = {}
    queue = list(outputs)
    while queue:
        value = queue.pop()
        if value in feeds:
            used[value] = None
            continue
        node = value.producer()
        if node is None:
            if value.const_value is None:
                raise UnsupportedModelError(
                    f"{describe(outputs[0].producer())} depends on the graph input {value.name!r}, "
                    "whose meaning is not known; export the model for text generation without it"
                )
            weights[value.name or ""] = value
        elif node not in needed:
            needed.add(node)
            queue += _outer_values(node)
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.append(onnx.helper.make_opsetid(domain, version))
    proto.functions.extend(ir.to_proto(function) for function in model.functions.values())
    graph, folder = proto.graph, ""
    graph.name = "probe"
    graph.node.extend(ir.to_proto(node) for node in model.graph if node in needed)
    for name, value in weights.items():
        tensor = value.const_value
        assert tensor is not None
        if _only_first_row(value, needed, feeds):
            # The table of token embeddings, of which masks read the width: not a copy of it all.
            tensor = ir.tensor(tensor.numpy()[:1])
        stored = ir.to_proto(tensor)
        stored.name = name
        if isinstance(tensor, ir.ExternalTensor):
            file = Path(tensor.path)
            folder = str(file.parent)
            # ONNX Runtime takes no absolute paths, which tensors of linked files have.
            for entry in stored.external_data:
                if entry.key == "location":
                    entry.value = file.name
        graph.initializer.append(stored)
    for value in used:
        kind = onnx.helper.np_dtype_to_tensor_dtype(feeds[value].dtype)
        graph.input.append(
            onnx.helper.make_tensor_value_info(value.name or "", kind, feeds[value].shape)
        )
    fed = set(used)
    for value in dict.fromkeys(outputs):
        if value not in fed:
            graph.output.append(onnx.ValueInfoProto(name=value.name))
    return proto, list(used), folder


def evaluate(
    model: ir.Model,
    outputs: Sequence[ir.Value],
    feeds: Mapping[ir.Value, np.ndarray],
    one_row: bool = False,
) -> list[np.ndarray]:
    """Computes some values of a graph.

    Args:
        model: the model; unchanged.
        outputs: values to compute.
        feeds: arrays for graph inputs, or for inner values, where the graph is then cut.
        one_row: the graph takes batches of one row: every array is fed row by row.

    Raises:
        UnsupportedModelError: the part needs something else, or does not run.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise MissingDependencyError(
            "onnxruntime is not installed; install it with: pip install 'minicache-onnx[cpu]'"
        ) from error
    rows = len(next(iter(feeds.values()))) if one_row else 1
    calls = [{v: a[n : n + 1] if one_row else a for v, a in feeds.items()} for n in range(rows)]
    proto, used, folder = cut(model, outputs, feeds)
    for value in proto.graph.input if one_row else ():
        value.type.tensor_type.shape.dim[0].dim_value = 1
    if not proto.graph.output:
        return [feeds[value] for value in outputs]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if folder:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", folder
        )
    try:
        session = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        with limited(SECONDS) as run_options:
            results = [
                session.run(None, {value.name: call[value] for value in used}, run_options)
                for call in calls
            ]
    except Exception as error:  # ORT's exceptions have no common public base
        raise UnsupportedModelError(
            f"The part of the graph before {describe(outputs[0].producer())} does not run in "
            f"ONNX Runtime, so it cannot be understood ({first_line(error)}); export it again"
        ) from error
    arrays = [
        np.concatenate(parts) if one_row else parts[0] for parts in zip(*results, strict=True)
    ]
    computed = dict(zip((output.name for output in proto.graph.output), arrays, strict=True))
    return [feeds[value] if value in feeds else computed[value.name] for value in outputs]
