"""One request of a batch, its tokens, and the prefix that it begins with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from minicache.runtime.continuation import Continuation
from minicache.runtime.errors import SessionError
from minicache.runtime.generated_token import GeneratedToken
from minicache.runtime.row_state import RowState
from minicache.runtime.state_file import read_state

if TYPE_CHECKING:
    from minicache.runtime.rows import Rows
    from minicache.runtime.session import Session


class BatchToken(NamedTuple):
    """A new token of one request.

    Attributes:
        request: its number.
        token: the last one has a ``finish_reason``. Beside those of ``generate`` it may be
            ``error``, with -1 for a token: the logits were not finite, where ``generate`` raises.
    """

    request: int
    token: GeneratedToken


@dataclass
class BatchRequest:
    """Where a request is.

    Attributes:
        row: of the session.
        text: what it says so far.
        read: tokens of the text that the row holds.
    """

    row: int
    text: Continuation
    read: int = 0

    @property
    def is_waiting(self) -> bool:
        """Whether its prompt is not read to the end."""
        return self.read < self.text.prompt_tokens


def prefix_state(
    session: Session, prefix: RowState | str | os.PathLike[str], prompt: list[int]
) -> RowState:
    """Checks that a prompt begins with a saved prefix, and that the session can take it.

    Args:
        session: where to.
        prefix: in memory, or the path of a file that ``Session.save`` wrote.
        prompt: token ids.

    Raises:
        StateFileError: the prefix is damaged, or another model's.
        SessionError: the prompt does not begin with it, or its tokens are not known.
        CapacityError: it holds more tokens than a row does.
    """
    state = prefix if isinstance(prefix, RowState) else read_state(Path(prefix))
    session.check_state(state)
    if state.token_ids is None:
        raise SessionError(
            "the prefix does not say which tokens it holds; make it with forward() or prefill()"
        )
    known = state.token_ids.tolist()
    if prompt[: len(known)] == known:
        return state
    if len(prompt) < len(known):
        raise SessionError(
            f"the prompt has {len(prompt)} tokens, fewer than the {len(known)} of its prefix"
        )
    place = int(np.argmax(np.asarray(known) != np.asarray(prompt[: len(known)])))
    raise SessionError(
        f"the prompt does not begin with its prefix: token {place} is {prompt[place]}, the prefix "
        f"has {known[place]} there; a tokenizer may join text across the end of a prefix, so give "
        "token ids, or end the prefix where the text cannot be joined"
    )


def take_up(row: Rows, state: RowState, prompt_tokens: int) -> int:
    """Puts a prefix into a row; returns how many of the prompt's tokens need no reading any more.

    The prompt's last token is read in any case, as its logits are wanted. Where the export cannot
    go back that one token, the prompt is read anew.
    """
    row.restore(state)
    over = state.length - prompt_tokens + 1
    if over > 0:
        try:
            row.rewind(over)
        except SessionError:
            row.reset()
    return int(row.lengths[0])
