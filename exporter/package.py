"""The output folder: it appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minicache.runtime.errors import OutputError

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


def check_output(output: Path, *, overwrite: bool) -> None:
    """Refuses an output that would replace something; worth asking before any long work.

    Raises:
        OutputError: ``output`` is a file, or a folder with content that may not be overwritten.
    """
    if output.exists() and not output.is_dir():
        raise OutputError(f"output {str(output)!r} is a file; name a folder with -o")
    if output.exists() and any(output.iterdir()) and not overwrite:
        raise OutputError(
            f"output folder {str(output)!r} exists already; name another one or add --overwrite"
        )


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
    output = Path(os.path.abspath(output))
    staging = output.with_name(f".{output.name}.partial-{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(output.parent).free
        if free < bytes_needed:
            raise OutputError(
                f"{str(output.parent)!r} has {free / 1e6:.0f} MB free, the export needs about "
                f"{bytes_needed / 1e6:.0f} MB; free some space or choose another output"
            )
        staging.mkdir()
    except OSError as error:
        raise OutputError(f"cannot write to {str(output.parent)!r}: {error.strerror}") from error
    try:
        yield staging
        _take_place(staging, output)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OutputError(
                f"the disk of {str(output.parent)!r} is full ({error.strerror}); nothing was left "
                "behind, free some space and run again"
            ) from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _take_place(staging: Path, output: Path) -> None:
    if not output.exists():
        staging.rename(output)
        return
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
