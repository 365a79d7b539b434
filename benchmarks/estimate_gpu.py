"""What a decode step on a GPU should take, from the bytes and operations it cannot avoid.

No measurement: the figures that the first run of `gpu_check.py` on a GPU is judged by. A step's
attention takes as long as its memory traffic at an achieved share of the bandwidth, or its matrix
products at an achieved share of the peak, whichever is longer, plus the launches. Products count as
tensor cores execute them: tiles of 16 rows, however few queries there are.

    python benchmarks/estimate_gpu.py --context 8192 32768 131072
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

BANDWIDTH_SHARE = 0.8  # what split decode kernels in Triton reach on long contexts
PEAK_SHARE = 0.4  # mma.sync with the unpacking of codes between the products
LAUNCH_SECONDS = 2e-6  # of a kernel inside a CUDA graph
TILE_ROWS = 16  # of a tensor-core product
WINDOW_TOKENS = 4 + 64 + 64  # sinks and ring, exact
SEGMENT = 1024  # tokens that share a mapped query
PROGRAMS = 216  # that the cached tokens are split for: two for each of an A100's processors


@dataclass(frozen=True)
class Device:
    """Data-sheet figures: memory bandwidth in bytes/s, dense fp16 tensor operations/s."""

    name: str
    bandwidth: float
    peak: float


DEVICES = (
    Device("A100 80 GB SXM", 2.039e12, 312e12),
    Device("H200 SXM", 4.8e12, 989e12),
    Device("Jetson AGX Orin 64 GB", 204.8e9, 42.5e12),
)


@dataclass(frozen=True)
class Model:
    """A decoder: layers, query heads H, kv heads Hk, head size D."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int


MODELS = (
    Model("Llama-3-8B", 32, 32, 8, 128),
    Model("SmolLM2-135M", 30, 9, 3, 64),
)


@dataclass(frozen=True)
class Format:
    """How a cache is kept.

    Attributes:
        name: for the table.
        bits: per element of the group's joint vectors, magnitudes included; 16 with no code.
        layers: of a group, G.
        kept: share of the components that get bits; of keys and values.
        joint: the kv heads of a layer share a code.
        decoder: codes are read through a basis.
    """

    name: str
    bits: float
    layers: int = 1
    kept: float = 1.0
    joint: bool = False
    decoder: bool = False


# Bits and kept shares of `subspace` are those of SmolLM2-135M's plans (bench_quality.py's exports).
FORMATS = (
    Format("fp16, flash decoding", 16),
    Format("exact", 16),
    Format("slerp 8 bit, G = 2", 8 / 2, layers=2),
    Format("slerp 4 bit, G = 2", 4 / 2, layers=2),
    Format("subspace 3.0 bit, G = 4", 2.99, layers=4, kept=0.83, decoder=True),
    Format("subspace 2.0 bit, G = 4", 2.0, layers=4, kept=0.65, decoder=True),
    Format("subspace 2.0 bit, G = 2", 2.0, layers=2, kept=0.65, decoder=True),
    Format("subspace 2.0 bit, G = 4, joint", 2.0, layers=4, kept=0.61, joint=True, decoder=True),
)


@dataclass(frozen=True)
class Step:
    """What one layer's attention needs in one decode step, for a batch.

    Attributes:
        cached: bytes of codes, magnitudes and exact vectors that are read.
        tables: bytes of decoders and, shared out over the group, encoders.
        scratch: bytes of mapped queries and parts, written and read.
        operations: of tensor-core products, padding included.
        launches: kernels.
    """

    cached: float
    tables: float
    scratch: float
    operations: float
    launches: float

    def seconds(self, device: Device) -> float:
        """Estimated time."""
        moved = (self.cached + self.tables + self.scratch) / (BANDWIDTH_SHARE * device.bandwidth)
        return max(moved, self.operations / (PEAK_SHARE * device.peak)) + (
            self.launches * LAUNCH_SECONDS
        )


