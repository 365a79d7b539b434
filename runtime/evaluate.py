"""What an export costs in quality and what it saves: teacher forcing through the real cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.accounting import MODEL_BYTES, bits_per_element, kv_elements
from minicache.runtime.corpus import cut_documents, read_documents, read_text
from minicache.runtime.errors import SessionError
from minicache.runtime.manifest import Manifest
from minicache.runtime.metrics import DocumentScore, perplexity, ratio_interval
from minicache.runtime.original import Original, load_original, prefill_original
from minicache.runtime.progress import progress
from minicache.runtime.session import Session
from minicache.runtime.text_split import PIECE, PREFILL, judging_documents, split_documents

DEFAULT_CHUNK = 32


@dataclass(frozen=True)
class EvaluationResult:
    """Quality and bytes; what needs the original is None when it was not given.

    Attributes:
        perplexity_original: of the original model, on the scored tokens.
        perplexity_exported: of the exported model, on the same tokens.
        perplexity_ratio: exported / original; 1 is lossless.
        perplexity_ratio_low: lower end of its 95 % interval (bootstrap over documents).
        perplexity_ratio_high: upper end.
        kl_mean: mean KL(original || exported) in nats per token.
        top1_agreement: share of tokens for which both rank the same token first.
        bits_per_element: of the coded part, magnitudes included; plain caches: their type's bits.
        kv_bytes_resident: state buffers of one sequence, allocated for ``context`` tokens.
        kv_bytes_fp16: a plain fp16 cache of ``context`` tokens; of layers of sliding-window
            attention, of their window.
        kv_bytes_exact_model: a plain cache in the model's own type.
        compression_ratio: ``kv_bytes_fp16 / kv_bytes_resident``.
        tokens: scored tokens.
        context: tokens per document.
        prefill: tokens of each document that were read at once, and not scored.
        chunk: tokens per call after that; within a call tokens see each other in full precision.
        documents: scored documents.
        finish: ``complete``, or ``max_documents`` when the text holds more.
    """

    perplexity_original: float | None
    perplexity_exported: float
    perplexity_ratio: float | None
    perplexity_ratio_low: float | None
    perplexity_ratio_high: float | None
    kl_mean: float | None
    top1_agreement: float | None
    bits_per_element: float
    kv_bytes_resident: int
    kv_bytes_fp16: int
    kv_bytes_exact_model: int
    compression_ratio: float
    tokens: int
    context: int
    prefill: int
    chunk: int
    documents: int
    finish: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the values as JSON-ready data."""
        return dataclasses.asdict(self)


def evaluate_folder(
    folder: Path,
    original: Path | None = None,
    text: Path | None = None,
    *,
    documents: Sequence[Sequence[int]] | None = None,
    context: int = 1024,
    prefill: int | None = None,
    chunk: int | None = None,
    max_documents: int | None = None,
    threads: int | None = None,
    quiet: bool = True,
) -> EvaluationResult:
    """Measures an exported folder, against the original model if it is given.

    Each document is read into the cache: ``prefill`` tokens at once, then ``chunk`` by
    ``chunk``, as decoding would; the tokens after the prefill are scored.

    Args:
        folder: what ``minicache-export`` wrote.
        original: the model it was made from.
        text: UTF-8; form feeds separate documents. None: the part of the text that ships with the
            package that exports do not calibrate on.
        documents: token ids of ``context`` tokens each, instead of a text.
        context: tokens per document, and capacity of the session.
        prefill: unscored tokens of each document; None: 512, at most half the context.
        chunk: tokens per call; None: 32, at most the window. A larger one flatters a lossy cache.
        max_documents: at most so many.
        threads: CPU threads of the exported model.
        quiet: no progress on stderr.

    Raises:
        TextError: the text is missing or too short.
        SessionError: context, prefill and chunk contradict each other or the export.
        MiniCacheError: as ``Session`` and the original model raise.
    """
    if max_documents is not None and max_documents < 1:
        raise SessionError(f"max_documents is {max_documents}; give at least 1")
    manifest = Manifest.load(Path(folder))
    prefill, chunk = check_sizes(manifest, context, prefill, chunk)
    with Session(folder, max_sequence_length=context, threads=threads) as session:
        found = list(documents or ()) or _read_documents(session, text, context)
        documents = found[:max_documents]
        reference = load_original(original, manifest.vocab_size)
        scores = []
        with progress("evaluating", total=len(documents), quiet=quiet) as step:
            for document in documents:
                ids = np.asarray(document, np.int64)
                scores.append(_score(session, reference, ids, prefill, chunk))
                step.advance()
        resident = session.cache_bytes
    finish = "complete" if len(documents) == len(found) else "max_documents"
    return _result(manifest, scores, resident, context, prefill, chunk, finish)


