"""What a session's arguments must be; every refusal is a sentence with the value found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter import schemas
from minicache.runtime.engine_file import EngineFile
from minicache.runtime.errors import CapacityError, PackageError, SessionError
from minicache.runtime.manifest import KERNELS_NAME, Manifest

MOST_THREADS = 1024  # beyond any machine's cores, ONNX Runtime only starts threads for minutes


def package(folder: Path, manifest: Manifest) -> Path:
    """Checks that a folder is complete and of this version; returns the graph's path.

    Raises:
        PackageError: the graph is missing, or it needs another version of the op.
    """
    path = folder / manifest.model
    if not path.is_file():
        raise PackageError(
            f"{str(folder)!r} lacks {manifest.model!r}, which its manifest names; "
            "copy the whole folder or export again"
        )
    op_version(folder, manifest)
    return path


def op_version(folder: Path, manifest: Manifest) -> None:
    """Checks that a folder was exported for this version of the op.

    Raises:
        PackageError: for another one.
    """
    if manifest.op_version != schemas.VERSION:
        raise PackageError(
            f"{str(folder)!r} needs {schemas.OP_TYPE} version {manifest.op_version}, this "
            f"installation has {schemas.VERSION}; export again or install the version that wrote it"
        )


def engine(folder: Path, manifest: Manifest, providers: Sequence[str] | None) -> EngineFile:
    """Checks that a folder holds an engine that was built from it; returns what is known of it.

    Raises:
        PackageError: no engine, a damaged or stale one, or one of another version.
        SessionError: execution providers were asked for.
    """
    if providers is not None:
        raise SessionError(
            f"providers are {list(providers)}, but {str(folder)!r} was exported for TensorRT, "
            "which has none; leave them out, or export with --target ort-cuda"
        )
    op_version(folder, manifest)
    file = EngineFile.load(folder)
    file.check_folder(folder)
    return file


def engine_sizes(file: EngineFile, folder: Path, batch_size: int, tokens: int) -> None:
    """Checks the sizes of a new session against those that its engine was built for.

    Args:
        file: what is known of the engine.
        folder: where it lies.
        batch_size: rows.
        tokens: capacity of a row.

    Raises:
        SessionError: more rows, or longer ones, than the engine takes.
    """
    most = file.largest()
    if batch_size > most.batch:
        raise SessionError(
            f"batch_size is {batch_size}, the engine was built for up to {most.batch}; give less, "
            f"or run: minicache build-engine {folder} --max-batch-size {batch_size}"
        )
    if tokens > most.capacity:
        raise SessionError(
            f"a row is to hold {tokens} tokens, the engine was built for up to {most.capacity}; "
            f"give a smaller max_sequence_length, or run: minicache build-engine {folder}"
        )


def kernel_pack(folder: Path) -> Path:
    """Checks that a folder holds compiled GPU kernels; returns the folder that does.

    Raises:
        PackageError: it does not.
    """
    path = folder / KERNELS_NAME
    if not (path / "kernels.bin").is_file():
        raise PackageError(
            f"{str(folder)!r} holds no compiled GPU kernels; run: minicache kernels {folder}"
        )
    return path


def whole_number(name: str, value: Any) -> None:
    """Checks a count, NumPy's integers included.

    Raises:
        SessionError: not an integer, or less than 1.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise SessionError(f"{name} is {value!r}; give a whole number of at least 1")


