"""``report.json`` and ``report.html``: what was done to the model, what it saves, what it costs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from minicache.exporter.mode_options import CALIBRATION_OPTIONS, PAPER_OPTIONS, SUBSPACE_OPTIONS
from minicache.exporter.options import ExportOptions
from minicache.exporter.parity_report import ParityReport
from minicache.exporter.plan_aligned import AlignedChoice
from minicache.exporter.plan_delta import DeltaChoice
from minicache.exporter.plan_subspace import SubspaceChoice
from minicache.exporter.reporting.html_report import FILE_NAME as HTML_NAME
from minicache.exporter.reporting.html_report import write_html
from minicache.exporter.reporting.number_text import MISSING, factor, finite, interval
from minicache.exporter.reporting.number_text import size as size_text
from minicache.exporter.reporting.report_tables import tables
from minicache.exporter.reporting.reproduce import command_line
from minicache.exporter.sizes import CacheSize, cache_size
from minicache.exporter.verify import Verification
from minicache.runtime.accounting import ring_states, state_bytes
from minicache.runtime.evaluate import EvaluationResult
from minicache.runtime.manifest import Manifest

FILE_NAME = "report.json"
# Above this, users notice; the sentence in the report says so.
NOTICEABLE_RATIO = 1.01
# Above this, an export is not worth having; what to do instead depends on the mode.
RUINOUS_RATIO = 1.1
ADVICE = {
    "paper": "this model does not survive this merge. Do not deploy it: `minicache profile` shows "
    "how alike its layers are, and --mode exact loses nothing.",
    "subspace": "codes this small lose too much of this model. Do not deploy it: a smaller --ratio "
    "or a bound on the loss (--max-kl) keeps more, and --mode exact loses nothing.",
}


def build_report(
    *,
    model: Path,
    options: ExportOptions,
    manifest: Manifest,
    notes: list[str],
    parity: ParityReport,
    verification: Verification | None,
    choice: SubspaceChoice | None,
    seconds: float,
    output: Path | None = None,
    aligned: AlignedChoice | None = None,
    deltas: DeltaChoice | None = None,
) -> dict[str, Any]:
    """Gathers the content of ``report.json``: JSON-ready, None for what is no finite number.

    Args:
        model: the original model file.
        options: what was asked for.
        manifest: of the finished folder.
        notes: what the rewrite found worth saying, one sentence each.
        parity: the exact graph against the original.
        verification: the loss of a lossy plan, if it was measured, and its rivals'.
        choice: what the subspace stage decided.
        seconds: wall time of the export.
        output: the folder that is made; None: ``out``.
        aligned: what turns the layers of the paper's merge to each other.
        deltas: the bases of what its directions lack.
    """
    output = output or Path("out")
    contexts = [c for c in (1024, 8192) if c < manifest.max_sequence_length]
    sizes = [cache_size(manifest, context) for context in [*contexts, manifest.max_sequence_length]]
    used = set({"paper": PAPER_OPTIONS, "subspace": SUBSPACE_OPTIONS}.get(options.mode, ()))
    used |= set(CALIBRATION_OPTIONS) if options.calibrates else set()
    ignored = {"cache", *PAPER_OPTIONS, *SUBSPACE_OPTIONS, *CALIBRATION_OPTIONS} - used
    calibrated = choice or aligned or deltas
    more = deltas.notes[:1] if aligned and deltas else []
    evaluation = verification.evaluation if verification else None
    settings = {
        name: value
        for name, value in dataclasses.asdict(options).items()
        if name != "quiet" and name not in ignored
    }
    for name in ("verify_text", "calibration", "plan"):
        if settings.get(name) is not None:
            settings[name] = settings[name].name
    merged = [group["layers"] for group in manifest.plan["groups"] if group["mode"] != "exact"]
    content = {
        "model": model.name,
        "output": output.name,
        "mode": manifest.mode,
        "target": manifest.target,
        "options": settings,
        "merged_groups": merged,
        "exact_layers": manifest.num_layers - sum(len(layers) for layers in merged),
        "parity": parity.to_dict(),
        "quality": evaluation.to_dict() if evaluation else None,
        "rivals": verification.baselines if verification else [],
        "frontier": [point.to_dict() for point in choice.frontier] if choice else [],
        "groups": choice.groups() if choice else [],
        "alignment": aligned.cosines if aligned else [],
        "deltas": deltas.kept if deltas else [],
        "similarity": calibrated.similarity if calibrated else [],
        "calibration_tokens": calibrated.calibration_tokens if calibrated else 0,
        "cache_bytes": [_size(size) for size in sizes],
        "verdict": verdict(evaluation, mode=options.mode, lossy=bool(merged)),
        "notes": [*notes, *_ring_note(manifest), *(calibrated.notes if calibrated else []), *more],
        "command": command_line(options, model, output),
        "seconds": round(seconds, 1),
    }
    cleaned: dict[str, Any] = finite(content)
    return cleaned


def _size(size: CacheSize) -> dict[str, Any]:
    return {
        "context": size.context,
        "resident": size.resident,
        "fp16_cache": size.fp16,
        "model_type_cache": size.exact,
        "ratio_to_fp16": round(size.ratio_to_fp16, 4),
        "ratio_to_model_type": round(size.ratio_to_exact, 4),
    }


def _ring_note(manifest: Manifest) -> list[str]:
    """What the numbers of the report leave out, and what they hold, of sliding-window layers."""
    rings = ring_states(manifest)
    if not rings:
        return []
    layers = len({state.group for state in rings})
    coded = "; bits, ratios and bytes of codes are of the other layers"
    return [
        f"{layers} of {manifest.num_layers} layers attend to a sliding window and keep it exactly: "
        f"their rings take {size_text(state_bytes(rings))} at any context, and a plain cache is "
        f"counted with the window of these layers{coded if manifest.mode != 'exact' else ''}"
    ]


def verdict(evaluation: EvaluationResult | None, *, mode: str, lossy: bool) -> str:
    """One sentence on the quality of the export."""
    if not lossy:
        return (
            "Every token is stored exactly: the exported model computes what the original computes."
        )
    if evaluation is None or evaluation.perplexity_ratio is None:
        return "The loss was not measured (verification was left out): measure it before use."
    ratio = evaluation.perplexity_ratio
    bounds = interval(evaluation.perplexity_ratio_low, evaluation.perplexity_ratio_high)
    measured = (
        f"perplexity {evaluation.perplexity_original:.2f} -> {evaluation.perplexity_exported:.2f} "
        f"({factor(ratio)}{'' if bounds == MISSING else f', 95 % interval {bounds}'})"
    )
    if ratio <= NOTICEABLE_RATIO:
        return f"Held-out text: {measured}, within 1 % of the original."
    if ratio <= RUINOUS_RATIO:
        return f"Held-out text: {measured}: a small but measurable loss."
    return f"WARNING: held-out text: {measured}: {ADVICE[mode]}"


def write_report(content: dict[str, Any], folder: Path) -> None:
    """Writes ``report.json`` and ``report.html`` into ``folder``."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")
    write_html(content, folder)


