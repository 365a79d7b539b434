"""Reading and writing ONNX models without ever holding their weights in memory.

Weights stay memory-mapped in the source files (``onnx_ir.ExternalTensor``) until they are streamed
into the output; also those inside of a large ``.onnx`` file (``embedded``). The source is never
written to.
"""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

import google.protobuf.message  # type: ignore[import-untyped]
import onnx_ir as ir

from minicache.exporter.embedded import read_proto
from minicache.exporter.external import check_external_data, external_tensors, follow_links
from minicache.exporter.external_places import check_places
from minicache.exporter.facts import ModelFacts, read_facts
from minicache.exporter.sound_graph import make_sound
from minicache.runtime.errors import ModelFileError, OutputError

__all__ = [
    "DATA_NAME",
    "MODEL_NAME",
    "ModelFacts",
    "check_external_data",
    "external_tensors",
    "find_model_file",
    "load_model",
    "model_facts",
    "read_facts",
    "save_model",
    "weight_bytes",
]

MODEL_NAME = "model.onnx"
DATA_NAME = "model.onnx.data"
CODEC_NAME = "model.onnx.codecs.data"

_PATH = "minicache.path"  # where load_model notes the file in ``model.meta``

# A tensor this small stays inside model.onnx: shapes and scalars are read by shape inference.
INLINE_BYTES = 1024
# Below this total one file is handier; far below protobuf's own limit of 2 GiB.
SINGLE_FILE_BYTES = 16 * 1024 * 1024


def find_model_file(path: Path | str) -> Path:
    """Returns the ``.onnx`` file that ``path`` means: the file itself, or a folder with one model.

    Raises:
        ModelFileError: nothing is there, or the folder holds no ``.onnx`` file or several.
    """
    path = Path(path)
    try:
        str(path).encode()  # ONNX Runtime takes no other names
        os.stat(path)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise ModelFileError(
            f"{str(path)!r} does not exist or cannot be read ({reason}); "
            "give an .onnx file or its folder"
        ) from error
    if path.is_dir():
        if (path / MODEL_NAME).is_file():
            return path / MODEL_NAME
        found = sorted(path.glob("*.onnx"))
        if len(found) == 1:
            return found[0]
        names = ", ".join(p.name for p in found) or "no .onnx file"
        raise ModelFileError(
            f"{str(path)!r} is a folder with {names}, not one {MODEL_NAME}; give the .onnx file"
        )
    if not path.is_file():
        raise ModelFileError(f"{str(path)!r} is not a file; give an .onnx file or its folder")
    return path


def load_model(path: Path | str) -> ir.Model:
    """Loads a model; its external data stays on disk, memory-mapped on use.

    Args:
        path: an ``.onnx`` file, or a folder with one.

    Raises:
        ModelFileError: missing, not ONNX, truncated, or external data missing or too short.
    """
    file = find_model_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters of a model is checked below
            proto = read_proto(file)
            check_places(proto, file)
            model = ir.from_proto(proto)
    except google.protobuf.message.DecodeError as error:
        raise ModelFileError(
            f"{str(file)!r} ({file.stat().st_size} bytes) is not an ONNX model or is truncated; "
            "copy or export it again"
        ) from error
    except OSError as error:
        raise ModelFileError(f"{str(file)!r} cannot be read: {error.strerror}") from error
    except ModelFileError:
        raise
    except Exception as error:  # onnx_ir raises many kinds for malformed content
        raise ModelFileError(
            f"{str(file)!r} is not a valid ONNX model ({_cause(error)}); export it again"
        ) from error
    if not len(model.graph) or not model.opset_imports:
        raise ModelFileError(
            f"{str(file)!r} holds no ONNX graph (no nodes or no opset); is it the right file?"
        )
    ir.external_data.set_base_dir(model.graph, file.parent)
    _check_names(model, file)
    make_sound(model, file)
    check_external_data(model)
    follow_links(model)
    model.meta[_PATH] = file
    return model


