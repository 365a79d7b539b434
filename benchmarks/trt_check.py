"""Whether a TensorRT engine computes what ONNX Runtime's CPU computes, and how fast it is.

On a machine with an NVIDIA GPU and TensorRT or TensorRT-RTX, with two exports of one fp16 model:

    minicache-export model.onnx -o OUT --target tensorrt
    minicache-export model.onnx -o REFERENCE --target ort-cuda --no-kernels --plan OUT/plan.json
    python benchmarks/trt_check.py OUT REFERENCE --json OUT.json

The second stores its codes as the first does, and runs on the CPU here; modes without a plan take
the same options twice. The engine is built first, unless there is one. Exit code 1: the logits
differ, or a step failed; 2: TensorRT or a GPU is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.engine.builder import BuildOptions, build_engine
from minicache.exporter.parity import TOLERANCES
from minicache.runtime.corpus import read_text
from minicache.runtime.cuda_device import CudaDevice
from minicache.runtime.engine_file import ENGINE_NAME, EngineFile
from minicache.runtime.errors import MiniCacheError, MissingDependencyError, PackageError
from minicache.runtime.manifest import Manifest
from minicache.runtime.metrics import kl_divergence, log_softmax
from minicache.runtime.ort import CPU
from minicache.runtime.session import Session

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu.tables import Table

Logits = npt.NDArray[np.float32]

# Codes round where fp16 sums in another order fall: a code may differ, a distribution may not.
MOST_KL, LEAST_TOP1 = 5e-3, 0.97
BACK = 3  # tokens taken back, within every export's slack


def walk(
    session: Session, ids: npt.NDArray[np.int64], prefill: int, chunk: int
) -> dict[str, Logits]:
    """Every kind of call on a text, and the same again after a reset.

    Args:
        session: of B rows.
        ids: [B, S] tokens; row b reads b tokens fewer before it decodes.
        prefill: tokens that are read before; the rest are decoded one by one.
        chunk: tokens per call: those of one call see each other exactly.

    Returns:
        By kind of call, float32 [positions, V].
    """
    rows = np.arange(session.batch_size)
    first = min(chunk, prefill)
    found: dict[str, list[Logits]] = {}

    def keep(kind: str, logits: Logits) -> None:
        found.setdefault(kind, []).append(logits.reshape(-1, logits.shape[-1]))

    for again in ("", ", after a reset"):
        session.reset()
        keep("prefill, all positions" + again, session.forward(ids[:, :first]))
        if prefill > first:
            lengths = prefill - first - rows
            keep("prefill, last position" + again, session.prefill(
                ids[:, first:prefill], np.maximum(lengths, 0), chunk=chunk
            ))  # fmt: skip
        for step in range(prefill, ids.shape[1]):
            keep("decode" + again, session.forward(ids[:, step : step + 1], logits="last"))
        session.rewind(BACK)
        for step in range(ids.shape[1] - BACK, ids.shape[1]):
            keep("decode, after going back", session.forward(ids[:, step : step + 1]))
    return {kind: np.concatenate(parts) for kind, parts in found.items()}


def compare(kind: str, actual: Logits, expected: Logits, *, exact: bool) -> dict[str, Any]:
    """One row of the report; ``passed`` says whether the difference is rounding alone."""
    difference = float(np.abs(actual - expected).max())
    share = difference / float(np.abs(expected).max())
    divergence = kl_divergence(log_softmax(expected), log_softmax(actual))
    agreed = float((actual.argmax(-1) == expected.argmax(-1)).mean())
    close = float(divergence.mean()) <= MOST_KL and agreed >= LEAST_TOP1
    right = share <= TOLERANCES["fp16"] if exact else close
    return {
        "calls": kind,
        "positions": len(actual),
        "max |dlogit|": difference,
        "of max |logit|": share,
        "mean KL": float(divergence.mean()),
        "worst KL": float(divergence.max()),
        "top-1": agreed,
        "passed": bool(right and np.isfinite(actual).all()),
    }


def speed(session: Session, ids: npt.NDArray[np.int64], lengths: Sequence[int], steps: int) -> Any:
    """Yields a row for each context: prefill and decode, on tokens of the text, repeated."""
    for length in lengths:
        if length + steps > session.capacity:
            continue
        text = np.resize(ids, (session.batch_size, length))
        session.reset()
        session.prefill(text[:, : min(length, 64)])  # both profiles have run before the clock does
        session.forward(text[:, :1], logits="last")
        session.reset()
        prefill = _seconds(session.prefill, text)
        token = text[:, :1]
        times = [_seconds(session.forward, token, logits="last") for _ in range(steps)]
        step = statistics.median(times)
        yield {
            "context": length,
            "rows": session.batch_size,
            "prefill, tokens/s": text.size / prefill,
            "decode, ms/step": 1e3 * step,
            "slowest step, ms": 1e3 * max(times),
            "decode, tokens/s": session.batch_size / step,
        }


def _seconds(call: Callable[..., object], *arguments: Any, **options: Any) -> float:
    begin = time.perf_counter()
    call(*arguments, **options)
    return time.perf_counter() - begin


def check(given: argparse.Namespace, found: dict[str, Any]) -> bool:
    """Runs all steps into ``found``; returns whether the engine is right.

    Raises:
        MiniCacheError: a step cannot be done.
    """
    manifest, reference = (Manifest.load(folder) for folder in (given.folder, given.reference))
    if manifest.state != reference.state:
        raise PackageError(
            f"{str(given.folder)!r} and {str(given.reference)!r} store tokens differently; export "
            "the second with the first one's options, and --plan where there is one"
        )
    device = CudaDevice()
    found["GPU"] = {"name": device.name, "compute capability": device.capability}
    device.close()
    if given.rebuild or not (given.folder / ENGINE_NAME).is_file():
        options = BuildOptions(rtx=given.rtx, max_batch_size=given.batch)
        found["build, s"] = build_engine(given.folder, options).seconds
    found["engine"] = asdict(EngineFile.load(given.folder))
    Table([{**found["GPU"], **{k: v for k, v in found["engine"].items() if k != "files"}}])

    sizes = {"batch_size": given.batch, "max_sequence_length": given.max_sequence_length}
    rows = found["correctness"] = []
    with Session(given.folder, **sizes) as session:
        found["state, bytes"] = session.cache_bytes
        ids = _tokens(session, given.prefill + given.steps)
        chunk = min(given.chunk, session.longest_call or given.chunk)
        actual = walk(session, ids, given.prefill, chunk)
        found["in place"] = all(one == other for one, other in session.state_pointers().values())
    with Session(given.reference, **sizes, providers=[CPU]) as session:
        expected = walk(session, ids, given.prefill, chunk)
    table = Table()
    for kind, logits in actual.items():
        rows.append(compare(kind, logits, expected[kind], exact=manifest.mode == "exact"))
        table.add(rows[-1])
    found["speed"], table = [], Table()
    with Session(given.folder, **sizes) as session:
        for row in speed(session, ids, given.contexts, given.steps):
            found["speed"].append(row)
            table.add(row)
    return bool(found["in place"] and all(row["passed"] for row in rows))


def _tokens(session: Session, count: int) -> npt.NDArray[np.int64]:
    text = [token for part in session.tokenizer.encode_documents(read_text(None)) for token in part]
    starts = [row * count for row in range(session.batch_size)]
    return np.array([np.resize(text[start : start + count], count) for start in starts], np.int64)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="exported with --target tensorrt")
    parser.add_argument("reference", type=Path, help="the same with --target ort-cuda")
    parser.add_argument("--rtx", action="store_true", help="build with TensorRT-RTX")
    parser.add_argument("--rebuild", action="store_true", help="build again if there is an engine")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="rows; default: 1")
    parser.add_argument("--max-sequence-length", type=int, metavar="C", help="default: the model's")
    parser.add_argument("--prefill", type=int, default=700, help="tokens read first; default: 700")
    parser.add_argument("--steps", type=int, default=64, help="tokens decoded; default: 64")
    parser.add_argument("--chunk", type=int, default=512, help="tokens per call; default: 512")
    parser.add_argument(
        "--contexts", type=int, nargs="*", default=[512, 2048, 8192], help="to time"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if given.steps < BACK or given.prefill <= given.batch:
        parser.error(f"--steps is at least {BACK}, --prefill more than --batch")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check; returns the exit code."""
    given, found = parse(arguments), {}
    try:
        right = check(given, found)
    except MiniCacheError as error:
        found["error"], right = str(error), False
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, MissingDependencyError):
            return 2
    finally:
        if given.json:
            given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n" + ("all is well" if right else "the engine is wrong, or a step failed"))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
