"""The benchmark of large models, on small ones: what it writes, and what it measures."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import onnx
import pytest

from benchmarks import bench_large_model as bench
from benchmarks.synthetic.decoder import write_decoder
from benchmarks.synthetic.sizes import FORMS, Decoder, decoder_of
from benchmarks.watched_process import watch

TINY = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 96,
        "vocabulary": 300, "positions": 256}  # fmt: skip
MEGABYTE = 1 << 20

OWN_MEMORY = """
import sys, time
held = bytearray(100 << 20)
time.sleep(0.5)
print("holding memory: done in 0.4 s", file=sys.stderr)
"""
MAPPED_MEMORY = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sum(mapped[::4096])
    time.sleep(0.5)
"""
CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]], stderr=subprocess.DEVNULL)
"""


def digests(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bytes_everywhere(form: str, tmp_path: Path) -> None:
    decoder = Decoder(**TINY, form=form)  # type: ignore[arg-type]
    for name in ("one", "two"):
        write_decoder(decoder, tmp_path / name)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    model = onnx.load(tmp_path / "one" / "model.onnx", load_external_data=False)
    matrices = [t for t in model.graph.initializer if len(t.dims) == 2 and "cache" not in t.name]
    size = 4 * sum(t.dims[0] * t.dims[1] for t in matrices)
    assert size == 2 * decoder.layer_bytes + decoder.outer_bytes
    tables = onnx.load(tmp_path / "one" / "model.onnx").graph.initializer
    assert len({t.raw_data for t in tables if t.name.startswith("onnx::MatMul")}) > 10


def test_size_is_what_was_asked_for() -> None:
    decoder = decoder_of(3.0, 32000, "F1")
    size = decoder.layers * decoder.layer_bytes + decoder.outer_bytes
    assert 3e9 <= size < 3e9 + decoder.layer_bytes
    assert decoder_of(0.1, 32000, "F1").layers == 2


def test_own_memory_is_anonymous_and_belongs_to_its_step() -> None:
    found = watch([sys.executable, "-c", OWN_MEMORY])
    assert 100 * MEGABYTE <= found.peak_anonymous < 150 * MEGABYTE
    assert found.peak_resident >= 100 * MEGABYTE
    (step,) = found.steps
    assert (step.label, step.seconds) == ("holding memory", 0.4)
    assert step.anonymous >= 100 * MEGABYTE
    assert found.wall_seconds > 0.5 > found.cpu_seconds > 0


def test_mapped_files_are_resident_only(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"\1" * (100 * MEGABYTE))
    found = watch([sys.executable, "-c", MAPPED_MEMORY, file])
    assert found.peak_resident >= 100 * MEGABYTE
    assert found.peak_anonymous < 50 * MEGABYTE


def test_children_count() -> None:
    found = watch([sys.executable, "-c", CHILD, OWN_MEMORY])
    assert found.peak_anonymous >= 100 * MEGABYTE


def test_a_failure_is_told() -> None:
    with pytest.raises(SystemExit, match="no such model"):
        watch([sys.executable, "-c", "raise SystemExit('no such model')"])


@pytest.mark.slow
@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize(("form", "inline"), [("F1", False), ("F4", True)])
def test_runs_and_cleans_up(
    form: str, inline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Decoder(**TINY, form=form)  # type: ignore[arg-type]
    monkeypatch.setattr(bench, "decoder_of", lambda *_: tiny)
    given = argparse.Namespace(
        gigabytes=0.0, vocabulary=300, form=form, inline=inline, mode=["exact"]
    )
    result = bench.run(given, tmp_path)
    rows = result["runs"]
    assert isinstance(rows, dict)
    assert list(rows) == [
        "ONNX Runtime opens it", "onnx.load and onnx.save", "export --mode exact"
    ]  # fmt: skip
    steps = {step["label"] for step in rows["export --mode exact"]["steps"]}
    assert {"reading the graph", "writing the weights", "proving parity"} <= steps
    assert rows["export --mode exact"]["output_bytes"] > 0
    assert not (tmp_path / "output").exists()
    assert (tmp_path / "original" / "model.onnx.data").exists() != inline
