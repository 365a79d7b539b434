"""Sessions on faked devices beside sessions on the host, and a walk that both take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minicache.runtime.session import Session
from tests.runtime.session_text import text

POISON = 0x7F  # bytes; a float of them is huge, a half is NaN, a position is in no text

Pair = Callable[..., tuple[Session, Session]]
OpenDevice = Callable[..., Session]
DELTAS = {"retention": "none", "delta_bits": 4, "slerp_t": 0.5}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("exact", {"evict": "streaming:2+60"}),
    ("exact", {"evict": "h2o:62"}),
    ("exact", {"evict": "snapkv:60"}),
    ("slerp", {"evict": "streaming:2+60"}),
    ("slerp", {"evict": "h2o:62", "retention": "minmax"}),
    ("slerp", {"evict": "snapkv:62"}),
    ("slerp", {"evict": "h2o:62", **DELTAS}),
]
EXACT_H2O, SLERP_H2O = MODELS[1], MODELS[4]


def poison(session: Session) -> None:
    """Spoils what the host has of the state, except the table that is the host's own."""
    for past, array in session._cache.arrays.items():
        if not past.endswith(".evicted"):
            array.view(np.uint8)[...] = POISON


def held(session: Session, row: int) -> dict[str, np.ndarray]:
    """The parts of a row's state that mean something: slots of its tokens."""
    tensors, length = session.snapshot(row).tensors, int(session.lengths[row])
    found = {}
    for past, array in tensors.items():
        name, state = past.split(".")[-1], session._cache.states[past]
        group = session._cache.group(state.group)
        left = length - int(group["evicted"][row, -1])
        coded = "key_code" in group
        if name in ("evicted", "retained_position"):
            found[past] = array
        elif name == "attention_mass":
            found[past] = array[:left]
        elif not coded:
            found[past] = array[:, :, :left]
        elif "retained" not in name and not name.startswith(("exact", "similarity")):
            slack = session.manifest.rewind_slack
            sinks = group["exact_key"].shape[3] - session.manifest.window - slack
            found[past] = array[:, sinks : max(left - session.manifest.window, sinks)]
    return found


def walk(session: Session, folder: Path, *, spoil: bool) -> Iterator[np.ndarray]:
    """Ragged prompts, decode steps, going back, copies of rows, resets: logits and state.

    Args:
        session: two rows.
        folder: for saved rows.
        spoil: whether the host's copy of the state is spoilt between the calls.
    """

    def after(logits: np.ndarray) -> Iterator[np.ndarray]:
        if spoil:
            poison(session)
        yield logits.copy()

    def state() -> Iterator[np.ndarray]:
        for row in (0, 1):
            yield from held(session, row).values()
        if spoil:
            poison(session)

    ids, other = text(2, 160), text(2, 160, seed=1)
    yield from after(session.prefill(ids[:, :110], [110, 75], chunk=20))
    for at in range(110, 140):
        yield from after(session.forward(ids[:, at : at + 1]))
    assert session._cache.arrays["past_minicache.0.evicted"][0, -1] > 0
    yield from state()
    session.rewind([5, 0])
    yield from after(session.forward(other[:, :4], [4, 2]))
    yield from state()
    session.save(folder / "row.safetensors", 0)
    session.fork(0, [1])
    yield from after(session.forward(ids[:, :3]))
    session.load(folder / "row.safetensors", 0)
    yield from after(session.forward(other[:, :5]))
    yield from state()
    session.rows(1).reset()
    yield from after(session.rows(1).prefill(other[1, :130], chunk=20))
    yield from state()
    length = int(session.lengths[0])
    session.rewind([length, 0])  # an empty row, without a reset
    yield from after(session.forward(ids[:, :7]))
    yield from state()
    session.reset()
    yield from after(session.prefill(other[:, :90], [40, 90], chunk=20))
    yield from state()
