"""Random texts and comparisons that the tests of sessions share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minicache.runtime.batch import Batch
from minicache.runtime.session import Session
from tests.runtime.tiny_model import VOCABULARY
from tests.tolerances import LOGITS

TOLERANCE = LOGITS["float32"]
LENGTH = 60


def text(rows: int = 1, length: int = LENGTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (rows, length))


def run_in_chunks(session: Session, ids: np.ndarray, chunk: int) -> np.ndarray:
    starts = range(0, ids.shape[1], chunk)
    return np.concatenate([session.forward(ids[:, s : s + chunk]) for s in starts], axis=1)


def drive_batch(session: Session, folder: Path, chunk: int, lengths: Sequence[int]) -> list[Any]:
    """Rows alone, a batch whose requests come and go, saved rows: what all of it gives."""
    session.rows(1).prefill(text(1, 20)[0])
    session.save(folder / "prefix", 1)
    session.fork(1, [2])
    session.rows(2).forward([[5]])
    found: list[Any] = [session.rows(2).forward([[6]]).argmax(), session.lengths.tolist()]
    batch = Batch(session, chunk=chunk)
    for length in lengths:
        batch.add(text(1, length, seed=length)[0], 6)
    found.append([(n, t.token_id) for _ in range(9) for n, t in batch.step()])
    batch.remove(1)
    batch.add(text(1, 25)[0], 4, prefix=folder / "prefix")
    return [*found, [(n, t.token_id) for _ in range(9) for n, t in batch.step()]]


def snapshot(session: Session) -> dict[str, Any]:
    state = {name: array.copy() for name, array in session.cache_tensors().items()}
    return {"lengths": session.lengths, **state}


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def assert_close(first: np.ndarray, second: np.ndarray) -> None:
    np.testing.assert_allclose(first, second, rtol=0, atol=TOLERANCE * np.abs(second).max())
