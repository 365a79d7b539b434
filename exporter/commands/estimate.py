"""``minicache estimate``: what a model's cache takes in memory, before anything is exported."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_estimate_parser(subparsers: Any) -> None:
    """Adds the parser of ``estimate``."""
    from minicache.exporter.estimation.compare import DEFAULT_RATIOS
    from minicache.exporter.estimation.known_models import KNOWN_MODELS
    from minicache.exporter.planner.goal import DEFAULT_MAX_GROUP_SIZE

    parser: argparse.ArgumentParser = subparsers.add_parser(
        "estimate",
        help="tell what a model's cache would take, by mode and ratio",
        epilog=f"Known models: {', '.join(KNOWN_MODELS)}",
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a model.onnx, a config.json, a folder that holds one, an export, or a known model",
    )
    parser.add_argument("--context", type=_positive, help="tokens per sequence; None: the model's")
    parser.add_argument("--batch", type=_positive, default=1, help="sequences")
    parser.add_argument(
        "--memory", metavar="SIZE", help="for caches, e.g. 16GiB: count the streams"
    )
    parser.add_argument(
        "--ratio",
        type=float,
        nargs="+",
        default=list(DEFAULT_RATIOS),
        metavar="R",
        help="of subspace mode, to an fp16 cache (default: 5.33 8 16)",
    )
    parser.add_argument(
        "--max-group-size", type=_positive, default=DEFAULT_MAX_GROUP_SIZE, metavar="G"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Prints a table, or JSON, of every model."""
    from minicache.exporter.estimation.compare import Question, compare
    from minicache.exporter.estimation.find_geometry import find_geometry
    from minicache.exporter.reporting.estimate_text import estimate_lines
    from minicache.runtime.byte_count import read_byte_count

    memory = None if arguments.memory is None else read_byte_count(arguments.memory)
    question = Question(
        arguments.context,
        arguments.batch,
        memory,
        arguments.ratio,
        arguments.max_group_size,
    )
    found = [compare(find_geometry(name), question, name) for name in arguments.models]
    if arguments.json:
        print(json.dumps([one.to_dict() for one in found], indent=1))
        return 0
    tables = [estimate_lines(one, arguments.batch, memory) for one in found]
    print("\n\n".join("\n".join(lines) for lines in tables))
    return 0
