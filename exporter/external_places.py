"""Where a model file says that its weights lie: never outside of its own folder.

A model from somewhere else must not read any file of this machine into its output. ONNX Runtime
reads the same file as we do, so every tensor in it is looked at, also those that we never use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx

from minicache.runtime.errors import ModelFileError

# ONNX Runtime takes this location for an address in its own memory.
_MEMORY = "_ORT_MEM_ADDR_"
_ENTRIES = frozenset({"location", "offset", "length", "checksum", "basepath"})


def check_places(model: onnx.ModelProto, file: Path) -> None:
    """Checks the locations of all external data, before anything is read.

    Args:
        model: the graph as it is in ``file``.
        file: for messages.

    Raises:
        ModelFileError: a location leads out of the model's folder, or external data is used where
            no exporter uses it; names the tensor and the location.
    """
    graphs = [model.graph]
    for training in model.training_info:
        graphs += [training.initialization, training.algorithm]
    for graph in graphs:
        _check_graph(graph, file)
    for function in model.functions:
        _check_nodes(function.node, file)


def leads_outside(location: str | bytes) -> bool:
    """Whether a location is no path below a folder."""
    if isinstance(location, bytes):  # protobuf gives what is not UTF-8 so
        return True
    path = os.path.normpath(location)
    return (
        os.path.isabs(path)
        or path.split(os.sep)[0] == os.pardir
        or "\0" in location
        or _MEMORY in location
    )


def _check_graph(graph: onnx.GraphProto, file: Path) -> None:
    for sparse in graph.sparse_initializer:
        raise ModelFileError(
            f"{str(file)!r} holds the sparse weight {sparse.values.name!r}; sparse weights are not "
            "supported, export the model again with dense ones"
        )
    for tensor in graph.initializer:
        _check_entries(tensor, file)
        locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
        outside = tensor.data_location == onnx.TensorProto.EXTERNAL
        if outside and len(locations) != 1:
            raise ModelFileError(
                f"Tensor {tensor.name!r} of {str(file)!r} names {len(locations)} data files where "
                "one is needed; the file is damaged: copy or export it again"
            )
        for location in locations:
            if leads_outside(location):
                raise ModelFileError(
                    f"Tensor {tensor.name!r} names its data file {location!r}, which leads out of "
                    "the model's folder; export the model again with its data beside it"
                )
    _check_nodes(graph.node, file)


def _check_entries(tensor: onnx.TensorProto, file: Path) -> None:
    for entry in tensor.external_data:
        number = entry.value.isascii() and entry.value.isdigit() and len(entry.value) < 20
        if entry.key not in _ENTRIES or (entry.key in ("offset", "length") and not number):
            raise ModelFileError(
                f"Tensor {tensor.name!r} of {str(file)!r} has the entry {entry.key!r} = "
                f"{entry.value!r} of external data, which means nothing; the file is damaged: copy "
                "or export it again"
            )


def _check_nodes(nodes: Iterator[onnx.NodeProto], file: Path) -> None:
    for node in nodes:
        for attribute in node.attribute:
            tensors = [attribute.t, *attribute.tensors]
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                tensors += [sparse.values, sparse.indices]
            if any(tensor.external_data or tensor.data_location for tensor in tensors):
                raise ModelFileError(
                    f"{str(file)!r} keeps the attribute {attribute.name!r} of {node.op_type} "
                    f"{node.name!r} in another file, which is not supported; save the model again "
                    "with only its weights as external data"
                )
            for graph in (attribute.g, *attribute.graphs):
                _check_graph(graph, file)