def number_below(name: str, value: Any, end: int, least: int = 0) -> int:
    """Checks a number, NumPy's integers included; returns it.

    Raises:
        SessionError: not an integer from ``least`` on below ``end``.
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= value < end:
        possible = f"{least}..{end - 1}" if end > least else "none yet"
        raise SessionError(f"{name} is {value!r}; possible here: {possible}")
    return int(value)


def session_size(
    manifest: Manifest, batch_size: int, max_sequence_length: int | None, threads: int | None
) -> int:
    """Checks the sizes of a new session; returns the tokens per row to allocate for.

    Raises:
        SessionError: not positive, or longer than the model's maximum.
    """
    limit = manifest.max_sequence_length if max_sequence_length is None else max_sequence_length
    for name, value in (("batch_size", batch_size), ("max_sequence_length", limit)):
        whole_number(name, value)
    if manifest.fixed_batch and batch_size != manifest.fixed_batch:
        raise SessionError(
            f"batch_size is {batch_size}, but the original graph was made for batches of "
            f"{manifest.fixed_batch}; export the original again with a dynamic batch"
        )
    if threads is not None:
        whole_number("threads", threads)
        if threads > MOST_THREADS:
            raise SessionError(
                f"threads is {threads}; give 1..{MOST_THREADS}, or None for ONNX Runtime's choice"
            )
    if limit > manifest.max_sequence_length:
        raise SessionError(
            f"max_sequence_length is {limit}, the model was exported for up to "
            f"{manifest.max_sequence_length}; give less, or export with "
            f"--max-sequence-length {limit}"
        )
    return int(limit)


def token_ids(
    input_ids: npt.ArrayLike, lengths: npt.ArrayLike | None, batch_size: int, vocab_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Returns the ids as int64 [B, S] with zeros for padding, and the valid lengths as int32 [B].

    Raises:
        SessionError: another shape or type, a length outside 0..S, an id outside 0..V-1.
    """
    try:
        ids = np.asarray(input_ids)
    except ValueError as error:
        raise SessionError(
            f"input_ids are not rectangular ({error}); pad shorter rows and give lengths"
        ) from error
    if ids.ndim != 2 or ids.shape[0] != batch_size or ids.shape[1] < 1:
        raise SessionError(
            f"input_ids have shape {list(ids.shape)}; this session takes [{batch_size}, S], S >= 1"
        )
    if not np.issubdtype(ids.dtype, np.integer):
        raise SessionError(f"input_ids are {ids.dtype}; give integers (token ids)")
    new = _lengths(lengths, batch_size, ids.shape[1])
    valid = np.arange(ids.shape[1]) < new[:, None]
    wrong = valid & ((ids < 0) | (ids >= vocab_size))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise SessionError(
            f"input_ids[{row}, {column}] is {ids[row, column]}; "
            f"the vocabulary ends at {vocab_size - 1}"
        )
    return np.where(valid, ids, 0).astype(np.int64), new


def _lengths(lengths: npt.ArrayLike | None, batch_size: int, width: int) -> npt.NDArray[np.int32]:
    if lengths is None:
        return np.full(batch_size, width, np.int32)
    new = np.asarray(lengths)
    if new.shape != (batch_size,) or not np.issubdtype(new.dtype, np.integer):
        raise SessionError(
            f"lengths are {new.dtype} of shape {list(new.shape)}; give integers [{batch_size}]"
        )
    if (new < 0).any() or (new > width).any():
        row = int(np.argmax((new < 0) | (new > width)))
        raise SessionError(
            f"lengths[{row}] is {new[row]}; input_ids hold 0..{width} tokens per row"
        )
    return new.astype(np.int32)


def output_array(out: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Checks an array that logits are written into.

    Raises:
        SessionError: another type or shape, not contiguous, or read-only.
    """
    if not isinstance(out, np.ndarray):
        raise SessionError(f"out is {type(out).__name__}; give a float32 array {list(shape)}")
    if out.dtype != np.float32 or out.shape != shape or not out.flags.carray:
        raise SessionError(
            f"out is {out.dtype} {list(out.shape)}; give a writable C-contiguous float32 array of "
            f"shape {list(shape)}"
        )


def capacity(
    lengths: npt.NDArray[np.int32],
    new: npt.NDArray[np.integer],
    limit: int,
    manifest: Manifest,
    first: int = 0,
) -> None:
    """Checks that ``new`` [B] more tokens fit beside ``lengths`` [B] into ``limit`` per row.

    ``first`` is the number of the first row, for messages.

    Raises:
        CapacityError: a row would hold more.
    """
    over = lengths.astype(np.int64) + new > limit
    if not over.any():
        return
    row, most = int(np.argmax(over)), manifest.max_sequence_length
    larger = f"open the session with a larger max_sequence_length (this model: up to {most})"
    if limit >= most:
        larger = "export the model for more, if it was made for more"
    raise CapacityError(
        f"row {first + row} holds {lengths[row]} tokens and {new[row]} more do not fit into its "
        f"capacity of {limit}; give fewer tokens, reset(), or {larger}"
    )
