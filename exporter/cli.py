"""The command line: ``minicache COMMAND`` and ``minicache-export`` (= ``minicache export``).

Exit codes: 0 done, 1 an internal error or a failed proof, 2 a user error, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from minicache.exporter import commands
from minicache.runtime import commands as runtime_commands
from minicache.runtime.errors import MiniCacheError

_EPILOG = "Each command explains itself: minicache COMMAND --help"


class _Parser(argparse.ArgumentParser):
    """Prints one sentence for a wrong option, as all our errors do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``minicache`` with all sub-commands."""
    parser = _Parser(
        prog="minicache", description=__doc__ and __doc__.splitlines()[0], epilog=_EPILOG
    )
    version = importlib.metadata.version("minicache-onnx")
    parser.add_argument("--version", action="version", version=f"minicache-onnx {version}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    commands.add_export_parser(subparsers)
    commands.add_profile_parser(subparsers)
    commands.add_inspect_parser(subparsers)
    runtime_commands.add_generate_parser(subparsers)
    runtime_commands.add_evaluate_parser(subparsers)
    runtime_commands.add_env_parser(subparsers)
    for sub in subparsers.choices.values():
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    try:
        return run(arguments) or 0
    except MiniCacheError as error:
        code, message = error.exit_code, str(error)
        if arguments.debug:
            traceback.print_exc()
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    except BrokenPipeError:
        # The reader of our output went away (`| head`): that is its right, not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        code, message = 1, "not enough memory; use a shorter context or a smaller batch"
    except Exception as error:
        code = 1
        message = f"internal error: {type(error).__name__}: {error}; please report it with --debug"
        if arguments.debug:
            traceback.print_exc()
    print(f"minicache: {message}", file=sys.stderr)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``minicache``; returns the exit code."""
    return _run(build_parser().parse_args(argv))


def export_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``minicache-export``."""
    return main(["export", *(sys.argv[1:] if argv is None else argv)])
