"""``report.json``: what was done to the model, what it saves and what it costs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from minicache.exporter.options import PAPER_OPTIONS, ExportOptions
from minicache.exporter.parity import ParityReport
from minicache.exporter.sizes import CacheSize, cache_size
from minicache.runtime.evaluate import EvaluationResult
from minicache.runtime.manifest import Manifest

FILE_NAME = "report.json"
# Above this, users notice; the sentence in the report says so.
NOTICEABLE_RATIO = 1.01


def build_report(
    *,
    model: Path,
    options: ExportOptions,
    manifest: Manifest,
    notes: list[str],
    parity: ParityReport,
    evaluation: EvaluationResult | None,
    seconds: float,
) -> dict[str, Any]:
    """Gathers the content of ``report.json``.

    Args:
        model: the original model file.
        options: what was asked for.
        manifest: of the finished folder.
        notes: what the rewrite found worth saying, one sentence each.
        parity: the exact graph against the original.
        evaluation: the loss of a lossy plan, if it was measured.
        seconds: wall time of the export.
    """
    contexts = [c for c in (1024, 8192) if c < manifest.max_sequence_length]
    sizes = [cache_size(manifest, context) for context in [*contexts, manifest.max_sequence_length]]
    ignored = () if options.mode == "paper" else PAPER_OPTIONS
    settings = {
        name: value
        for name, value in dataclasses.asdict(options).items()
        if name != "quiet" and name not in ignored
    }
    settings["verify_text"] = options.verify_text and options.verify_text.name
    merged = [group["layers"] for group in manifest.plan["groups"] if group["mode"] != "exact"]
    return {
        "model": model.name,
        "mode": manifest.mode,
        "target": manifest.target,
        "options": settings,
        "merged_groups": merged,
        "exact_layers": manifest.num_layers - sum(len(layers) for layers in merged),
        "parity": parity.to_dict(),
        "quality": evaluation.to_dict() if evaluation else None,
        "cache_bytes": [_size(size) for size in sizes],
        "verdict": verdict(evaluation, lossy=bool(merged)),
        "notes": notes,
        "seconds": round(seconds, 1),
    }


def _size(size: CacheSize) -> dict[str, Any]:
    return {
        "context": size.context,
        "resident": size.resident,
        "fp16_cache": size.fp16,
        "model_type_cache": size.exact,
        "ratio_to_fp16": round(size.ratio_to_fp16, 4),
        "ratio_to_model_type": round(size.ratio_to_exact, 4),
    }


def verdict(evaluation: EvaluationResult | None, *, lossy: bool) -> str:
    """One sentence on the quality of the export."""
    if not lossy:
        return (
            "Every token is stored exactly: the exported model computes what the original computes."
        )
    if evaluation is None or evaluation.perplexity_ratio is None:
        return "The loss was not measured (verification was left out): measure it before use."
    ratio = evaluation.perplexity_ratio
    change = (
        f"perplexity {evaluation.perplexity_original:.2f} -> {evaluation.perplexity_exported:.2f}"
    )
    if ratio <= NOTICEABLE_RATIO:
        return f"Held-out text: {change} (x {ratio:.3f}), within 1 % of the original."
    if ratio <= 1.1:
        return f"Held-out text: {change} (x {ratio:.3f}): a small but measurable loss."
    return (
        f"WARNING: held-out text: {change} (x {ratio:.2f}): this model does not survive this "
        "merge. "
        "Do not deploy it: `minicache profile` shows how alike its layers are, and --mode exact "
        "loses nothing."
    )


def write_report(content: dict[str, Any], folder: Path) -> None:
    """Writes ``report.json`` into ``folder``."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def print_report(content: dict[str, Any], folder: Path, console: Console) -> None:
    """Prints the report's essentials as a table and the verdict as a sentence."""
    table = Table(title=f"{content['model']} -> {folder} ({content['mode']}, {content['target']})")
    table.add_column("context", justify="right")
    table.add_column("KV cache, resident", justify="right")
    table.add_column("fp16 cache", justify="right")
    table.add_column("compression, to fp16", justify="right")
    table.add_column("to the model's own type", justify="right")
    for size in content["cache_bytes"]:
        table.add_row(
            f"{size['context']}",
            f"{size['resident'] / 1e6:.2f} MB",
            f"{size['fp16_cache'] / 1e6:.2f} MB",
            f"{size['ratio_to_fp16']:.2f} x",
            f"{size['ratio_to_model_type']:.2f} x",
        )
    console.print(table)
    parity = content["parity"]
    console.print(
        f"{'Rewrite check, before merging' if content['merged_groups'] else 'Parity'}: "
        f"largest logit difference to the original "
        f"{parity['max_relative_difference']:.1e} of the largest logit "
        f"(allowed {parity['tolerance']:.0e}), top-1 agreement {parity['top1_agreement']:.2%}."
    )
    for note in content["notes"]:
        console.print(f"Note: {note}")
    style = "bold red" if content["verdict"].startswith("WARNING") else "bold"
    console.print(content["verdict"], style=style)
    console.print(f'Wrote {folder}; run it: minicache generate {folder} --prompt "..."')
