"""Which splits, warps and stages suit a GPU best: of the kernels that read the cache, at one shape.

Warps and stages are no part of a kernel's key: each pair has a pack of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu.device_group import GpuEngine
from benchmarks.gpu.layers import FORMATS, Format, LayerMaker, node_keys
from benchmarks.gpu.timing import graph_of, median_ms
from minicache.plugins.triton.program_shape import ProgramShape
from minicache.plugins.triton.variant import parse_key

BATCH, PAST = 1, 16384
SPLITS = (4, 8, 16, 32, 64, 128)
SHAPES = {
    f"warps{warps}stages{stages}": ProgramShape(warps, stages)
    for warps in (2, 4, 8)
    for stages in (1, 2, 3)
}
LAYERS = 8  # that are timed together, each with its own cache
SWEPT: tuple[tuple[Format, str], ...] = (
    (FORMATS[0], "attend_exact"),
    (FORMATS[1], "attend_codes"),
    (FORMATS[-2], "attend_codes"),
)


def sweep_keys() -> list[str]:
    """The kernels that are swept."""
    keys: dict[str, None] = {}
    for form, kernel in SWEPT:
        found = node_keys(form, BATCH, 1, PAST + 16)
        keys |= dict.fromkeys(key for key in found if parse_key(key).kernel == kernel)
    return list(keys)


def sweep_rows(engine_of: Callable[[str], GpuEngine], deadline: float) -> Iterator[dict[str, Any]]:
    """Times everything until the time is up; a kernel that did not compile has no row."""
    for form, kernel in SWEPT:
        for pack, shape in SHAPES.items():
            if time.monotonic() > deadline:
                return
            engine = engine_of(pack)
            maker = LayerMaker(engine, form, BATCH, PAST)
            layers = [maker.tensors() for _ in range(LAYERS)]
            for splits in SPLITS:
                try:
                    # Twice the processors, over the kv heads (plugins/gpu/scratch_layout.cpp).
                    options = {"split_tokens": 1, "multiprocessors": 4 * splits}
                    loaded = [
                        engine.load([
                            launch for launch in maker.plan(tensors, **options).launches
                            if parse_key(launch.key).kernel == kernel
                        ])
                        for tensors in layers
                    ]  # fmt: skip

                    def run(lists: Any = loaded, to: GpuEngine = engine) -> None:
                        for each in lists:
                            to.enqueue(each)

                    ms = median_ms(graph_of(run)) / LAYERS
                except RuntimeError:
                    break
                yield {"kernel": kernel, "format": form.name, "splits": splits,
                       "warps": shape.warps, "stages": shape.stages, "ms": ms}  # fmt: skip


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest row of every kernel and format."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        name = row["kernel"], row["format"]
        if name not in found or row["ms"] < found[name]["ms"]:
            found[name] = row
    return list(found.values())
