"""``minicache build-engine``: a TensorRT engine of a folder exported with ``--target tensorrt``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_build_engine_parser(subparsers: Any) -> None:
    """Adds the parser of ``build-engine``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "build-engine", help="build a TensorRT engine of an exported folder, into it"
    )
    parser.add_argument("folder", type=Path, help="exported with --target tensorrt")
    parser.add_argument(
        "--rtx",
        action="store_true",
        help="with TensorRT-RTX; taken anyway where TensorRT is not installed",
    )
    parser.add_argument(
        "--compute-capability",
        dest="capabilities",
        nargs="+",
        default=(),
        metavar="X.Y",
        help="GPUs to build for, such as 8.9; TensorRT-RTX: all that it knows unless given; "
        "TensorRT builds for the GPU at hand",
    )
    parser.add_argument(
        "--max-batch-size", type=int, default=1, metavar="B", help="largest number of rows (1)"
    )
    parser.add_argument(
        "--chunk", type=int, default=512, metavar="S", help="most new tokens of one call (512)"
    )
    parser.add_argument(
        "--single-profile",
        action="store_true",
        help="one profile for decode steps and prefill; TensorRT-RTX keeps the weights once per "
        "profile, so that this halves the engine",
    )
    parser.add_argument(
        "--timing-cache",
        type=Path,
        metavar="FILE",
        help="makes later builds faster; in the user's cache folder unless given",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Builds the engine and says what it is."""
    from minicache.exporter.engine.builder import BuildOptions, build_engine
    from minicache.runtime.engine_file import ENGINE_NAME, FLAVOURS

    names = BuildOptions.__dataclass_fields__
    options = {name: value for name, value in vars(arguments).items() if name in names}
    result = build_engine(arguments.folder, BuildOptions(**options))
    file = result.file
    print(
        f"{arguments.folder / ENGINE_NAME}: {file.engine_bytes / 1e6:.1f} MB, "
        f"{FLAVOURS[file.flavour]} {file.version}, compute capability "
        f"{', '.join(file.capabilities)}, built in {result.seconds:.1f} s"
    )
    return 0
