"""The models that ``bench_decode.py`` drives side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.cpu.shared_buffers import SharedBuffers, channel_scales
from minicache.exporter.find_attention import find_sites
from minicache.exporter.io import find_model_file, load_model, read_facts
from minicache.exporter.original import OriginalModel
from minicache.exporter.sites import GROUP_QUERY, ModelDescription
from minicache.runtime import Session

Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
Forward = Callable[[Ids], Logits]  # appends tokens [1, S]; the last one's logits [1, 1, V]

GROWN = "original, IOBinding"
SHARED = "original, shared buffers"
INT8 = "original, int8 cache"


def describe(path: Path) -> ModelDescription:
    """What is known of the original."""
    file = find_model_file(path)
    return find_sites(load_model(file), read_facts(file))


def original_decoders(
    path: Path, ids: Ids, capacity: int, threads: int, chunk: int
) -> dict[str, Forward]:
    """The original, driven every way that its form allows; scales of int8 come from ``ids``."""
    grown = OriginalModel(path, threads=threads)
    decoders: dict[str, Forward] = {GROWN: _last(grown.forward)}
    if describe(path).form == GROUP_QUERY:
        shared = SharedBuffers(path, capacity, threads)
        decoders[SHARED] = _last(shared.forward)
        sample = SharedBuffers(path, min(chunk, ids.shape[1]), threads)
        sample.forward(ids[:, :chunk])
        scales = channel_scales(sample.buffers, chunk)
        decoders[INT8] = _last(SharedBuffers(path, capacity, threads, scales).forward)
    return decoders


def exported_decoders(folders: Sequence[Path], capacity: int, threads: int) -> dict[str, Forward]:
    """Ours."""
    capacity = -(-capacity // 16) * 16
    decoders: dict[str, Forward] = {}
    for folder in folders:
        session = Session(folder, threads=threads, max_sequence_length=capacity)
        decoders[folder.name] = lambda ids, s=session: s.forward(ids, logits="last")  # type: ignore[misc]
    return decoders


def _last(forward: Forward) -> Forward:
    return lambda ids: forward(ids)[:, -1:]
