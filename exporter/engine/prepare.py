"""Turns an exported folder into one that an engine can be built of."""

from __future__ import annotations

from pathlib import Path

from minicache.exporter import io
from minicache.exporter.engine.script import write_script
from minicache.exporter.passes.lower_tensorrt import lower_tensorrt
from minicache.runtime.manifest import Manifest


def prepare_engine(folder: Path, manifest: Manifest) -> None:
    """Lowers the graph of a folder, which no longer runs in ONNX Runtime, and adds the script.

    Args:
        folder: holds the graph with the states of its plan; its weights file stays as it is.
        manifest: of the folder.

    Raises:
        UnsupportedModelError: the graph cannot be lowered.
        OutputError: the disk refuses.
    """
    graph = io.load_model(folder / manifest.model)
    lower_tensorrt(graph)
    io.save_graph(graph, folder)
    write_script(folder, manifest)
