"""``minicache inspect``: what the exporter finds in a model, without exporting it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console


def add_inspect_parser(subparsers: Any) -> None:
    """Adds the parser of ``inspect``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect", help="tell what the exporter finds in a model"
    )
    parser.add_argument("model", type=Path, help="model.onnx, or a folder that holds one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the model's attention layers and what can be merged."""
    from minicache.exporter.inspect import inspect_model

    facts = inspect_model(arguments.model)
    if arguments.json:
        print(json.dumps(facts, indent=1))
        return 0
    console = Console(markup=False)
    for name, value in facts.items():
        if isinstance(value, list):
            console.print(f"{name}:", highlight=False)
            for item in value:
                console.print(f"  {item}", highlight=False)
        else:
            console.print(f"{name}: {value}", highlight=False)
    return 0
