"""Proves that the rewritten graph computes what the original computes; nothing lossy comes before.

Two runs on the same tokens: batch 1 with a prefill and single decode steps, and a ragged batch of
three rows, padded on the right, each compared with the original's own unpadded run, and with its
own padded batch where that agrees with itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from minicache.exporter import schemas
from minicache.exporter.exported import ExactRunner, open_exported
from minicache.exporter.full_precision import rounds_activations
from minicache.exporter.io import find_model_file
from minicache.exporter.original import OriginalModel
from minicache.exporter.parity_report import ParityCase, ParityReport
from minicache.runtime.errors import ModelFileError, ParityError, SessionError
from minicache.runtime.manifest import FILE_NAME, Manifest

Logits = npt.NDArray[np.float32]

# Relative to the largest logit: other fusions and another order of sums, layer upon layer.
TOLERANCES = {"fp32": 2e-4, "fp16": 1e-2, "bf16": 8e-2}
PREFILL, STEPS = 24, 6
LONGEST_WINDOW = 256  # windows up to this are crossed by the test's prefill


def check_parity(
    original: Path,
    exported: Path,
    dtype: str,
    *,
    tokens: npt.NDArray[np.int64] | None = None,
    steps: int = STEPS,
    seed: int = 0,
) -> ParityReport:
    """Compares an exact export with its original.

    Args:
        original: the original model, or its folder.
        exported: the exported folder; with a manifest the runtime's ``Session`` drives it.
        dtype: fp32, fp16 or bf16; chooses the tolerance.
        tokens: int64 [N] to run on, the last ``steps`` one by one; None: random ones.
        steps: single decode steps after the prefill.
        seed: of the random tokens.

    Raises:
        ParityError: a logit differs by more than the tolerance, or is not finite.
        ModelFileError: the original's own logits are not finite.
    """
    graph = onnx.load(find_model_file(exported), load_external_data=False).graph
    # A graph that rounds activations does not even agree with itself; see full_precision.
    unrounded = rounds_activations(graph)
    notes = (
        ["compared with accuracy_level of MatMulNBits unset in both graphs"] if unrounded else []
    )
    report = ParityReport(dtype, TOLERANCES[dtype], notes=notes)
    reference = OriginalModel(original, unrounded=unrounded)
    prefill = _prefill_length(graph)
    if tokens is None:
        rng = np.random.default_rng(seed)
        count = int(min(prefill + steps, _capacity(exported)))
        tokens = rng.integers(0, reference.vocab_size, count, dtype=np.int64)
    row, steps = tokens, min(steps, len(tokens) // 4)
    rows = [row, row[1 : 2 + len(row) // 2], row[2 : 3 + len(row) // 4]]
    if reference.fixed_batch:
        rows = rows[:1]
        notes.append("the original takes one row at a time, and so does the export")
    wanted = [_stepwise(reference, row, len(row) - steps)]
    wanted += [reference.logits_of(one[None])[0] for one in rows[1:]]
    padded = _padded(reference, rows, wanted, report) if len(rows) > 1 else []
    # ONNX Runtime packs the weights anew for every session: never two of them at once.
    del reference
    (got,) = _run_rows(open_exported(exported, 1, len(row), unrounded=unrounded), [row], steps)
    report.cases.append(_compare("batch 1", wanted[0], got))
    if len(rows) == 1:
        _judge(report)
        return report
    ragged = open_exported(exported, len(rows), len(row), unrounded=unrounded)
    results = _run_rows(ragged, rows, steps)
    for index, (expected, result) in enumerate(zip(wanted, results, strict=True)):
        report.cases.append(_compare(f"ragged row {index}", expected, result))
        if padded:
            report.cases.append(_compare(f"padded row {index}", padded[index], result))
    _judge(report)
    return report


def _padded(
    reference: OriginalModel,
    rows: Sequence[npt.NDArray[np.int64]],
    wanted: Sequence[Logits],
    report: ParityReport,
) -> list[Logits]:
    """Logits of the original's own padded batch; empty, and a note, where padding changes them."""
    try:
        padded = reference.padded_logits(rows) or []
    except SessionError as error:
        report.notes.append(f"a padded batch was not compared: {error}")
        return []
    for index, (alone, batched) in enumerate(zip(wanted, padded, strict=bool(padded))):
        case = _compare("", alone, batched)
        share = case.max_difference / (case.max_logit or 1.0)
        if not share <= report.tolerance:
            report.notes.append(
                f"the original's logits change by {share:.2g} of the largest when row {index} is "
                "padded to a batch; the export gives those of the row alone"
            )
            return []
    return padded


