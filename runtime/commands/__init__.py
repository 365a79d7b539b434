"""Sub-commands of the runtime: each file adds one parser and holds what it runs."""

from __future__ import annotations

from minicache.runtime.commands.bench import add_bench_parser
from minicache.runtime.commands.env import add_env_parser
from minicache.runtime.commands.evaluate import add_evaluate_parser
from minicache.runtime.commands.generate import add_generate_parser

__all__ = ["add_bench_parser", "add_env_parser", "add_evaluate_parser", "add_generate_parser"]
