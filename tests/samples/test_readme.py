"""Every command of the README runs: console lines in a shell, Python blocks as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.byte_tokenizer import byte_tokenizer

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
FIXTURE = REPOSITORY / "tests" / "fixtures" / "onnx-llama3-gqa-optimum-fp32"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def console_commands() -> list[str]:
    """Lines that begin with `$ `, continued lines joined, comments cut off."""
    text = "\n".join(blocks("console")).replace("\\\n", " ")
    lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s+# .*", "", line).strip() for line in lines]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user may have it: a model with its tokenizer, and a text."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(FIXTURE, folder / "model")
    byte_tokenizer().save(str(folder / "model" / "tokenizer.json"))
    words = "The cache of a decoder grows with every token that it reads. "
    (folder / "text.txt").write_text(words * 400, encoding="utf-8")
    return folder


def run(command: str, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["MINICACHE_CACHE"] = str(folder / "cache")  # and not the user's
    result = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_the_readme_begins_with_the_two_commands() -> None:
    assert console_commands()[:2] == ["make demo", "make test"]


@pytest.mark.slow
def test_every_command_runs_in_the_order_given(workplace: Path) -> None:
    commands = console_commands()
    assert any(command.startswith("minicache-export") for command in commands)
    for command in commands:
        if command.startswith("make "):
            run(f"make -n -C {REPOSITORY} {command.removeprefix('make ')}", workplace)
        elif command.startswith(("minicache", "ls ")):
            run(command, workplace)
        else:
            # Installing again would test pip, not us; the suite itself runs from an installation.
            assert command.startswith(("pip install", "git clone", "cd ")), command


@pytest.mark.slow
def test_the_python_blocks_run_after_the_commands(workplace: Path) -> None:
    if not (workplace / "out").exists():
        run("minicache-export model -o out", workplace)
    for block in blocks("python"):
        result = subprocess.run(
            [sys.executable, "-c", block], cwd=workplace, capture_output=True, text=True
        )
        assert result.returncode == 0, f"{block}\n{result.stderr}"
