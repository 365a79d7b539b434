"""The runtime's sub-commands: what goes to stdout, what to stderr, and how they end."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from minicache.runtime import commands
from minicache.runtime.errors import PackageError, SessionError
from minicache.runtime.progress import progress
from minicache.runtime.session import Session

TINY = Callable[..., Path]
PROMPT = "Once upon a time"


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(required=True)
    commands.add_generate_parser(subparsers)
    commands.add_evaluate_parser(subparsers)
    commands.add_env_parser(subparsers)
    parsed = parser.parse_args([str(argument) for argument in arguments])
    return int(parsed.run(parsed))


@pytest.fixture
def folder(backend: str, tiny_folder: TINY) -> Path:
    return tiny_folder("exact")


def test_generate_streams_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", folder, "--prompt", PROMPT, "--max-new-tokens", 7) == 0
    captured = capsys.readouterr()
    with Session(folder) as session:
        expected = "".join(token.text for token in session.generate(PROMPT, 7))
    assert captured.out == expected + "\n"
    assert "16 prompt tokens" in captured.err and "7 new" in captured.err
    assert "length" in captured.err


def test_generate_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", folder, "--prompt", PROMPT, "--max-new-tokens", 4, "--json") == 0
    captured = capsys.readouterr()
    content = json.loads(captured.out)
    assert len(content["token_ids"]) == len(content["logprobs"]) == content["new_tokens"] == 4
    assert content["finish_reason"] == "length" and content["prompt_tokens"] == 16
    assert captured.err == ""


def test_generate_reads_stdin(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT + "\n"))
    run("generate", folder, "--prompt", "-", "--max-new-tokens", 7)
    piped = capsys.readouterr().out
    run("generate", folder, "--prompt", PROMPT, "--max-new-tokens", 7)
    assert capsys.readouterr().out == piped


def test_generate_refuses_before_it_prints(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SessionError, match="top_p"):
        run("generate", folder, "--prompt", "x", "--top-p", 3)
    with pytest.raises(PackageError, match="minicache-export"):
        run("generate", tmp_path, "--prompt", "x")
    with pytest.raises(PackageError, match="chat template"):
        run("generate", folder, "--prompt", "x", "--chat")
    assert capsys.readouterr().out == ""


def test_an_interrupt_leaves_a_whole_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = Session.forward, [0]

    def interrupted(*arguments: object, **options: object) -> object:
        calls[0] += 1
        if calls[0] == 5:
            raise KeyboardInterrupt
        return forward(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("generate", folder, "--prompt", PROMPT, "--max-new-tokens", 30)
    assert capsys.readouterr().out.endswith("\n")


def test_evaluate_prints_a_table_or_json(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("some words " * 20)
    arguments = ("evaluate", folder, "--text", tmp_path / "text.txt", "--context", 64)
    assert run(*arguments, "--quiet") == 0
    captured = capsys.readouterr()
    assert "perplexity, exported" in captured.out and "KL" not in captured.out
    assert captured.err == ""
    assert run(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 3


def test_env_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("env") == 0
    assert "onnxruntime" in capsys.readouterr().out
    assert run("env", "--json") == 0
    assert "packages" in json.loads(capsys.readouterr().out)


def test_progress_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("counting", total=2) as step:
        step.advance()
        step.advance()
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("counting: done in ")
    with progress("counting", quiet=True) as step:
        step.advance()
    assert capsys.readouterr().err == ""


def test_progress_of_a_failed_step_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), progress("counting"):
        raise ValueError("broken")
    assert capsys.readouterr().err == ""


def test_a_sampling_option_without_effect_is_refused(folder: Path) -> None:
    """Greedy text would look as if `--top-p 0.9` had been heeded."""
    with pytest.raises(SessionError, match="--top-p has no effect"):
        run("generate", folder, "--prompt", "x", "--top-p", 0.9)
