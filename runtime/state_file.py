"""One row's state in a file: safetensors, with what is needed to refuse the wrong file.

The tensors are those of ``RowState``, and ``token_ids`` where they are known. The metadata names
the format and its version, the op's version (which fixes the layout of the state), the model's
digest, the numbers of tokens, and a digest of all of this and the tensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter import schemas
from minicache.runtime.errors import OutputError, StateFileError
from minicache.runtime.manifest_values import LARGEST
from minicache.runtime.row_state import RowState

FORMAT = "minicache.row_state"
FORMAT_VERSION = 1  # changes when an older reader would misunderstand a file
_TOKEN_IDS = "token_ids"


def write_state(state: RowState, path: Path) -> None:
    """Writes a state; the file appears whole or not at all, and replaces an older one.

    Raises:
        OutputError: the disk refuses.
    """
    from safetensors.numpy import save_file

    tensors = dict(state.tensors)
    if state.token_ids is not None:
        tensors[_TOKEN_IDS] = state.token_ids
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "layout_version": str(schemas.VERSION),
        "model": state.model,
        "length": str(state.length),
        "furthest": str(state.furthest),
    }
    metadata["digest"] = _digest(metadata, tensors)
    partial: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        os.close(handle)
        partial = Path(name)
        save_file(tensors, partial, metadata)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())  # or a power cut could leave the name with nothing behind it
        partial.replace(path)
    except Exception as error:  # safetensors has a class of its own beside OSError
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{str(path)!r} cannot be written ({reason})") from error
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink()


def read_state(path: Path) -> RowState:
    """Reads a state and checks that the file is whole; whether it fits a model is not asked here.

    Raises:
        StateFileError: no such file, not one of ours, of another version, truncated or damaged.
    """
    from safetensors import safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            _check_format(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except StateFileError:
        raise
    except Exception as error:  # safetensors has a class of its own beside OSError
        raise StateFileError(
            f"{str(path)!r} is no file of a saved state, or not a whole one ({error}); "
            "save the state again"
        ) from error
    given = metadata.pop("digest", "")
    if given != _digest(metadata, tensors):
        raise StateFileError(
            f"{str(path)!r} is damaged: its contents are not those that were saved; "
            "save the state again"
        )
    length, furthest = (_count(path, metadata, name) for name in ("length", "furthest"))
    ids = tensors.pop(_TOKEN_IDS, None)
    if furthest < length or (ids is not None and (ids.shape != (length,) or ids.dtype != np.int32)):
        raise StateFileError(f"{str(path)!r} contradicts itself; save the state again")
    return RowState(metadata.get("model", ""), length, furthest, ids, tensors)


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise StateFileError(
            f"{str(path)!r} is a safetensors file, but no saved state; give a file that "
            "Session.save wrote"
        )
    for name, known in (("format_version", FORMAT_VERSION), ("layout_version", schemas.VERSION)):
        if metadata.get(name) != str(known):
            raise StateFileError(
                f"{str(path)!r} has {name} {metadata.get(name)!r}, this version reads {known}; "
                "save the state again"
            )


def _count(path: Path, metadata: Mapping[str, str], name: str) -> int:
    value = metadata.get(name, "")
    if not (value.isascii() and value.isdigit() and len(value) < 11 and int(value) <= LARGEST):
        raise StateFileError(f"{str(path)!r} has {name} {value!r}; save the state again")
    return int(value)


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(metadata.items()):
        digest.update(f"{name}={value}\0".encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
