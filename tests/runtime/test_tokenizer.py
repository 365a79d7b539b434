"""Text, tokens and back: streaming never breaks a character, templates are the model's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from minicache.runtime.errors import PackageError
from minicache.runtime.stop import StopMatcher
from minicache.runtime.tokenizer import REPLACEMENT, IncrementalDecoder, TextTokenizer
from tests.byte_tokenizer import byte_tokenizer

SAMPLES = ["plain text", "Grüße, 世界! 👩‍👩‍👧 ok", "\n\t a  b ", "é", "🙂"]


@pytest.fixture
def byte_folder(tmp_path: Path) -> Path:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def stream(tokenizer: TextTokenizer, ids: list[int], prompt: list[int]) -> list[str]:
    decoder = IncrementalDecoder(tokenizer, prompt)
    return [decoder.add(token) for token in ids] + [decoder.flush()]


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("prompt", ["", "Say: ", "世"])
def test_streaming_gives_whole_characters(byte_folder: Path, text: str, prompt: str) -> None:
    tokenizer = TextTokenizer(byte_folder)
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())  # every character beyond ASCII takes several tokens
    pieces = stream(tokenizer, ids, tokenizer.encode(prompt))
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)


def test_an_unfinished_character_comes_at_the_end(byte_folder: Path) -> None:
    tokenizer = TextTokenizer(byte_folder)
    *_, last = stream(tokenizer, tokenizer.encode("a🙂")[:-1], [])
    assert last == REPLACEMENT
    broken = tokenizer.encode("🙂")[:2] + tokenizer.encode("b")
    assert "".join(stream(tokenizer, broken, [])) == f"{REPLACEMENT}b"


def test_sentencepiece_spaces_survive(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁Paris": 1, "▁is": 2, "▁a": 3, "▁The": 4, "s": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()  # drops the space of the first token
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = TextTokenizer(tmp_path)
    assert "".join(stream(text, [2, 3], [4, 1])) == " is a"
    assert "".join(stream(text, [2, 5, 3], [])) == "iss a"


def test_special_tokens_begin_a_text_but_are_not_shown(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(begin="<s>")
    begin = tokenizer.token_to_id("<s>")
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = TextTokenizer(tmp_path)
    ids = text.encode("abcdef")
    assert ids[0] == begin and len(ids) == 7, "a stored truncation does not shorten a prompt"
    assert text.encode("ab", special=False) == ids[1:3]
    assert text.decode(ids) == "abcdef"
    assert text.prefix == [begin]
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert TextTokenizer(tmp_path).prefix == []


def test_an_empty_prompt_is_the_begin_token(byte_folder: Path) -> None:
    assert TextTokenizer(byte_folder, 7).encode("") == [7]
    assert TextTokenizer(byte_folder).encode("") == []


def test_missing_and_damaged_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"holds no tokenizer\.json"):
        TextTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(PackageError, match="is not a tokenizer"):
        TextTokenizer(tmp_path)


CHATML = (
    "{{ bos_token }}{% for message in messages %}\n"
    "<|{{ message.role }}|>{% generation %}{{ message['content'] }}{% endgeneration %}\n"
    "{% endfor %}\n{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WRITTEN = "B<|user|>Hi <b> 🙂<|assistant|>"


def chat(folder: Path, content: str = "Hi <b> 🙂") -> str:
    tokenizer = TextTokenizer(folder)
    return tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": content}]))


def test_chat_template_of_its_own_file_wins(byte_folder: Path) -> None:
    config = {"bos_token": {"content": "B"}, "chat_template": "wrong"}
    (byte_folder / "tokenizer_config.json").write_text(json.dumps(config))
    (byte_folder / "chat_template.jinja").write_text(CHATML)
    assert chat(byte_folder) == WRITTEN


@pytest.mark.parametrize(
    "template",
    [CHATML, [{"name": "tool_use", "template": "-"}, {"name": "default", "template": CHATML}]],
)
def test_chat_template_of_the_configuration(byte_folder: Path, template: object) -> None:
    config = {"bos_token": "B", "chat_template": template}
    (byte_folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert chat(byte_folder) == WRITTEN


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "holds no chat template"),
        ("{% for %}", "not valid Jinja"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].missing.name }}", "fails on this conversation"),
        # what a sandbox is for
        ("{{ ''.__class__.__mro__ }}", "fails on this conversation"),
        ("{{ messages.append(1) }}", "fails on this conversation"),
    ],
)
def test_unusable_chat_templates(byte_folder: Path, template: str | None, message: str) -> None:
    if template is not None:
        (byte_folder / "chat_template.jinja").write_text(template)
    with pytest.raises(PackageError, match=message):
        chat(byte_folder)


def test_stop_strings_across_pieces() -> None:
    matcher = StopMatcher(["END", "##", ""])
    assert matcher.add("text E") == ("text ", False)
    assert matcher.add("N") == ("", False)
    assert matcher.add("Z #") == ("ENZ ", False)
    assert matcher.add("# more") == ("", True)
    assert StopMatcher(["END", "text"]).add("a text END") == ("a ", True)
    held = StopMatcher(["abc"])
    assert held.add("xab") == ("x", False) and held.flush() == "ab"
    assert StopMatcher([]).add("anything") == ("anything", False)
