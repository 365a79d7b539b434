"""Walks through every mode on a GPU, call by call against the NumPy reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.device_group import DeviceGroup, Engine, call_keys
from tests.helpers import Call
from tests.plugins.comparison import Comparison
from tests.plugins.evicting_walk import EvictingWalk
from tests.plugins.gpu.walk_modes import (
    EVICTING,
    LARGE,
    MODES,
    Group,
    Size,
    compare,
    empty_state,
    subspace,
    walk_calls,
    walk_text,
)

UNKNOWN = float("nan")
MAIN, PTX = "main", "ptx"  # packs: of this architecture's code, and of PTX alone
ODD = (8, 24, 4, 40, 2, 72)  # segments that are no multiples of 16 bytes: other variants
EXTRAS = {"has_bias": 1, "has_sink": 1, "softcap": 5.0}


@dataclass(frozen=True)
class Walk:
    """A walk to make.

    Attributes:
        name: for the table.
        make: the group, at a size.
        pack: whose kernels it launches.
        dtype: NumPy's name of the model's type.
        steps: how many of the walk's; all unless given.
        graph: decode one step more from a CUDA graph.
    """

    name: str
    make: Callable[[Size], Group]
    pack: str = MAIN
    dtype: str = "float16"
    steps: int | None = None
    graph: bool = False


WALKS = (
    *(Walk(mode, make, graph=mode in ("exact", "subspace", "budget"))
      for mode, make in MODES.items()),
    *(Walk(mode, make) for mode, make in EVICTING.items()),
    Walk("bfloat16 with bias, sink, softcap", lambda size: subspace(size, **EXTRAS),
         dtype="bfloat16", steps=2),
    Walk("segments without hints", lambda size: subspace(size, key_bits=ODD, value_bits=ODD),
         steps=2),
    Walk("subspace from PTX", MODES["subspace"], pack=PTX),
)  # fmt: skip


@dataclass
class Outcome:
    """What came of a walk; ``error`` is relative to the largest expected magnitude."""

    name: str
    passed: bool
    error: float
    tolerance: float
    seconds: float
    message: str = ""


def model_type(name: str) -> Any:
    """A NumPy type."""
    if name == "bfloat16":
        import ml_dtypes  # only where it is needed

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def make_calls(walk: Walk, size: Size) -> tuple[Group, list[Call], dict[str, Any]]:
    """The group of a walk, its calls, and the empty state."""
    dtype = model_type(walk.dtype)
    attributes, tables = walk.make(size)
    text = walk_text(attributes, size, dtype)
    calls = walk_calls(attributes, text, size.steps[: walk.steps])
    return (attributes, tables), calls, empty_state(attributes, size, dtype)


def walk_keys(walks: Sequence[Walk], size: Size, pack: str) -> list[str]:
    """The kernels that walks launch from a pack."""
    keys: dict[str, None] = {}
    for walk in walks:
        if walk.pack != pack:
            continue
        (attributes, tables), calls, state = make_calls(walk, size)
        calls += [one_token(calls[-1])] if walk.graph else []
        for call in calls:
            keys |= dict.fromkeys(call_keys(attributes, call, state, tables))
    return list(keys)


def run_walks(
    walks: Sequence[Walk], size: Size, engine_of: Callable[[str], Engine], deadline: float
) -> Iterator[Outcome]:
    """Makes walks until the time is up; ``engine_of`` gives the engine of a pack."""
    for walk in walks:
        start = time.monotonic()
        if start > deadline:
            yield Outcome(walk.name, False, UNKNOWN, UNKNOWN, 0, "no time was left")
            continue
        comparison: Comparison | None = None
        message = ""
        try:
            (attributes, tables), calls, state = make_calls(walk, size)
            group = DeviceGroup(
                engine_of(walk.pack), attributes, state, model_type(walk.dtype), tables,
                None if size is LARGE else {"split_tokens": 32},
            )  # fmt: skip
            comparison = compare(group)
            if attributes["evicts"]:
                text = walk_text(attributes, size, model_type(walk.dtype))
                evicting = EvictingWalk(attributes, text, "some", 1, slack_of(size))
                evicting.run(group, comparison.step, size.steps[: walk.steps], group.write)
                calls = []
            for call in calls:
                comparison.step(call)
            comparison.finish()
            if walk.graph and group.engine.device == "cuda":
                check_graph(group, comparison, calls[-1])
        except Exception as error:  # the others go on
            message = f"{type(error).__name__}: {error}"[:400]
        seconds = time.monotonic() - start
        worst, tolerance = UNKNOWN, UNKNOWN
        if comparison is not None:
            worst, tolerance = comparison.worst, comparison.tolerance
        yield Outcome(walk.name, not message, worst, tolerance, seconds, message)


def slack_of(size: Size) -> int:
    """X: how far the rows of a walk may go back, in any mode."""
    return int(size.given["ring_slots"] - size.given["window"])


def one_token(after: Call, skip: int = 0) -> Call:
    """A call of one token in every row, after a call; ``skip`` tells tokens apart."""
    rng = np.random.default_rng(skip)

    def cut(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        shape = arrays[0].shape[0], 1, arrays[0].shape[2]
        return [rng.standard_normal(shape).astype(arrays[0].dtype) for _ in arrays]

    past = after.total + np.int32(skip)
    new = cut(after.queries), cut(after.keys), cut(after.values)
    return Call(*new, past, past + np.int32(1))


def check_graph(group: DeviceGroup, comparison: Comparison, last: Call) -> None:
    """Two decode steps from one CUDA graph, the second with other lengths, against two eager ones.

    Raises:
        AssertionError: they differ, from each other or from the reference.
    """
    import torch

    steps = [one_token(last), one_token(last, 1)]
    before = group.state
    eager = [comparison.step(step) for step in steps]
    after = group.state
    for name, buffer in group.buffers.items():
        buffer.write(before[name])
    nodes = group.prepare(steps[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        group.enqueue(nodes)
    for step, expected in zip(steps, eager, strict=True):
        group.rewrite(nodes, step)
        graph.replay()
        for layer, (a, b) in enumerate(zip(group.results(nodes), expected, strict=True)):
            np.testing.assert_array_equal(a, b, f"layer {layer} of a CUDA graph at {step.past}")
    for name, array in group.state.items():
        a, b = (x.reshape(-1).view(np.uint8) for x in (array, after[name]))
        np.testing.assert_array_equal(a, b, f"{name} after a CUDA graph")
