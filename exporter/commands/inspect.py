"""``minicache inspect``: what the exporter finds in a model, without exporting it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

NARROWEST, WIDEST = 40, 100  # columns that sentences are wrapped at on a terminal


def add_inspect_parser(subparsers: Any) -> None:
    """Adds the parser of ``inspect``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect", help="tell what the exporter finds in a model"
    )
    parser.add_argument("model", type=Path, help="model.onnx, or a folder that holds one")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/models.md)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the model's attention layers and what can be merged."""
    from minicache.exporter.inspect import inspect_model
    from minicache.exporter.reporting.inspect_text import inspect_lines

    facts = inspect_model(arguments.model)
    if arguments.json:
        print(json.dumps(facts, indent=1))
        return 0
    width = None
    if sys.stdout.isatty():
        width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
    print("\n".join(inspect_lines(facts, width)))
    return 0
