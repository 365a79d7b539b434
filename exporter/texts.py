"""The texts of an export, read and checked before the long work begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minicache.exporter.options import ExportOptions
from minicache.exporter.plan_subspace import split_text
from minicache.runtime.corpus import cut_documents, read_text
from minicache.runtime.text_split import Documents, TextSplit, judging_documents
from minicache.runtime.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Texts:
    """Token ids by purpose.

    Attributes:
        split: of the calibration text; empty parts when nothing is calibrated.
        verification: held-out documents of ``context`` tokens; empty when nothing is measured.
        scales: text that static scales of rivals are fitted to.
        context: tokens of a verification document.
    """

    split: TextSplit
    verification: Documents
    scales: Documents
    context: int


def read_texts(
    folder: Path, options: ExportOptions, capacity: int, vocab_size: int, merged: bool
) -> Texts | None:
    """Reads what the options name.

    Args:
        folder: holds the tokenizer.
        options: of the export.
        capacity: C.
        vocab_size: of the model.
        merged: the plan of the paper mode merges layers.

    Returns:
        None for exports that lose nothing, which need no text.

    Raises:
        TextError: missing or too short.
        PackageError: no tokenizer, or another model's.
    """
    context = min(options.verify_context, capacity)
    if options.calibrates:
        split = split_text(folder, options, capacity, vocab_size)
    elif merged:
        split = TextSplit([], [], [])
    else:
        if options.verify_text is not None:
            read_text(options.verify_text)  # not needed, but a wrong name is a mistake all the same
        return None
    verification: Documents = []
    scales = split.calibration
    if options.verify_documents:
        if options.calibrates and options.verify_text is None:
            found = judging_documents(split, context)
        else:
            tokenizer = TextTokenizer(folder)
            text = read_text(options.verify_text)
            found = cut_documents(text, tokenizer, context, vocab_size)
            # Without a calibration the rivals are fitted to the rest of the same text.
            scales = scales or found[options.verify_documents :] or found
        verification = found[: options.verify_documents]
    return Texts(split, verification, scales, context)