def _read_documents(session: Session, text: Path | None, context: int) -> list[list[int]]:
    """Documents of a text; of the built-in one those that exports do not calibrate on."""
    tokenizer, manifest = session.tokenizer, session.manifest
    if text is not None:
        return cut_documents(read_text(text), tokenizer, context, manifest.vocab_size)
    built_in = read_documents(None, tokenizer, manifest.vocab_size)
    piece = min(PIECE, manifest.max_sequence_length)
    split = split_documents(built_in, piece, verify_elsewhere=False, prefix=tokenizer.prefix)
    return judging_documents(split, context)


def default_prefill(context: int) -> int:
    """Unscored tokens of a document of ``context`` tokens."""
    return min(PREFILL, context // 2)


def check_sizes(
    manifest: Manifest, context: int, prefill: int | None, chunk: int | None
) -> tuple[int, int]:
    """Fills in the defaults of ``prefill`` and ``chunk``.

    Raises:
        SessionError: they contradict each other or the export.
    """
    if context < 2:
        raise SessionError(f"context is {context}; give at least 2 tokens")
    if context > manifest.max_sequence_length:
        raise SessionError(
            f"context is {context}, the model was exported for up to "
            f"{manifest.max_sequence_length} tokens; give a smaller context or export again"
        )
    prefill = default_prefill(context) if prefill is None else prefill
    if not 1 <= prefill < context:
        raise SessionError(
            f"prefill is {prefill}; give 1..{context - 1} (the context is {context})"
        )
    lossy = manifest.window > 0 or any(state.name == "key_code" for state in manifest.state)
    largest = max(manifest.window, 1) if lossy else context
    chunk = min(DEFAULT_CHUNK, largest) if chunk is None else chunk
    if not 1 <= chunk <= largest:
        raise SessionError(
            f"chunk is {chunk}; give 1..{largest}: more than the export's window would be "
            "scored in full precision, which decoding never does"
        )
    return prefill, chunk


def _score(
    session: Session,
    original: Original | None,
    ids: npt.NDArray[np.int64],
    prefill: int,
    chunk: int,
) -> DocumentScore:
    """Scores the tokens of one document [S] from ``prefill`` on."""
    score = DocumentScore()
    session.reset()
    exported = session.prefill(ids[:prefill])
    wanted = None if original is None else prefill_original(original, ids[:prefill])
    score.add(ids[prefill : prefill + 1], exported, wanted)
    out = np.empty((1, chunk, session.manifest.vocab_size), np.float32)
    for start in range(prefill, len(ids) - 1, chunk):
        end = min(start + chunk, len(ids) - 1)  # the last token is only predicted
        part = ids[None, start:end]
        exported = session.forward(part, out=out[:, : end - start])[0]
        wanted = None if original is None else original.forward(part)[0]
        score.add(ids[start + 1 : end + 1], exported, wanted)
    return score


def _result(
    manifest: Manifest,
    scores: list[DocumentScore],
    resident: int,
    context: int,
    prefill: int,
    chunk: int,
    finish: str,
) -> EvaluationResult:
    tokens = sum(score.tokens for score in scores)
    exported = perplexity(sum(score.loss_exported for score in scores) / tokens)
    original, interval, kl, agreement = None, None, None, None
    if any(score.loss_original for score in scores):
        original = perplexity(sum(score.loss_original for score in scores) / tokens)
        interval = ratio_interval(scores)
        kl = sum(score.kl for score in scores) / tokens
        agreement = sum(score.agreed for score in scores) / tokens
    elements = kv_elements(manifest, context)
    return EvaluationResult(
        perplexity_original=original,
        perplexity_exported=exported,
        perplexity_ratio=None if original is None else exported / original,
        perplexity_ratio_low=interval[0] if interval else None,
        perplexity_ratio_high=interval[1] if interval else None,
        kl_mean=kl,
        top1_agreement=agreement,
        bits_per_element=bits_per_element(manifest),
        kv_bytes_resident=resident,
        kv_bytes_fp16=2 * elements,
        kv_bytes_exact_model=MODEL_BYTES[manifest.dtype] * elements,
        compression_ratio=2 * elements / resident,
        tokens=tokens,
        context=context,
        prefill=prefill,
        chunk=chunk,
        documents=len(scores),
        finish=finish,
    )
