"""What ``minicache.runtime`` offers, and that offering it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import minicache.runtime


def test_every_name_can_be_imported() -> None:
    for name in minicache.runtime.__all__:
        assert getattr(minicache.runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        minicache.runtime.nothing  # noqa: B018


def test_the_errors_import_nothing_heavy() -> None:
    code = (
        "import sys, minicache.runtime.errors, minicache.runtime.env;"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'rich', 'tokenizers'} & set(sys.modules);"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
