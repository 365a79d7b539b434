"""The examples of docs/runtime.md run, in their order."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "runtime.md"


@pytest.mark.usefixtures("ort_library")
def test_every_example_runs(
    tiny_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 8
    shutil.copytree(tiny_folder("slerp"), tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, example in enumerate(examples):
        code = compile(example, f"{PAGE.name}, example {number}", "exec")
        exec(code, names)
    assert "does not fit into memory" in capsys.readouterr().out
    assert (tmp_path / "system.safetensors").stat().st_size < 20_000
