"""From what a user names to what is estimated."""

from __future__ import annotations

from pathlib import Path

from minicache.exporter.estimation.geometry import Geometry
from minicache.exporter.estimation.known_models import KNOWN_MODELS
from minicache.exporter.io import find_model_file, load_model, read_facts
from minicache.exporter.normalise import normalise
from minicache.runtime.errors import ModelFileError
from minicache.runtime.manifest import FILE_NAME, Manifest

CONFIGS = ("config.json", "genai_config.json")


def find_geometry(name: str) -> Geometry | Manifest:
    """Finds what ``name`` means: an export, a graph, a configuration file, or a known model.

    Of a folder the export goes first, then the graph, which says more than a configuration.

    Args:
        name: a path, or a name of ``KNOWN_MODELS``.

    Raises:
        ModelFileError: none of them.
        MiniCacheError: as ``normalise`` and ``Manifest.load`` raise.
    """
    path = Path(name)
    if not path.exists():
        if name.lower() in KNOWN_MODELS:
            return KNOWN_MODELS[name.lower()]
        raise ModelFileError(
            f"{name!r} is no file or folder, and none of the known models "
            f"({', '.join(KNOWN_MODELS)}); give a model.onnx, a config.json or an exported folder"
        )
    if path.is_dir() and (path / FILE_NAME).is_file():
        return Manifest.load(path)
    if path.is_file() and path.name == FILE_NAME:
        return Manifest.load(path.parent)
    if path.name in CONFIGS or (path.is_dir() and not any(path.glob("*.onnx"))):
        return Geometry.of_config(path)
    file = find_model_file(path)
    facts = read_facts(file)
    title = file.resolve().parent.name
    return Geometry.of_graph(title, normalise(load_model(file), facts), facts)