def print_report(content: dict[str, Any], folder: Path, console: Console) -> None:
    """Prints the report's essentials as tables and the verdict as a sentence."""
    title = f"{content['model']} -> {folder} ({content['mode']}, {content['target']})"
    for table in tables(content, title):
        console.print(table)
        console.print()
    parity = content["parity"]
    console.print(
        f"{'Rewrite check, before anything is coded' if content['merged_groups'] else 'Parity'}: "
        f"largest logit difference to the original "
        f"{parity['max_relative_difference']:.1e} of the largest logit "
        f"(allowed {parity['tolerance']:.0e}), top-1 agreement {parity['top1_agreement']:.2%}."
    )
    for note in content["notes"]:
        console.print(f"Note: {note}")
    style = "bold red" if content["verdict"].startswith("WARNING") else "bold"
    console.print(content["verdict"], style=style)
    console.print(f"Wrote {folder}; {_next_step(content['target'], folder)}")
    console.print(f"All of it, with plots: {folder / HTML_NAME}")


def _next_step(target: str, folder: Path) -> str:
    if target == "tensorrt":
        return f"make its engine: minicache build-engine {folder}"
    if not (folder / "tokenizer.json").exists():
        return (
            f"without tokenizer.json it takes token ids: minicache.runtime.Session({str(folder)!r})"
            "; put the model's into the folder for minicache generate"
        )
    return f'run it: minicache generate {folder} --prompt "..."'