def step(model: Model, form: Format, context: int, batch: int) -> Step:
    """Counts one layer's decode attention at ``context`` cached tokens per row."""
    code_heads = 1 if form.joint else model.kv_heads
    splits = min(128, max(1, PROGRAMS // (batch * code_heads)))
    elements = 2 * model.kv_heads * model.head_size  # of a layer's token, keys and values
    rows_per_head = model.heads // model.kv_heads
    padded = -(-rows_per_head // TILE_ROWS) * TILE_ROWS * model.kv_heads
    if form.bits == 16:
        cached = batch * context * elements * 2
        operations = batch * context * 4 * padded * model.head_size
        parts = batch * model.heads * splits * (model.head_size + 2) * 4
        return Step(cached, 0, 2 * parts, operations, 2 if form.name != "exact" else 3)
    coded = max(0, context - WINDOW_TOKENS)
    # Every layer reads the whole code of its group.
    group_bytes = form.bits / 8 * elements * form.layers
    magnitudes = 0 if form.decoder else 4 * model.kv_heads  # its own two; counted in `bits` else
    cached = batch * (coded * (group_bytes + magnitudes) + WINDOW_TOKENS * elements * 2)
    components = form.kept * model.head_size * model.kv_heads / code_heads
    components *= form.layers if form.decoder else 1
    if form.joint:
        padded = -(-model.heads // TILE_ROWS) * TILE_ROWS
    operations = batch * coded * 4 * padded * components
    segments = -(-context // SEGMENT) if form.decoder else 1
    mapped = batch * model.heads * segments * components * 2
    parts = batch * model.heads * splits * (components + 2) * 4
    tables = 0.0
    if form.decoder:
        decoders = 2 * model.kv_heads * components * model.head_size * 2
        joint = form.layers * model.head_size * model.kv_heads / code_heads
        encoders = 2 * code_heads * components * joint * 2
        tables = decoders + encoders / form.layers
        operations += batch * segments * 2 * padded * components * model.head_size
    # project, attend_codes, attend_exact, finish; the writer's share of gather, encoders, store.
    launches = 4 + 6 / form.layers
    return Step(cached, tables, 2 * (mapped + parts), operations, launches)


def rows(contexts: list[int], batches: list[int]) -> list[dict[str, object]]:
    """One row per model, batch, context and format."""
    found = []
    for model in MODELS:
        for batch in batches:
            for context in contexts:
                for form in FORMATS:
                    one = step(model, form, context, batch)
                    times = {device.name: model.layers * one.seconds(device) for device in DEVICES}
                    found.append(
                        {
                            "model": model.name,
                            "batch": batch,
                            "context": context,
                            "format": form.name,
                            "mib_per_layer": (one.cached + one.tables + one.scratch) / 2**20,
                            "gflop_per_layer": one.operations / 1e9,
                            "seconds": times,
                        }
                    )
    return found


def print_table(found: list[dict[str, object]]) -> None:
    """Prints Markdown; times relative to fp16 flash decoding in parentheses."""
    print("| model, batch, context | format | MiB read and written per layer | GFLOP per layer |"
          + "".join(f" {device.name}, ms per step |" for device in DEVICES))  # fmt: skip
    print("|---|---|---|---|" + "---|" * len(DEVICES))
    for row in found:
        base = next(
            other for other in found
            if other["format"] == FORMATS[0].name
            and all(other[key] == row[key] for key in ("model", "batch", "context"))
        )  # fmt: skip
        times = ""
        for device in DEVICES:
            own, fp16 = row["seconds"][device.name], base["seconds"][device.name]  # type: ignore[index]
            times += f" {1e3 * own:.2f} ({fp16 / own:.1f}×) |"
        where = f"{row['model']}, {row['batch']}, {row['context']}"
        print(
            f"| {where} | {row['format']} | {row['mib_per_layer']:.2f} |"
            f" {row['gflop_per_layer']:.2f} |{times}"
        )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--context", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = rows(given.context, given.batch)
    print_table(found)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
