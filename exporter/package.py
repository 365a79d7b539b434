"""The output folder: it appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from minicache.runtime.errors import OutputError
from minicache.runtime.manifest import FILE_NAME as MANIFEST_NAME

# What generation needs beside the graph. genai_config.json stays behind: it describes the cache of
# the original graph, and onnxruntime-genai would misread ours by it.
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


def check_output(output: Path, *, overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """Refuses an output that would replace something; worth asking before any long work.

    Args:
        output: the folder to make.
        overwrite: an earlier export may be replaced.
        inputs: files that are read: a folder that holds one is never replaced.

    Raises:
        OutputError: ``output`` is a file, a folder that may not be replaced, or no usable name.
    """
    try:
        str(output).encode()  # ONNX Runtime takes no other names
        names = os.listdir(output)
    except FileNotFoundError as error:
        if output.is_symlink():
            raise OutputError(
                f"output {str(output)!r} is a link to nothing; remove it or name another folder"
            ) from error
        return
    except (OSError, ValueError) as error:
        if isinstance(error, NotADirectoryError) and output.is_file():
            raise OutputError(f"output {str(output)!r} is a file; name a folder with -o") from error
        raise OutputError(
            f"cannot write to {str(output)!r} ({_reason(error)}); name another folder"
        ) from error
    if not names:
        return
    if not overwrite:
        raise OutputError(
            f"output folder {str(output)!r} exists already; name another one or add --overwrite"
        )
    inside = [path for path in inputs if _holds(output, path)]
    if inside:
        raise OutputError(
            f"output folder {str(output)!r} holds {str(inside[0])!r}, which the export reads; "
            "name another folder"
        )
    if MANIFEST_NAME not in names:
        raise OutputError(
            f"output folder {str(output)!r} holds no {MANIFEST_NAME}, so it is no earlier export "
            "and --overwrite leaves it alone; name another one, or remove it yourself"
        )


def _holds(folder: Path, path: Path) -> bool:
    """Whether a path lies inside a folder, as it is written or where its links lead."""
    places = (Path(os.path.abspath(path)), Path(os.path.realpath(path)))
    homes = (Path(os.path.abspath(folder)), Path(os.path.realpath(folder)))
    return any(home == place or home in place.parents for home in homes for place in places)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


@contextmanager
def staging_folder(output: Path, *, overwrite: bool, bytes_needed: int) -> Iterator[Path]:
    """Yields a folder beside ``output`` that takes its name when the block ends well.

    When the block raises, the folder is removed and whatever stood at ``output`` is untouched.

    Args:
        output: the folder to appear; its parents are made.
        overwrite: replace a folder that is there already.
        bytes_needed: free space to insist on before anything is written.

    Raises:
        OutputError: ``output`` exists, its parent cannot be written, or the disk is too small.
    """
    check_output(output, overwrite=overwrite)
    output = Path(os.path.realpath(output))  # a link stays, what it leads to is replaced
    staging = output.with_name(f".{output.name}.partial-{os.getpid()}")
    missing = [parent for parent in output.parents if not parent.exists()]
    try:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            _check_space(output.parent, bytes_needed)
            staging.mkdir()
        except OSError as error:
            raise OutputError(
                f"cannot write to {str(output.parent)!r}: {error.strerror}; name another folder"
            ) from error
        try:
            yield staging
            _take_place(staging, output, overwrite=overwrite)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise OutputError(
                    f"the disk of {str(output.parent)!r} is full ({error.strerror}); nothing was "
                    "left behind, free some space and run again"
                ) from error
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except BaseException:
        for parent in missing:  # from the inside out; those that hold anything stay
            with suppress(OSError):
                parent.rmdir()
        raise


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OutputError(
            f"{str(folder)!r} has {free / 1e6:.0f} MB free, the export needs about "
            f"{needed / 1e6:.0f} MB; free some space or choose another output"
        )


def _take_place(staging: Path, output: Path, *, overwrite: bool) -> None:
    try:
        staging.rename(output)  # also onto an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise OutputError(
                f"cannot make {str(output)!r}: {error.strerror}; name another folder"
            ) from error
    check_output(output, overwrite=overwrite)  # somebody else may have been faster
    # Two renames, so that a reader sees the old folder or the new one, never a mixture.
    old = output.with_name(f".{output.name}.replaced-{os.getpid()}")
    output.rename(old)
    try:
        staging.rename(output)
    except OSError:
        old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def copy_side_files(source: Path, folder: Path) -> list[str]:
    """Copies tokenizer and configuration files that lie beside the model; returns their names."""
    copied = []
    for name in SIDE_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
            copied.append(name)
    return copied
