"""``minicache kernels``: compiles the GPU kernels of a folder that was exported without them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_kernels_parser(subparsers: Any) -> None:
    """Adds the parser of ``kernels``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "kernels", help="compile the GPU kernels of an exported folder into it"
    )
    parser.add_argument("folder", type=Path, help="exported with --target ort-cuda or tensorrt")
    parser.add_argument(
        "--arch",
        type=int,
        nargs="+",
        metavar="N",
        help="compute capabilities, such as 80 or 90; all that are supported unless given",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compiles the kernels."""
    from minicache.exporter.kernels import write_kernels
    from minicache.exporter.targets import find_target
    from minicache.plugins.triton.build import ARCHITECTURES
    from minicache.runtime.errors import PlanError
    from minicache.runtime.manifest import Manifest

    manifest = Manifest.load(arguments.folder)
    if not find_target(manifest.target).kernel_pack:
        raise PlanError(
            f"{str(arguments.folder)!r} was exported for {manifest.target!r}, which has no GPU "
            "kernels; export with --target ort-cuda or tensorrt"
        )
    unknown = sorted({*(arguments.arch or ())} - {*ARCHITECTURES})
    if unknown:
        known = ", ".join(map(str, ARCHITECTURES))
        raise PlanError(f"--arch {unknown[0]} is not one of {known}")
    path = write_kernels(
        arguments.folder, manifest, architectures=arguments.arch, quiet=arguments.quiet
    )
    print(path)
    return 0
