"""What samples/03_serve_ray refuses, and with which words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.samples.serving import (
    CHAT,
    COMPLETION,
    PATHS,
    SAMPLE,
    TEMPLATE,
    idle,
)

REFUSED: list[tuple[str, dict[str, Any], int, str | None, str]] = [
    ("completions", {"foo": 1}, 400, "foo", "unknown_parameter"),
    ("completions", {"model": "gpt"}, 404, "model", "model_not_found"),
    ("completions", {"prompt": None}, 400, "prompt", "missing_required_parameter"),
    ("completions", {"prompt": ""}, 400, "prompt", "invalid_value"),
    ("completions", {"prompt": []}, 400, "prompt", "invalid_value"),
    ("completions", {"prompt": [1, "a"]}, 400, "prompt", "invalid_value"),
    ("completions", {"prompt": [1, 256]}, 400, "prompt", "invalid_value"),
    ("completions", {"prompt": "a" * 155}, 400, "prompt", "context_length_exceeded"),
    ("completions", {"max_tokens": 157}, 400, "prompt", "context_length_exceeded"),
    ("completions", {"prompt": ["a"] * 6}, 400, "n", "too_many_choices"),
    ("completions", {"max_tokens": 0}, 400, "max_tokens", "invalid_value"),
    ("completions", {"max_tokens": "5"}, 400, "max_tokens", "invalid_value"),
    ("completions", {"temperature": -1}, 400, "temperature", "invalid_value"),
    ("completions", {"temperature": True}, 400, "temperature", "invalid_value"),
    ("completions", {"top_p": 0}, 400, "top_p", "invalid_value"),
    ("completions", {"seed": -1}, 400, "seed", "invalid_value"),
    ("completions", {"stop": ["a"] * 5}, 400, "stop", "invalid_value"),
    ("completions", {"stop": 5}, 400, "stop", "invalid_value"),
    ("completions", {"stop_token_ids": [256]}, 400, None, "invalid_value"),
    ("completions", {"echo": True}, 400, "echo", "unsupported_parameter"),
    ("completions", {"best_of": 2}, 400, "best_of", "unsupported_parameter"),
    ("completions", {"presence_penalty": 0.5}, 400, "presence_penalty", "unsupported_parameter"),
    ("completions", {"messages": []}, 400, "messages", "unknown_parameter"),
    ("chat", {"messages": []}, 400, "messages", "invalid_value"),
    ("chat", {"messages": [{"role": "user"}]}, 400, "messages", "missing_required_parameter"),
    ("chat", {"messages": [{"role": "tool", "content": "a"}]}, 400, "messages", "invalid_value"),
    ("chat", {"messages": "Hello"}, 400, "messages", "invalid_value"),
    ("chat", {"tools": [{"type": "function"}]}, 400, "tools", "unsupported_parameter"),
    ("chat", {"response_format": {"type": "json_object"}}, 400, "response_format",
     "unsupported_parameter"),
    ("chat", {"prompt": "a"}, 400, "prompt", "unknown_parameter"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "change", "status", "param", "code"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(
    served: Any, kind: str, change: dict[str, Any], status: int, param: str | None, code: str,
    stream: bool,
) -> None:  # fmt: skip
    body = (COMPLETION if kind == "completions" else CHAT) | {"stream": stream} | change
    answer = served.client.post(PATHS[kind], json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code), error
    assert error["type"] == "invalid_request_error" and "\n" not in error["message"]
    assert idle(served)


@pytest.mark.parametrize(
    "body",
    [b"", b'{"model":', b"[1]", b'"a"', b"\xff", b'{"model": NaN}', b"[" * 100_000,
     b'{"prompt": "\\ud800"}'],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(served: Any, body: bytes) -> None:
    answer = served.client.post(PATHS["completions"], content=body)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json"


def test_a_body_without_end_is_refused(
    served: Any, serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.app, "MOST_BYTES", 1000)
    answer = served.client.post(PATHS["completions"], content=b" " * 1001)
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"


def test_a_refusal_does_not_tell_where_the_model_lies(served: Any, folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    try:
        answer = served.client.post(PATHS["chat"], json=CHAT)
    finally:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and "roles must alternate" in message
    assert str(folder) not in message


def test_idle_and_ignored_parameters_are_taken_and_documented(served: Any, serving: Any) -> None:
    readme = (SAMPLE / "README.md").read_text(encoding="utf-8")
    plain = served.client.post(PATHS["completions"], json=COMPLETION).json()["choices"]
    for name in serving.parameters.IGNORED:
        given = COMPLETION | {name: "x"}
        assert served.client.post(PATHS["completions"], json=given).json()["choices"] == plain, name
    for name, values in serving.parameters.IDLE.items():
        for value in (None, *values):
            given = COMPLETION | {name: value}
            answer = served.client.post(PATHS["completions"], json=given)
            assert answer.json().get("choices") == plain, (name, answer.text)
    documented = set(re.findall(r"`(\w+)`", readme))
    assert documented >= {*serving.parameters.IGNORED, *serving.parameters.IDLE}
