"""Chat templates: the Jinja text with which a model's makers wrote their conversations."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from minicache.runtime.errors import PackageError

Message = Mapping[str, str]  # "role" (system, user, assistant) and "content"

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"


class _GenerationTag(Extension):
    """``{% generation %}``: marks the assistant's words for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return str(caller())


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja text. It comes with a model, so it runs in a sandbox.
        tokens: special tokens that the template may write, e.g. ``bos_token``.
        origin: where the text comes from, for messages.

    Raises:
        PackageError: the text is not a template.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], origin: str) -> None:
        # trim_blocks and lstrip_blocks: as transformers compiles templates.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.filters["tojson"] = _to_json
        self._tokens, self._origin = dict(tokens), origin
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise PackageError(
                f"the chat template in {origin!r} is not valid Jinja ({error}); correct it, or "
                "leave out chat"
            ) from error

    @staticmethod
    def load(folder: Path) -> ChatTemplate:
        """Reads ``chat_template.jinja``, or ``chat_template`` of ``tokenizer_config.json``.

        Raises:
            PackageError: neither holds a template.
        """
        config: dict[str, Any] = {}
        if (folder / CONFIG_FILE).is_file():
            try:
                config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise PackageError(
                    f"{str(folder / CONFIG_FILE)!r} is not JSON ({error}); "
                    "copy the model's own again"
                ) from error
            if not isinstance(config, dict):
                raise PackageError(
                    f"{str(folder / CONFIG_FILE)!r} is no JSON object; copy the model's own again"
                )
        tokens = {}
        for name, value in config.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                tokens[name] = text
        if (folder / TEMPLATE_FILE).is_file():
            try:
                source = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
            except ValueError as error:
                raise PackageError(
                    f"{str(folder / TEMPLATE_FILE)!r} is not UTF-8 ({error}); "
                    "copy the model's own again"
                ) from error
            return ChatTemplate(source, tokens, str(folder / TEMPLATE_FILE))
        found = config.get("chat_template")
        if isinstance(found, list):  # several named templates
            entries = [entry for entry in found if isinstance(entry, dict)]
            named = {entry.get("name"): entry.get("template") for entry in entries}
            found = named.get("default")
        if not isinstance(found, str):
            raise PackageError(
                f"{str(folder)!r} holds no chat template (looked for {TEMPLATE_FILE} and for "
                f"'chat_template' in {CONFIG_FILE}); copy one there, or leave out chat"
            )
        return ChatTemplate(found, tokens, str(folder / CONFIG_FILE))

    def render(self, messages: Sequence[Message]) -> str:
        """Writes a conversation up to where the assistant begins to speak.

        Raises:
            PackageError: the template refuses the messages or fails.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                **self._tokens,
            )
        except Exception as error:  # a template is a program: it can fail in any way
            raise PackageError(
                f"the chat template in {self._origin!r} fails on this conversation ({error}); "
                "check roles and contents, or leave out chat"
            ) from error


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own filter escapes HTML characters, which a prompt must keep.
    return json.dumps(value, ensure_ascii=False, indent=indent)
