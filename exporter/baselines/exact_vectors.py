"""Keys and values of a text, as a static codec's scales are fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.exact_cache import ExactCache
from minicache.runtime.errors import TextError

Array = npt.NDArray[Any]


def exact_vectors(
    cache: ExactCache, documents: Sequence[Sequence[int]], sinks: int = 0
) -> tuple[list[Array], list[Array]]:
    """Runs documents through an exact session and gathers its cache.

    Args:
        cache: of an exact session; it is reset.
        documents: token ids, each at most the session's capacity; read in one call each.
        sinks: first tokens of each document to leave out.

    Returns:
        Post-RoPE keys and values by layer of full attention, ``[n, Hk, D]`` of the model's type,
        all documents' tokens one after the other.

    Raises:
        TextError: no document is longer than ``sinks``.
        CapacityError: a document does not fit.
    """
    usable = [document for document in documents if len(document) > sinks]
    if not usable:
        raise TextError(f"no document is longer than the {sinks} first tokens that are left out")
    found: tuple[list[list[Array]], list[list[Array]]] = [], []
    for document in usable:
        cache.session.reset()
        cache.session.prefill(np.asarray(document, np.int64), chunk=len(document))
        for all_layers, layers in zip(found, cache.read(sinks, len(document)), strict=True):
            all_layers.append([np.swapaxes(layer, 0, 1) for layer in layers])
    keys, values = ([np.concatenate(parts) for parts in zip(*kind, strict=True)] for kind in found)
    return keys, values
