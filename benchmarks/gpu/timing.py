"""How long work takes on a GPU, by CUDA events."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

Run = Callable[[], object]
REPEATS, WARM_UP = 20, 3


def median_ms(run: Run, repeats: int = REPEATS) -> float:
    """The median of some runs, each between two events, after a warm-up."""
    for _ in range(WARM_UP):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (_event() for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(statistics.median(times))


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def graph_of(run: Run) -> Run:
    """The same work from a CUDA graph, in which launches cost next to nothing."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Run = graph.replay
    return replay


def copy_bandwidth(size: int = 2**30) -> float:
    """Bytes per second, read and written, of a copy that fits no cache."""
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / (median_ms(lambda: target.copy_(source)) / 1e3)


def half_peak(size: int = 8192) -> float:
    """Operations per second of a large fp16 product."""
    a, b = (torch.randn(size, size, dtype=torch.float16, device="cuda") for _ in range(2))
    return 2 * size**3 / (median_ms(lambda: torch.mm(a, b)) / 1e3)
