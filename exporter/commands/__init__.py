"""Sub-commands of the exporter: each file adds one parser and holds what it runs."""

from __future__ import annotations

from minicache.exporter.commands.build_engine import add_build_engine_parser
from minicache.exporter.commands.estimate import add_estimate_parser
from minicache.exporter.commands.export import add_export_parser
from minicache.exporter.commands.inspect import add_inspect_parser
from minicache.exporter.commands.kernels import add_kernels_parser
from minicache.exporter.commands.profile import add_profile_parser

__all__ = [
    "add_build_engine_parser",
    "add_estimate_parser",
    "add_export_parser",
    "add_inspect_parser",
    "add_kernels_parser",
    "add_profile_parser",
]
