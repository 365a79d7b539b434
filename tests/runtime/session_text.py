"""Random texts and comparisons that the tests of sessions share."""

from __future__ import annotations

from typing import Any

import numpy as np

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


def snapshot(session: Session) -> dict[str, Any]:
    state = {name: array.copy() for name, array in session.cache_tensors().items()}
    return {"lengths": session.lengths, **state}


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def assert_close(first: np.ndarray, second: np.ndarray) -> None:
    np.testing.assert_allclose(first, second, rtol=0, atol=TOLERANCE * np.abs(second).max())
