"""``minicache env``: what a bug report needs to know of this installation."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_env_parser(subparsers: Any) -> None:
    """Adds the parser of ``env``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "env", help="print versions, the op library and the machine, for bug reports"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the environment."""
    from minicache.runtime.env import collect_env, print_env

    env = collect_env()
    if arguments.json:
        print(json.dumps(env, indent=1))
    else:
        print_env(env)
    return 0
