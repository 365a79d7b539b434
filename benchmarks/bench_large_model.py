"""Does a model of several GB export within bounded memory? Times, CPU and memory of real exports.

A decoder with random weights is streamed to disk (``benchmarks/synthetic``), and `minicache-export`
runs on it as a user would start it. Nothing that the exporter does needs the weights in memory;
ONNX Runtime, which runs the model for the parity proof and the measurements, packs them for its
kernels. So the baseline is ONNX Runtime alone, opening the original model, beside `onnx.load` and
`onnx.save`, which hold all of it.

    python benchmarks/bench_large_model.py --gigabytes 3 --work WORK --json large.json

Needs about three times the model's size of free disk below WORK, which is empty again afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.synthetic.decoder import DATA_NAME, write_decoder  # noqa: E402
from benchmarks.synthetic.sizes import FORMS, decoder_of  # noqa: E402
from benchmarks.watched_process import Watched, watch  # noqa: E402

EXPORT = "from minicache.exporter.cli import export_main; raise SystemExit(export_main())"
OPEN = """
import sys, onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""
COPY = """
import sys, onnx
model = onnx.load(sys.argv[1])
onnx.save(model, sys.argv[2], save_as_external_data=True, location="model.onnx.data")
"""
INLINE = """
import sys, onnx
onnx.save(onnx.load(sys.argv[1]), sys.argv[2])
"""
MODES = ("exact", "paper", "subspace")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=3.0, help="of weights, at least")
    parser.add_argument("--form", choices=FORMS, default="F1")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument(
        "--inline", action="store_true", help="weights in the .onnx file itself (below 2 GB)"
    )
    parser.add_argument("--mode", choices=MODES, action="append", help="repeatable; default: all")
    parser.add_argument("--calibration-tokens", type=int, default=2048, help="of subspace")
    parser.add_argument("--ratio", type=float, default=5.3, help="of subspace")
    parser.add_argument("--plan-minutes", type=float, default=5.0, help="of subspace")
    parser.add_argument("--verify-documents", type=int, default=1, help="of paper and subspace")
    parser.add_argument("--work", type=Path, help="folder for the models; default: the system's")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def export_arguments(given: argparse.Namespace, mode: str) -> list[str]:
    """Options of ``minicache-export`` for a mode."""
    options = ["--mode", mode]
    if mode != "exact":
        options += ["--verify-documents", str(given.verify_documents)]
    if mode == "subspace":
        options += ["--calibration-tokens", str(given.calibration_tokens)]
        options += ["--ratio", f"{given.ratio:g}", "--plan-minutes", f"{given.plan_minutes:g}"]
    return options


def folder_bytes(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def show(name: str, watched: Watched, output: int) -> None:
    """Prints a row, and one for each step that took long."""
    print(
        f"{name:28} {watched.wall_seconds:9.1f} {watched.cpu_seconds:9.1f} "
        f"{watched.peak_resident / 1e9:10.2f} {watched.peak_anonymous / 1e9:10.2f} "
        f"{output / 1e9:9.2f}"
    )
    for step in watched.steps:
        print(
            f"  {step.label:26} {step.seconds:9.1f} {step.seconds / watched.wall_seconds:9.0%} "
            f"{step.resident / 1e9:10.2f} {step.anonymous / 1e9:10.2f}"
        )


def run(given: argparse.Namespace, work: Path) -> dict[str, object]:
    """Writes the model, runs everything, and prints the table."""
    decoder = decoder_of(given.gigabytes, given.vocabulary, given.form)
    model = write_decoder(decoder, work / "original")
    if given.inline:
        joined = model.with_name("joined.onnx")
        watch([sys.executable, "-c", INLINE, model, joined])
        joined.replace(model)
        model.with_name(DATA_NAME).unlink()
    size = folder_bytes(model.parent)
    print(
        f"{decoder.form}, {decoder.layers} layers, {size / 1e9:.2f} GB of fp32 weights"
        f"{' in one protobuf' if given.inline else ''}; GB of memory at its peak"
    )
    print(f"{'':28} {'wall s':>9} {'CPU s':>9} {'resident':>10} {'anonymous':>10} {'output':>9}")
    rows: dict[str, object] = {}

    def measure(name: str, command: Sequence[str | Path], output: Path) -> None:
        # An empty cache folder: a kept calibration would make the second run another one.
        watched = watch(command, {"MINICACHE_CACHE": str(work / "cache"), "NO_COLOR": "1"})
        written = folder_bytes(output)
        show(name, watched, written)
        rows[name] = {**watched.to_dict(), "output_bytes": written}
        shutil.rmtree(output, ignore_errors=True)

    output = work / "output"
    measure("ONNX Runtime opens it", [sys.executable, "-c", OPEN, model], output)
    output.mkdir()
    copy = [sys.executable, "-c", COPY, model, output / "model.onnx"]
    measure("onnx.load and onnx.save", copy, output)
    for mode in given.mode or MODES:
        command = [sys.executable, "-c", EXPORT, model, "-o", output]
        measure(f"export --mode {mode}", [*command, *export_arguments(given, mode)], output)
    return {
        "form": decoder.form,
        "layers": decoder.layers,
        "inline": given.inline,
        "model_bytes": size,
        "options": {mode: export_arguments(given, mode) for mode in given.mode or MODES},
        "runs": rows,
    }


def main() -> None:
    """Prints the table; with ``--json`` writes it."""
    given = parse()
    with tempfile.TemporaryDirectory(prefix="large-model-", dir=given.work) as work:
        result = run(given, Path(work))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
