"""A list of prompts: each gets what it would get alone, in the order of the list."""

from __future__ import annotations

import pytest

from minicache.runtime.errors import CapacityError, SessionError
from minicache.runtime.generated_token import GeneratedToken
from tests.runtime.conftest import OpenTiny
from tests.runtime.session_text import text
from tests.runtime.tiny_model import VARIANTS

PROMPTS = ["Once upon a time", "x", "The cache of a decoder holds", "If", "Zebra"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rows", [1, 3])
def test_more_prompts_than_rows(open_tiny: OpenTiny, variant: str, rows: int) -> None:
    one = open_tiny(variant)
    expected = [list(one.generate(prompt, 8, stop="e")) for prompt in PROMPTS]
    seen: list[tuple[int, GeneratedToken]] = []
    session = open_tiny(variant, batch_size=rows)
    results = session.generate_batch(
        PROMPTS, 8, stop="e", on_token=lambda place, token: seen.append((place, token))
    )
    for place, (result, tokens) in enumerate(zip(results, expected, strict=True)):
        assert result.token_ids == [token.token_id for token in tokens]
        assert result.text == "".join(token.text for token in tokens)
        assert result.finish_reason == tokens[-1].finish_reason
        assert result.prompt_tokens == len(PROMPTS[place])
        assert [token for where, token in seen if where == place] == list(result.tokens)
    assert session.generate_batch([], 5) == []


def test_a_wrong_prompt_is_named_before_anything_is_computed(open_tiny: OpenTiny) -> None:
    session = open_tiny("exact", batch_size=2, max_sequence_length=32)
    session.forward(text(2, 10))
    with pytest.raises(CapacityError, match=r"prompts\[1\]: row 0 holds 0 tokens and 40 more"):
        session.generate_batch(["a", [1] * 40], 5)
    with pytest.raises(SessionError, match=r"prompts\[0\]: top_p is 0"):
        session.generate_batch(["a"], 5, top_p=0.0)
    with pytest.raises(SessionError, match="prompts is one text"):
        session.generate_batch("a", 5)
    assert session.lengths.tolist() == [10, 10]
