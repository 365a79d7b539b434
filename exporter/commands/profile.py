"""``minicache profile``: how alike adjacent layers are, and what each mode would lose."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console


def add_profile_parser(subparsers: Any) -> None:
    """Adds the parser of ``profile``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "profile",
        help="measure how alike adjacent layers' keys and values are",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="the original model.onnx, or its folder")
    parser.add_argument("--text", type=Path, help="UTF-8 text; None takes the built-in one")
    parser.add_argument("-o", "--output", type=Path, help="folder for profile.json and the plots")
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens to read")
    parser.add_argument("--quiet", action="store_true", help="no progress, no table")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Profiles the model and prints the table."""
    from minicache.exporter.profiling.profile import run_profile

    profile = run_profile(
        arguments.model,
        arguments.text,
        arguments.output,
        max_tokens=arguments.max_tokens,
        quiet=arguments.quiet or arguments.json,
    )
    if arguments.json:
        print(json.dumps(profile.to_json(), indent=1))
    elif not arguments.quiet:
        profile.print_table(Console(markup=False))
    return 0
