"""Speculative decoding: proposed tokens stay as far as the model would have chosen them."""

from __future__ import annotations

import numpy as np
import pytest

from minicache.runtime.errors import SessionError
from tests.runtime.conftest import OpenTiny
from tests.runtime.session_text import text
from tests.runtime.tiny_model import SLACK, VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("right", [0, 1, 4])
def test_what_is_accepted_is_what_greedy_gives(
    open_tiny: OpenTiny, variant: str, right: int
) -> None:
    """Drafts of four tokens, of which the first ones are right; the text is the greedy one.

    In coded modes up to where codes begin: tokens of one call read alike what is coded before it.
    """
    model = {"window": 64, "ring_slots": 64 + SLACK} if variant == "slerp" else {}
    prompt = text(1, 30)[0]
    plain = [token.token_id for token in open_tiny(variant, model).generate(prompt, 36)]
    session = open_tiny(variant, model)
    given = [int(session.prefill(prompt)[0].argmax())]
    while len(given) < 30:
        draft = np.array(plain[len(given) : len(given) + 4])
        draft[right:] = (draft[right:] + 1) % 256
        result = session.verify([given[-1], *draft])
        assert result.accepted.tolist() == [right]
        assert session.lengths.tolist() == [30 + len(given) + right]
        given += [*draft[:right].tolist(), int(result.next_tokens[0])]
    assert given == plain[: len(given)]


def test_rows_of_different_drafts(open_tiny: OpenTiny) -> None:
    session = open_tiny("exact", batch_size=3)
    first = session.prefill(text(3, 20)).argmax(axis=1)
    second = session.forward(first[:, None])[:, 0].argmax(axis=1)
    third = session.forward(second[:, None])[:, 0].argmax(axis=1)
    session.rewind(2)
    drafts = np.stack([first, second, (third + 1) % 256], axis=1)
    result = session.verify(drafts, [3, 1, 0])
    assert result.accepted.tolist() == [1, 0, 0]
    assert result.next_tokens.tolist() == [third[0], second[1], -1]
    assert session.lengths.tolist() == [22, 21, 20]


def test_more_than_could_be_taken_back_is_refused(open_tiny: OpenTiny) -> None:
    session = open_tiny("slerp")
    session.forward(text(1, 30))
    with pytest.raises(SessionError, match=f"propose at most {SLACK}"):
        session.verify(text(1, SLACK + 2)[0])
    assert session.lengths.tolist() == [30]
    session.verify(text(1, SLACK + 1)[0])
    open_tiny("exact").verify(text(1, 60)[0])


def test_broken_logits_change_nothing(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_tiny("exact")
    session.forward(text(1, 30))
    forward = session.forward
    monkeypatch.setattr(session, "forward", lambda *given: forward(*given) * np.nan)
    with pytest.raises(SessionError, match="logits are not finite"):
        session.verify([1, 2, 3])
    assert session.lengths.tolist() == [30]
