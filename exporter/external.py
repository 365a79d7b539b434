"""Weights that lie in files beside the graph: where they are, and whether they are all there."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from minicache.runtime.errors import ModelFileError


def external_values(model: ir.Model) -> list[tuple[ir.Value, ir.ExternalTensor]]:
    """Every initializer whose data lies in another file, subgraphs included."""
    graphs = [model.graph]
    graphs += [graph for graph in model.graph.subgraphs() if graph is not model.graph]
    return [
        (value, value.const_value)
        for graph in graphs
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    ]


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Every tensor whose data lies in another file, subgraphs included."""
    return [tensor for _, tensor in external_values(model)]


def check_external_data(model: ir.Model) -> None:
    """Checks that every external tensor lies fully inside an existing file of the model's folder.

    Raises:
        ModelFileError: names the file and the first tensor that is not all there.
    """
    sizes: dict[Path, int] = {}
    for tensor in external_tensors(model):
        file = Path(tensor.path)
        if file not in sizes:
            sizes[file] = _file_size(tensor, file)
        if tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):  # they have no size
            raise ModelFileError(
                f"Tensor {tensor.name!r} of type {tensor.dtype.name} lies in {str(file)!r}, which "
                "ONNX does not allow; export the model again"
            )
        start = tensor.offset or 0
        length = tensor.length if tensor.length is not None else tensor.nbytes
        if length < tensor.nbytes or start < 0 or start + length > sizes[file]:
            raise ModelFileError(
                f"External data file {str(file)!r} has {sizes[file]} bytes, but tensor "
                f"{tensor.name!r} needs bytes {start} to {start + max(length, tensor.nbytes)}; "
                "the file is truncated or of another model: copy it again"
            )


def _file_size(tensor: ir.ExternalTensor, file: Path) -> int:
    if not file.is_file():
        raise ModelFileError(
            f"External data file {str(file)!r} is missing (tensor {tensor.name!r} needs "
            "it); copy it beside the .onnx file under this name"
        )
    return file.stat().st_size


def follow_links(model: ir.Model) -> None:
    """Lets tensors be read whose data file is a link, as in a Hugging Face cache.

    onnx_ir refuses symbolic links that leave the folder, and files with several hard links. Which
    name a model gives is checked above; what the user has linked there is the user's choice.
    """
    for value, tensor in external_values(model):
        real, folder = os.path.realpath(tensor.path), os.path.realpath(tensor.base_dir)
        if os.path.commonpath([real, folder]) == folder and os.stat(real).st_nlink == 1:
            continue
        value.const_value = ir.ExternalTensor(
            real, tensor.offset, tensor.length, tensor.dtype,
            shape=tensor.shape, name=tensor.name or "",
        )  # fmt: skip
