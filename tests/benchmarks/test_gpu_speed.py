"""The timings of ``gpu_check.py`` with kernels that do nothing, on the host: no number counts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the script needs PyTorch")

from benchmarks import estimate_gpu  # noqa: E402
from benchmarks.gpu import layers, speed, sweep  # noqa: E402
from minicache.plugins.triton.variant import parse_key  # noqa: E402


class Idle:
    """Takes launches, and counts them by kernel."""

    device = "cpu"

    def __init__(self) -> None:
        self.kernels: dict[str, int] = {}

    def table(self, values: Sequence[int]) -> int:
        return 0

    def load(self, launches: Any) -> Any:
        return [parse_key(launch.key).kernel for launch in launches]

    def enqueue(self, loaded: Any) -> None:
        for kernel in loaded:
            self.kernels[kernel] = self.kernels.get(kernel, 0) + 1


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch, ort_library: object) -> Idle:
    """Small shapes on the host, and a clock that stands."""

    def once(run: Any) -> float:
        run()
        return 1.0

    for module in (speed, sweep):
        monkeypatch.setattr(module, "graph_of", lambda run: run)
        monkeypatch.setattr(module, "median_ms", once)
    monkeypatch.setattr(layers, "DEVICE", "cpu")
    monkeypatch.setattr(speed, "DECODE", (speed.Shape(2, 256),))
    monkeypatch.setattr(speed, "PROMPTS", (speed.Shape(1, 64, 32),))
    monkeypatch.setattr(speed, "MOST_LAYERS", 2)
    monkeypatch.setattr(sweep, "PAST", 256)
    monkeypatch.setattr(sweep, "LAYERS", 1)
    return Idle()


def test_every_format_is_timed(idle: Any) -> None:
    """Attention apart from encoding, and the bytes of the cache by hand."""
    device, told = estimate_gpu.DEVICES[0], list[Any]()
    rows = list(speed.speed_rows(idle, 1e12, device, time.monotonic() + 600, told.append))
    assert [row.get("error") for row in rows] == [None] * 2 * len(layers.FORMATS)
    assert len(told) == 2 and [each["ms"] for each in told] == [0.5, 1.0]
    exact = rows[0]
    assert exact["MiB"] == 2 * 256 * 8 * 128 * 2 * 2 / 2**20
    assert exact["layer ms"] == 1.0 and exact["attention ms"] == 0.5
    assert all(math.isfinite(row["estimate ms"]) for row in rows[: len(layers.FORMATS)])
    # slerp, 8 bit: 188 coded tokens of 2 * 8 heads, 128 bytes and 2 magnitudes; 68 exact ones.
    coded = 2 * 188 * 2 * 8 * (128 + 2)
    assert rows[1]["MiB"] == (coded + 2 * 68 * 2 * 8 * 128 * 2) / 2**20
    assert {"project", "attend_codes", "attend_exact", "finish", "encode"} <= set(idle.kernels)
    assert {"gather", "project_joint", "quantise_joint", "store"} <= set(idle.kernels)


def test_the_sweep_takes_one_kernel_at_a_time(idle: Any) -> None:
    rows = list(sweep.sweep_rows(lambda pack: idle, time.monotonic() + 600))
    assert len(rows) == len(sweep.SWEPT) * len(sweep.SHAPES) * len(sweep.SPLITS)
    assert set(idle.kernels) == {"attend_exact", "attend_codes"}
    assert len(sweep.best(rows)) == len(sweep.SWEPT)


def test_keys_need_no_device(ort_library: object) -> None:
    """And say what the timings launch."""
    keys = speed.speed_keys()
    assert all(parse_key(key).hinted for key in keys)
    assert set(sweep.sweep_keys()) <= set(keys)
