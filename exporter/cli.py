"""The command line: ``minicache COMMAND`` and ``minicache-export`` (= ``minicache export``).

Exit codes: 0 done, 1 an internal error or a failed proof, 2 a user error, 130 interrupted,
143 terminated, 129 hung up.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from minicache.exporter import commands
from minicache.runtime import commands as runtime_commands
from minicache.runtime.errors import MiniCacheError

_DESCRIPTION = "Puts the KV cache of a decoder-LLM ONNX graph into merged, in-place buffers."
_EPILOG = "Each command explains itself: minicache COMMAND --help"


class _Parser(argparse.ArgumentParser):
    """Prints one sentence for a wrong option, as all our errors do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``minicache`` with all sub-commands."""
    parser = _Parser(prog="minicache", description=_DESCRIPTION, epilog=_EPILOG)
    version = importlib.metadata.version("minicache-onnx")
    parser.add_argument("--version", action="version", version=f"minicache-onnx {version}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    commands.add_export_parser(subparsers)
    commands.add_profile_parser(subparsers)
    commands.add_inspect_parser(subparsers)
    commands.add_estimate_parser(subparsers)
    commands.add_kernels_parser(subparsers)
    commands.add_build_engine_parser(subparsers)
    runtime_commands.add_generate_parser(subparsers)
    runtime_commands.add_evaluate_parser(subparsers)
    runtime_commands.add_bench_parser(subparsers)
    runtime_commands.add_env_parser(subparsers)
    for sub in subparsers.choices.values():
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


class _Terminated(BaseException):
    """A signal came; a BaseException, so that it only passes blocks that clean up."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def _terminable() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into an exception while its block runs."""

    def stop(number: int, _: Any) -> None:
        raise _Terminated(number)

    caught = []
    if threading.current_thread() is threading.main_thread():  # only it may set handlers
        numbers = (signal.SIGTERM, signal.SIGHUP)
        caught = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]  # nohup ignores one
    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def _run(arguments: argparse.Namespace) -> int:
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    # Python has None for a stream that was closed at its start, as daemons do.
    sys.stdout, sys.stderr = (
        open(os.devnull, "w", encoding="utf-8") if stream is None else stream  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr)
    )
    if not arguments.debug:
        # It logs what it dislikes in a damaged graph, tracebacks included; our sentence follows.
        logging.getLogger("onnx_ir").setLevel(logging.CRITICAL + 1)
    try:
        with _terminable():
            return run(arguments) or 0
    except MiniCacheError as error:
        code, message = error.exit_code, str(error)
        if arguments.debug:
            traceback.print_exc()
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    except _Terminated as error:
        code, message = error.exit_code, f"terminated by {error}"
    except BrokenPipeError:
        # The reader of our output went away (`| head`): that is its right, not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        code, message = 1, "not enough memory; use a shorter context or a smaller batch"
    except OSError as error:
        # Wherever it came from: files and devices are the user's, not the program's.
        code = 2
        where = "a file or stream" if error.filename is None else repr(os.fspath(error.filename))
        message = f"{where} cannot be used ({error.strerror or error}); check it and its folder"
        if arguments.debug:
            traceback.print_exc()
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
