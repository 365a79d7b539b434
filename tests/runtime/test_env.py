"""``collect_env`` says what it finds, and goes on when a probe fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minicache.runtime import env
from tests.runtime.fake_cuda import Status
from tests.runtime.fake_tensorrt import FakeTensorrt


def test_it_names_versions_and_the_machine() -> None:
    facts = env.collect_env()
    json.dumps(facts)
    assert set(facts) == {"system", "packages", "onnxruntime", "library", "tensorrt"}
    assert facts["packages"]["numpy"] and facts["onnxruntime"]["supported"] == "1.20 or later"
    assert "CPUExecutionProvider" in facts["onnxruntime"]["providers"]
    assert facts["system"]["cores"] >= 1


def test_it_names_the_library(ort_library: Path) -> None:
    facts = env.collect_env()["library"]
    assert facts["path"] == str(ort_library)
    assert isinstance(facts["abi version"], int) and facts["instruction set"]


def test_it_names_what_an_engine_would_run_on(fake_trt: FakeTensorrt) -> None:
    facts = env.collect_env()["tensorrt"]
    assert facts["TensorRT"] == "10.14.1.48"
    assert facts["plugin"].endswith("libminicache_trt.so")
    assert facts["GPU"] == "Fake GPU, compute capability 8.7"
    fake_trt.driver.failing["cuInit"] = Status.CUDA_ERROR_NO_DEVICE
    facts = env.collect_env()["tensorrt"]
    assert facts["TensorRT"] == "10.14.1.48" and "CUDA_ERROR_NO_DEVICE" in facts["GPU"]


def test_a_broken_library_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.so").write_text("not a library")
    monkeypatch.setenv("MINICACHE_ORT_LIBRARY", str(tmp_path / "bad.so"))
    monkeypatch.setattr(env, "_system", lambda: 1 / 0)
    facts = env.collect_env()
    assert facts["library"].startswith("not available: OSError")
    assert facts["system"].startswith("not available: ZeroDivisionError")
    env.print_env(facts)
    assert "not available" in capsys.readouterr().out
