"""Answers of samples/03_serve_ray: OpenAI's, whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minicache.runtime import Session
from tests.runtime.tiny_model import MAX_LENGTH
from tests.samples.serving import (
    CHAT,
    COMPLETION,
    PATHS,
    events,
)


def test_a_completion_is_what_the_model_says(served: Any, folder: Path) -> None:
    with Session(folder) as session:
        said = list(session.generate("Once", 6))
    answer = served.client.post(PATHS["completions"], json=COMPLETION)
    assert answer.status_code == 200
    body = answer.json()
    text = "".join(token.text for token in said)
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
    assert body["choices"] == [choice] and body["object"] == "text_completion"
    assert body["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}


def test_a_chat_goes_through_the_template(served: Any, folder: Path) -> None:
    with Session(folder) as session:
        said = "".join(token.text for token in session.generate("user: Hello\n", 6))
    body = served.client.post(PATHS["chat"], json=CHAT).json()
    message = {"role": "assistant", "content": said, "refusal": None}
    assert body["choices"][0]["message"] == message and body["object"] == "chat.completion"
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    pieces = CHAT | {"messages": [{"role": "user", "content": parts}]}
    assert served.client.post(PATHS["chat"], json=pieces).json()["choices"] == body["choices"]


def test_without_a_limit_a_chat_may_fill_the_context(served: Any) -> None:
    given = {name: CHAT[name] for name in ("model", "messages", "temperature")}
    body = served.client.post(PATHS["chat"], json=given).json()
    assert body["usage"]["total_tokens"] == MAX_LENGTH
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("kind", PATHS)
def test_a_stream_says_the_same_in_pieces(served: Any, kind: str) -> None:
    given = COMPLETION if kind == "completions" else CHAT
    whole = served.client.post(PATHS[kind], json=given).json()
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = served.client.post(PATHS[kind], json=given | usage)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *pieces, last = events(streamed.text)
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    choices = [piece["choices"][0] for piece in pieces]
    if kind == "chat":
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(choice["delta"]["content"] for choice in choices)
        assert text == whole["choices"][0]["message"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons[-1] == "length" and set(reasons[:-1]) == {None}
    assert len({piece["id"] for piece in pieces}) == 1


def test_several_prompts_and_choices(served: Any) -> None:
    given = COMPLETION | {"prompt": ["Once", "one"], "n": 2, "temperature": 1, "seed": 5}
    body = served.client.post(PATHS["completions"], json=given).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in body["choices"]]
    assert texts[0] != texts[1], "every choice has a seed of its own"
    assert body["usage"]["prompt_tokens"] == 4 + 3
    again = served.client.post(PATHS["completions"], json=given).json()
    assert [choice["text"] for choice in again["choices"]] == texts


def test_logprobs(served: Any, folder: Path) -> None:
    with Session(folder) as session:
        said = list(session.generate("Once", 6))
    given = COMPLETION | {"logprobs": 2}
    found = served.client.post(PATHS["completions"], json=given).json()["choices"][0]["logprobs"]
    assert found["token_logprobs"] == [token.logprob for token in said]
    assert all(1 <= len(likely) <= 2 for likely in found["top_logprobs"])
    given = CHAT | {"logprobs": True, "top_logprobs": 3}
    found = served.client.post(PATHS["chat"], json=given).json()["choices"][0]["logprobs"]
    assert len(found["content"]) == 6
    for row in found["content"]:
        assert row["top_logprobs"][0]["logprob"] == row["logprob"], "greedy takes the likeliest"
        assert row["bytes"] == list(row["token"].encode()) and len(row["top_logprobs"]) == 3


def test_impossible_tokens_have_a_logprob_that_json_can_write(serving: Any) -> None:
    from minicache.runtime import GeneratedToken, TokenLogprob

    token = GeneratedToken(1, "a", -0.1, "length", (TokenLogprob(2, float("-inf")),))
    for chat in (False, True):
        answer = serving.openai_answers.Answer(
            chat=chat, model="m", choices=1, prompt_tokens=1, likely=1, spell=str
        )
        answer.add(0, token)
        assert "-9999.0" in json.dumps(answer.whole(), allow_nan=False)


def test_without_a_tokenizer_ids_in_and_counts_out(served: Any, folder: Path) -> None:
    name = folder / "tokenizer.json"
    name.rename(folder / "away.json")
    try:
        given = COMPLETION | {"prompt": [1, 2, 3], "logprobs": 1}
        answer = served.client.post(PATHS["completions"], json=given)
    finally:
        (folder / "away.json").rename(name)
    assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == ""
    assert answer.json()["usage"]["completion_tokens"] == 6


def test_a_stop_string_ends_a_completion(served: Any) -> None:
    whole = served.client.post(PATHS["completions"], json=COMPLETION).json()["choices"][0]["text"]
    given = COMPLETION | {"stop": [whole[1]]}
    choice = served.client.post(PATHS["completions"], json=given).json()["choices"][0]
    assert choice["text"] == whole[: whole.index(whole[1])] and choice["finish_reason"] == "stop"


def test_models_and_unknown_addresses(served: Any) -> None:
    assert served.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert served.client.get("/v1/models/tiny").json()["object"] == "model"
    for path, status in (("/v1/models/other", 404), ("/v1/nothing", 404), (PATHS["chat"], 405)):
        answer = served.client.get(path)
        assert answer.status_code == status and answer.json()["error"]["message"]


def test_health_and_metrics(served: Any) -> None:
    assert served.client.get("/health").json() == {"status": "ok"}
    served.client.post(PATHS["completions"], json=COMPLETION)
    served.client.post(PATHS["completions"], json=COMPLETION | {"stop_token_ids": [999]})
    parser = pytest.importorskip("prometheus_client.parser")
    text = served.client.get("/metrics").text
    values = {
        (row.name, row.labels.get("outcome") or row.labels.get("le")): row.value
        for family in parser.text_string_to_metric_families(text)
        for row in family.samples
        if row.labels.get("replica") == "one"
    }
    assert values["minicache_generated_tokens_total", None] == 6
    assert values["minicache_prompt_tokens_total", None] == 4
    assert values["minicache_requests_total", "length"] == 1
    assert values["minicache_requests_total", "refused"] == 1
    assert values["minicache_rows", None] == 2 and values["minicache_rows_active", None] == 0
    assert values["minicache_kv_bytes_free", None] == served._budget
    assert values["minicache_time_to_first_token_seconds_bucket", "+Inf"] == 1
    assert values["minicache_inter_token_seconds_count", None] == 5
    assert values["minicache_tokens_per_second", None] == pytest.approx(0.6)
    assert "process_resident_memory_bytes " in text