def _prefill_length(graph: onnx.GraphProto) -> int:
    """Long enough to leave the sliding windows, where they are short."""
    windows: list[int] = [
        attribute.i
        for node in graph.node
        if node.op_type == schemas.OP_TYPE
        for attribute in node.attribute
        if attribute.name == "local_window_size" and 0 < attribute.i <= LONGEST_WINDOW
    ]
    return max([PREFILL, *(window + 16 for window in windows)])


def _capacity(exported: Path) -> float:
    """Tokens that a session of the folder holds at most."""
    if not (exported / FILE_NAME).is_file():
        return math.inf
    return Manifest.load(exported).max_sequence_length


def _stepwise(model: OriginalModel, row: npt.NDArray[np.int64], prefill: int) -> Logits:
    """Logits [N, V] of the original: a prefill, then one token at a time."""
    model.reset()
    parts = [model.forward(row[None, :prefill])]
    parts += [model.forward(row[None, i : i + 1]) for i in range(prefill, len(row))]
    model.reset()
    joined: Logits = np.concatenate(parts, axis=1)[0]
    return joined


def _run_rows(
    runner: ExactRunner, rows: Sequence[npt.NDArray[np.int64]], steps: int
) -> list[Logits]:
    """Logits [len(row), V] of each row: a right-padded prefill, then ``steps`` single tokens."""
    prefills = np.array([len(row) - steps for row in rows], np.int32)
    ids = np.zeros((len(rows), prefills.max()), np.int64)
    for index, count in enumerate(prefills):
        ids[index, :count] = rows[index][:count]
    logits = runner.forward(ids, prefills)
    parts = [[logits[index, :count]] for index, count in enumerate(prefills)]
    ones = np.ones(len(rows), np.int32)
    for step in range(steps):
        token = np.array([[row[count + step]] for row, count in zip(rows, prefills, strict=True)])
        logits = runner.forward(token, ones)
        for index, part in enumerate(parts):
            part.append(logits[index])
    return [np.concatenate(part) for part in parts]


def _compare(name: str, wanted: Logits, got: Logits) -> ParityCase:
    difference = np.abs(wanted.astype(np.float64) - got)
    best, chosen = wanted.argmax(-1), got.argmax(-1)
    everyone = np.arange(len(wanted))
    gaps = wanted[everyone, best] - wanted[everyone, chosen]
    return ParityCase(
        name=name,
        tokens=len(wanted),
        max_difference=float(difference.max()) if np.isfinite(difference).all() else math.inf,
        max_logit=float(np.abs(wanted).max()),
        top1_agreement=float((best == chosen).mean()),
        worst_gap=float(gaps.max()),
    )


def _judge(report: ParityReport) -> None:
    for case in report.cases:
        if not math.isfinite(case.max_logit):
            raise ModelFileError(
                f"The original model gives logits that are not finite ({case.max_logit} in "
                f"{case.name}), so that nothing can be proved; its weights are damaged, or too "
                f"large for {report.dtype}: copy or export it again"
            )
        limit = report.tolerance * case.max_logit
        # Two logits that each may move by the limit may swap when they are this close.
        # `not (...)` refuses NaN too.
        if not (case.max_difference <= limit and case.worst_gap <= 2 * limit):
            raise ParityError(
                f"The rewritten graph differs from the original in {case.name}: largest logit "
                f"difference {case.max_difference:.3g}, allowed {limit:.3g} ({report.dtype}, "
                f"{report.tolerance:g} of {case.max_logit:.3g}), top-1 agreement "
                f"{case.top1_agreement:.1%}; nothing was written, please report this model"
            )
