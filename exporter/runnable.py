"""What ONNX Runtime is given to run a model that is not ours: its file, or a graph like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from minicache.exporter.embedded import embeds_weights, read_proto
from minicache.exporter.full_precision import rounds_activations, unround

_FOLDER = "session.model_external_initializers_file_folder_path"


def runnable_source(file: Path, options: Any, *, unrounded: bool = False) -> str | bytes:
    """What ``onnxruntime.InferenceSession`` takes to run a model.

    Args:
        file: the model; not modified.
        options: session options, told where the weights lie when the graph is changed.
        unrounded: keep ``MatMulNBits`` from rounding activations (see ``full_precision``).

    Returns:
        The file's name, or a changed graph: of unrounded activations, or with the weights inside
        of a large file mapped in place (see ``embedded``), which ONNX Runtime would copy.
    """
    if not (unrounded or embeds_weights(file)):
        return str(file)
    file = file.resolve()  # ONNX Runtime takes no weights through links that leave the folder
    model = read_proto(file)
    if unrounded and rounds_activations(model.graph):
        unround(model.graph)
    elif not _only_embedded(model.graph, file.name):
        return str(file)
    options.add_session_config_entry(_FOLDER, str(file.parent))
    return bytes(model.SerializeToString())


def _only_embedded(graph: onnx.GraphProto, name: str) -> bool:
    """Whether no weights lie in another file than the graph's own."""
    places = {
        entry.value
        for tensor in graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return places == {name}
