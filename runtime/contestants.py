"""What ``minicache bench`` compares: an export, and its original driven every way its form allows.

All read one text on one row, and are driven alike: prompts in chunks of ``CHUNK`` tokens, then one
token per call, whose logits are read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from minicache.runtime.errors import SessionError
from minicache.runtime.session import Session

CHUNK = 512  # tokens of a prompt per call: as a session's, and bounds the logits of the original
EXPORT, GROWN, SHARED = "export", "original", "original, shared"  # shared: buffers in place

Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]


class Contestant(Protocol):
    """One way to run one model.

    Attributes:
        name: as tables show it.
    """

    name: str

    def read(self, ids: Ids) -> None:
        """Empties the cache and reads a prompt [S], up to the logits of its last token."""
        ...

    def step(self, token: int) -> None:
        """Appends a token and reads its logits."""
        ...

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the cache of one sequence of ``tokens`` tokens, between two calls."""
        ...

    def kv_bytes_in_step(self, tokens: int) -> int:
        """Likewise, of all that must exist at once within a call."""
        ...


class ExportContestant:
    """An exported folder.

    Args:
        folder: what ``minicache-export`` wrote.
        capacity: tokens.
        threads: inside one operator; None: ONNX Runtime's choice.

    Raises:
        MiniCacheError: as ``Session``.
    """

    name = EXPORT

    def __init__(self, folder: Path, capacity: int, threads: int | None) -> None:
        self.session = Session(folder, max_sequence_length=capacity, threads=threads)

    def read(self, ids: Ids) -> None:
        """As of every contestant."""
        self.session.reset()
        self.session.prefill(ids[None], chunk=CHUNK)

    def step(self, token: int) -> None:
        """As of every contestant."""
        self.session.forward([[token]], logits="last")

    def kv_bytes(self, tokens: int) -> int:
        """As of every contestant."""
        return self.session.row_bytes(tokens)

    def kv_bytes_in_step(self, tokens: int) -> int:
        """The same: the cache is updated in place."""
        return self.kv_bytes(tokens)


class _Original:
    """What both ways to drive an original have in common."""

    def __init__(
        self, name: str, forward: Callable[[Ids], Logits], skip: Callable[[Ids], object],
        reset: Callable[[], None],
    ) -> None:  # fmt: skip
        self.name, self._forward, self._skip, self._reset = name, forward, skip, reset

    def read(self, ids: Ids) -> None:
        """As of every contestant."""
        self._reset()
        last = max(len(ids) - CHUNK, 0)
        for start in range(0, last, CHUNK):
            part = ids[None, start : min(start + CHUNK, last)]
            try:
                self._skip(part)
            except SessionError:  # some graphs take a prompt or one token; nothing has advanced
                self._forward(part)
        self._forward(ids[None, last:])

    def step(self, token: int) -> None:
        """As of every contestant."""
        self._forward(np.array([[token]], np.int64))


class GrownContestant(_Original):
    """The original; each call's present caches are bound as the next call's past ones.

    Args:
        folder: the model, or its folder.
        threads: inside one operator; None: ONNX Runtime's choice.

    Raises:
        MiniCacheError: it is no model, or not of a supported form.
    """

    def __init__(self, folder: Path, threads: int | None) -> None:
        from minicache.exporter.original import OriginalModel

        self.model = OriginalModel(folder, threads)
        super().__init__(GROWN, self.model.forward, self.model.step, self.model.reset)

    def kv_bytes(self, tokens: int) -> int:
        """As of every contestant; of the cache as it is, so that it must be that long."""
        assert self.model.length == tokens
        return self.model.cache_bytes

    def kv_bytes_in_step(self, tokens: int) -> int:
        """Twice: the graph writes new caches while it reads the old ones."""
        return 2 * self.kv_bytes(tokens)


class SharedContestant(_Original):
    """The original with past and present caches in one buffer.

    Args:
        grown: whose model it is.
        capacity: tokens.
    """

    def __init__(self, grown: GrownContestant, capacity: int) -> None:
        model = grown.model.sharing(capacity)
        assert model is not None
        self._nbytes, self._capacity = model.nbytes, capacity
        super().__init__(SHARED, model.forward, model.step, model.reset)

    def kv_bytes(self, tokens: int) -> int:
        """As of every contestant."""
        return self._nbytes // self._capacity * tokens

    def kv_bytes_in_step(self, tokens: int) -> int:
        """The same: the cache is updated in place."""
        return self.kv_bytes(tokens)


def open_contestants(
    folder: Path, baseline: Path | None, capacity: int, threads: int | None
) -> list[Contestant]:
    """Opens the export, and the original in every way.

    Args:
        folder: what ``minicache-export`` wrote.
        baseline: the model it was made from; None: nothing to compare with.
        capacity: tokens.
        threads: inside one operator; None: ONNX Runtime's choice.

    Raises:
        SessionError: the baseline has another vocabulary.
        MiniCacheError: one of them cannot be opened.
    """
    export = ExportContestant(folder, capacity, threads)
    if baseline is None:
        return [export]
    grown = GrownContestant(baseline, threads)
    have, own = grown.model.vocab_size, export.session.manifest.vocab_size
    if have != own:
        raise SessionError(
            f"{str(baseline)!r} has {have} tokens, the export has {own}: it was not made from this "
            "model; give its own original"
        )
    shares = grown.model.sharing(1) is not None
    return [export, grown, *([SharedContestant(grown, capacity)] if shares else [])]
