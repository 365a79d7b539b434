"""Generation: determinism, ends, streaming and statistics."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicache.runtime.errors import CapacityError, PackageError, SessionError
from minicache.runtime.generated_token import GeneratedToken
from minicache.runtime.session import Session
from tests.runtime.conftest import OpenTiny
from tests.runtime.tiny_model import VARIANTS, VOCABULARY

PROMPT = "Once upon a time"


def ids(tokens: list[GeneratedToken]) -> list[int]:
    return [token.token_id for token in tokens]


def generate(session: Session, count: int = 20, **options: Any) -> list[GeneratedToken]:
    return list(session.generate(options.pop("prompt", PROMPT), count, **options))


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_follows_the_largest_logit(open_tiny: OpenTiny, variant: str) -> None:
    session = open_tiny(variant)
    tokens = generate(session)
    assert generate(session) == tokens, "a session starts each generation from nothing"
    by_hand = open_tiny(variant)
    logits = by_hand.prefill(by_hand.tokenizer.encode(PROMPT))[0]
    for token in tokens:
        assert token.token_id == int(logits.argmax())
        shifted = logits.astype(np.float64) - logits.max()
        expected = shifted[token.token_id] - np.log(np.exp(shifted).sum())
        assert token.logprob == pytest.approx(expected, abs=1e-9)
        result = by_hand.forward([[token.token_id]])
        logits = result[0, -1]


def test_seeds_repeat_and_differ(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    first = generate(session, temperature=1.0, seed=1)
    assert ids(generate(session, temperature=1.0, seed=1)) == ids(first)
    assert ids(generate(session, temperature=1.0, seed=2)) != ids(first)


def test_the_streamed_text_is_the_decoded_tokens(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    tokens = generate(session, 60, temperature=2.0, seed=4)
    text = "".join(token.text for token in tokens)
    prompt = session.tokenizer.encode(PROMPT)
    assert PROMPT + text == session.tokenizer.decode(prompt + ids(tokens))


def test_length_ends_it(open_tiny: OpenTiny) -> None:
    tokens = generate(open_tiny(), 3)
    assert [token.finish_reason for token in tokens] == [None, None, "length"]


def test_a_full_cache_ends_it(open_tiny: OpenTiny) -> None:
    session = open_tiny("exact", max_sequence_length=32)
    tokens = generate(session, 1000)
    # 16 prompt tokens fill half; the token after the last cached one is still given
    assert len(tokens) == 32 - len(PROMPT) + 1
    assert tokens[-1].finish_reason == "length"
    assert session.lengths.tolist() == [32]
    with pytest.raises(CapacityError):
        generate(session, prompt="x" * 33)


def test_eos_ends_it_without_text(open_tiny: OpenTiny) -> None:
    plain = generate(open_tiny())
    # the first token that did not occur before ends it at its place
    place = next(i for i in range(3, 20) if ids(plain)[i] not in ids(plain)[:i])
    stopped = generate(open_tiny("exact", {"eos": (ids(plain)[place],)}))
    assert ids(stopped) == ids(plain)[: place + 1]
    assert stopped[-1].finish_reason == "eos" and stopped[-1].token_id == ids(plain)[place]
    prompt = open_tiny().tokenizer.encode(PROMPT)
    whole = open_tiny().tokenizer.decode(prompt + ids(stopped)[:-1])
    assert PROMPT + "".join(token.text for token in stopped) == whole


def test_a_stop_string_ends_it(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    options: dict[str, Any] = {"temperature": 1.0, "seed": 1}
    text = "".join(token.text for token in generate(session, 40, **options))
    place = next(i for i in range(4, 38) if text.find(text[i : i + 2]) == i)
    stopped = generate(session, 40, stop=text[place : place + 2], **options)
    assert "".join(token.text for token in stopped) == text[:place]
    assert stopped[-1].finish_reason == "stop"


def test_stop_tokens_end_it_without_text(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    plain = generate(session)
    place = next(i for i in range(3, 20) if ids(plain)[i] not in ids(plain)[:i])
    stopped = generate(session, stop_token_ids=[ids(plain)[place], 7])
    assert ids(stopped) == ids(plain)[: place + 1]
    assert stopped[-1].finish_reason == "stop"
    prompt = session.tokenizer.encode(PROMPT)
    whole = session.tokenizer.decode(prompt + ids(stopped)[:-1])
    assert PROMPT + "".join(token.text for token in stopped) == whole


def test_the_likeliest_tokens_come_with_each(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    tokens = generate(session, temperature=1.5, seed=2, logprobs=4)
    by_hand = open_tiny()
    logits = by_hand.prefill(by_hand.tokenizer.encode(PROMPT))[0]
    for token in tokens:
        shifted = logits.astype(np.float64) - logits.max()
        expected = shifted - np.log(np.exp(shifted).sum())
        best = np.argsort(-expected, kind="stable")[:4]
        assert [each.token_id for each in token.top_logprobs] == best.tolist()
        found = [each.logprob for each in token.top_logprobs]
        np.testing.assert_allclose(found, expected[best], atol=1e-9)
        logits = by_hand.forward([[token.token_id]])[0, -1]
    assert generate(session)[0].top_logprobs == ()


def test_token_ids_need_no_tokenizer(
    backend: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "out"))
    with Session(folder, threads=1) as session:
        prompt = session.tokenizer.encode(PROMPT)
        expected = ids(generate(session))
        assert ids(generate(session, prompt=np.array(prompt))) == expected
    (folder / "tokenizer.json").unlink()
    with Session(folder, threads=1) as session:
        tokens = generate(session, prompt=prompt)
        assert ids(tokens) == expected and not any(token.text for token in tokens)
        with pytest.raises(PackageError, match="holds no tokenizer"):
            session.generate(prompt, 5, stop="x")


def test_statistics(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    seen: list[int] = []
    generate(session, 5, progress=seen.append)
    stats = session.last_stats
    assert stats is not None
    assert (stats.prompt_tokens, stats.new_tokens, stats.decode_steps) == (len(PROMPT), 5, 4)
    assert stats.prefill_tokens_per_second > 0 and stats.decode_tokens_per_second > 0
    assert stats.cache_bytes == session.cache_bytes
    assert sum(seen) == len(PROMPT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "max_new_tokens is 0"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [[1]]}, "neither a text nor token ids"),
        ({"prompt": [1, 2], "chat": True}, "not token ids"),
        ({"top_p": 2.0}, "top_p is 2"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"stop_token_ids": [1, 256]}, "stop_token_ids holds token 256"),
        ({"stop_token_ids": "x"}, "stop_token_ids: neither"),
        ({"typical_p": 0.5}, "unknown"),
        ({"prompt": [VOCABULARY]}, "the vocabulary ends at 255"),
    ],
)
def test_wrong_arguments(open_tiny: OpenTiny, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SessionError, match=message):
        generate(open_tiny(), **options)


def test_arguments_are_checked_before_the_first_token(open_tiny: OpenTiny) -> None:
    with pytest.raises(SessionError):
        open_tiny().generate(PROMPT, 5, temperature=-1.0)
    with pytest.raises(PackageError, match="holds no chat template"):
        open_tiny().generate(PROMPT, 5, chat=True)
    with pytest.raises(SessionError, match="drives one row, the session has 2"):
        open_tiny(batch_size=2).generate(PROMPT, 5)
