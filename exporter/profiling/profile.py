"""``minicache profile``: how alike a model's adjacent layers are, and what merging them would cost.

The paper (arXiv:2405.14366) rests on adjacent layers having alike caches. Whether a model has them
is measured here, before anything is exported: directly, after the best rotation of matched heads,
and as centred kernel alignment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.io import find_model_file
from minicache.exporter.profiling import similarity as sim
from minicache.exporter.profiling.capture import capture_key_values
from minicache.exporter.profiling.profile_result import (
    KindSimilarity,
    LayerQuantisation,
    PairSimilarity,
    SimilarityProfile,
)
from minicache.runtime.corpus import read_text
from minicache.runtime.errors import TextError, UnsupportedModelError
from minicache.runtime.pieces import cut_pieces
from minicache.runtime.progress import Step, progress
from minicache.runtime.tokenizer import TextTokenizer

__all__ = ["SimilarityProfile", "choose_pieces", "profile_arrays", "run_profile"]

Array = npt.NDArray[Any]

SINKS = 4  # the first tokens' vectors are outliers that no code describes; modes keep them exact
DOCUMENT_TOKENS = 1024
SHORTEST_PIECE = 64  # tokens; shorter pieces are mostly the start of a text
FEWEST_TOKENS = 512  # half of them fit a rotation of up to 256 dimensions
SPLIT_BLOCK = 64  # tokens that stay together when a single document is split into halves


def profile_arrays(
    keys: Sequence[Array],
    values: Sequence[Array],
    sinks: int = SINKS,
    *,
    document_lengths: Sequence[int] | None = None,
    step: Step | None = None,
) -> SimilarityProfile:
    """Profiles the keys and values of a model's layers.

    Args:
        keys: by layer ``[tokens, Hk, D]``, documents one after the other, after RoPE.
        values: likewise, as projected.
        sinks: tokens to leave out at the start of each document.
        document_lengths: tokens per document; None: a single one.
        step: advanced once per pair.

    Raises:
        UnsupportedModelError: no two adjacent layers have the same head shape.
        TextError: too few tokens to split.
    """
    lengths = list(document_lengths or [len(keys[0])])
    fitting, measuring = _halves(lengths, sinks)
    if not fitting.any() or not measuring.any():
        raise TextError(f"{sum(lengths)} tokens are too few to profile; give a longer text")
    pairs = []
    for lower in range(len(keys) - 1):
        upper = lower + 1
        if keys[lower].shape == keys[upper].shape and values[lower].shape == values[upper].shape:
            key, value = (
                _compare(kind[lower], kind[upper], fitting, measuring) for kind in (keys, values)
            )
            pairs.append(PairSimilarity(lower, upper, key, value))
        if step is not None:
            step.advance()
    if not pairs:
        raise UnsupportedModelError(
            f"No two adjacent ones of {len(keys)} layers have the same head shape, "
            "so there is nothing to compare"
        )
    layers = [
        LayerQuantisation(
            layer,
            *(
                {bits: sim.quantisation_error(x[fitting], x[measuring], bits) for bits in (8, 4)}
                for x in (keys[layer], values[layer])
            ),
        )
        for layer in range(len(keys))
    ]
    return SimilarityProfile("", len(keys), sum(lengths), sinks, tuple(pairs), tuple(layers))


def run_profile(
    model: Path | str,
    text: Path | None = None,
    output: Path | None = None,
    max_tokens: int = 4096,
    *,
    quiet: bool = False,
) -> SimilarityProfile:
    """Profiles a model on a text.

    Args:
        model: the original ``.onnx`` file or its folder, with ``tokenizer.json``.
        text: UTF-8 text, documents separated by form feeds; None takes the built-in one.
        output: folder for the JSON file and the plots; None writes nothing.
        max_tokens: tokens to read; memory grows with them.
        quiet: show no progress.

    Raises:
        MiniCacheError: of one kind or another, with a one-sentence message.
    """
    file = find_model_file(model)
    tokenizer = TextTokenizer(file.parent)
    documents = choose_pieces(
        tokenizer.encode_documents(read_text(text)), max_tokens, tokenizer.prefix
    )
    lengths = [len(ids) for ids in documents]
    if sum(lengths) < FEWEST_TOKENS:
        raise TextError(
            f"Only {sum(lengths)} tokens can be read, {FEWEST_TOKENS} are needed; "
            "give a longer text or a larger --max-tokens"
        )
    with progress("reading keys and values", total=sum(lengths), quiet=quiet) as step:
        keys, values = capture_key_values(file, documents, progress=step)
    with progress("comparing layers", total=len(keys) - 1, quiet=quiet) as step:
        found_profile = profile_arrays(keys, values, document_lengths=lengths, step=step)
    profile = replace(found_profile, model=file.name)
    if output is not None:
        profile.save(output)
    return profile


def choose_pieces(
    documents: Sequence[Sequence[int]], max_tokens: int, prefix: Sequence[int] = ()
) -> list[list[int]]:
    """Takes the first piece of every document, then the second of every one, up to ``max_tokens``.

    So a short profile sees several kinds of text. Each piece begins with ``prefix``.
    """
    chosen: list[list[int]] = []
    left = max_tokens
    cut = [cut_pieces(document, DOCUMENT_TOKENS, prefix) for document in documents]
    for rank in range(max(map(len, cut), default=0)):
        for pieces in cut:
            piece = pieces[rank][:left] if rank < len(pieces) else []
            if len(piece) >= SHORTEST_PIECE:
                chosen.append(piece)
                left -= len(piece)
    return chosen


def _halves(lengths: Sequence[int], sinks: int) -> tuple[Array, Array]:
    """Masks of the tokens to fit on and to measure on; whole documents where there are several."""
    block = SPLIT_BLOCK if len(lengths) == 1 else None

    def sides() -> Iterator[Array]:
        for index, length in enumerate(lengths):
            position = np.arange(length)
            side = position // block % 2 if block else np.full(length, index % 2)
            yield np.where(position < sinks, -1, side)

    side = np.concatenate(list(sides()))
    return side == 0, side == 1


def _compare(a: Array, b: Array, fitting: Array, measuring: Array) -> KindSimilarity:
    alignment = sim.fit_alignment(a[fitting], b[fitting])
    lower, upper = a[measuring], b[measuring]
    turned = alignment.apply(upper)
    return KindSimilarity(
        cosine=sim.mean_cosine(lower, upper).tolist(),
        angular_distance=sim.angular_distance(lower, upper).tolist(),
        head_permutation=list(alignment.permutation),
        aligned_cosine=sim.mean_cosine(lower, turned).tolist(),
        cka=sim.linear_cka(lower, upper[:, alignment.permutation]).tolist(),
        merge_errors=sim.merge_errors(lower, upper),
        aligned_merge_errors=sim.merge_errors(lower, turned),
    )