def _cause(error: BaseException) -> str:
    """The innermost reason: onnx_ir wraps it once per level of the graph."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = str(error)
    # What protobuf gives where a text is not UTF-8.
    if "<class 'bytes'>" in text or "got bytes" in text:
        return "a name in it is not UTF-8"
    # What follows the first sentence is onnx_ir's own picture of the graph.
    return text.strip().split("\n")[0].split(". ")[0] or type(error).__name__


def _check_names(model: ir.Model, file: Path) -> None:
    """Refuses a graph whose nodes do not fit together, as after a damaged copy.

    Raises:
        ModelFileError: a name is not text, or a node reads what nothing gives.
    """
    for node in model.graph.all_nodes():
        names = [node.op_type, *(value.name for value in (*node.inputs, *node.outputs) if value)]
        if any(isinstance(name, bytes) for name in names):  # protobuf gives what is not UTF-8 so
            raise ModelFileError(
                f"{str(file)!r} holds names that are not UTF-8 (node {node.name!r}); the file is "
                "damaged: copy or export it again"
            )
        for value in node.inputs:
            given = value is None or value.producer() is not None or value.is_initializer()
            if value is not None and not given and not value.is_graph_input():
                raise ModelFileError(
                    f"{str(file)!r} is not a valid ONNX model: {node.op_type} {node.name!r} reads "
                    f"{value.name!r}, which nothing gives; copy or export it again"
                )


def model_facts(model: ir.Model) -> ModelFacts:
    """What the files beside a model say, if ``load_model`` loaded it."""
    path = model.meta.get(_PATH)
    return ModelFacts() if path is None else read_facts(path)


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers, subgraphs included, known without reading them."""
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    )


def save_graph(model: ir.Model, folder: Path) -> None:
    """Writes a changed graph beside the weights that it was loaded with, which stay as they are.

    New weights go into a file of their own when they are more than some MB; so do all that lie in
    the graph's own file, which is replaced.

    Raises:
        OutputError: the disk refuses.
    """
    replaced = (folder / MODEL_NAME).resolve()
    inside, new = [], []
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                if Path(tensor.path).resolve() == replaced:
                    inside.append((value, tensor))
            elif tensor is not None and tensor.nbytes > INLINE_BYTES:
                new.append((value, tensor))
    large = [*inside, *new]
    try:
        if inside or sum(tensor.nbytes for _, tensor in new) > SINGLE_FILE_BYTES:
            tensors = [tensor for _, tensor in large]
            moved = ir.external_data.convert_tensors_to_external(tensors, folder, CODEC_NAME)
            for (value, _), tensor in zip(large, moved, strict=True):
                value.const_value = tensor
        ir.save(model, folder / MODEL_NAME)
    except OSError as error:
        raise OutputError(
            f"Cannot write the model below {str(folder.parent)!r}: {error.strerror}; "
            "free some space"
        ) from error


def save_model(model: ir.Model, folder: Path | str) -> Path:
    """Writes ``model.onnx``, and ``model.onnx.data`` when the weights are more than some MB.

    Args:
        model: the model; unchanged afterwards, its tensors still refer to their own files.
        folder: an existing or new folder, not the one that the weights are read from.

    Returns:
        Path of the written ``model.onnx``.

    Raises:
        OutputError: the folder would overwrite the source's data, or the disk refuses.
    """
    folder = Path(folder)
    data = folder / DATA_NAME
    sources = {Path(tensor.path).resolve() for tensor in external_tensors(model)}
    if sources & {data.resolve(), (folder / MODEL_NAME).resolve()}:
        raise OutputError(
            f"{str(folder)!r} holds the weights that the model is read from; "
            "choose another output folder"
        )
    external = bool(sources) or weight_bytes(model) > SINGLE_FILE_BYTES
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ir.save(
            model,
            folder / MODEL_NAME,
            external_data=DATA_NAME if external else None,
            size_threshold_bytes=INLINE_BYTES,
        )
    except OSError as error:
        need = weight_bytes(model) / 1e6
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "free some space" if full else "name another folder"
        where = str(folder.parent)  # the folder itself is gone when this is read
        raise OutputError(
            f"Cannot write the model ({need:.0f} MB) below {where!r}: {error.strerror}; {hint}"
        ) from error
    return folder / MODEL_NAME
