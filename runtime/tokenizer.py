"""Text to tokens and back, from the folder's ``tokenizer.json``; needs no transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from minicache.runtime.chat import ChatTemplate, Message
from minicache.runtime.errors import PackageError, TextError

FILE_NAME = "tokenizer.json"
REPLACEMENT = "�"  # what decoding gives for bytes that are not (yet) UTF-8
# Tokens of context that decide how the next ones are spelled, e.g. whether a space comes first.
CONTEXT_TOKENS = 6


class TextTokenizer:
    """Tokenizer and chat template of an exported folder.

    Args:
        folder: where ``tokenizer.json`` lies.
        bos_token_id: stands for an empty prompt, if the model has such a token.

    Raises:
        PackageError: the file is missing or damaged.
    """

    def __init__(self, folder: Path, bos_token_id: int | None = None) -> None:
        path = folder / FILE_NAME
        if not path.is_file():
            raise PackageError(
                f"{str(folder)!r} holds no {FILE_NAME}, so text cannot be tokenized; copy the "
                "model's there"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise PackageError(
                f"{str(path)!r} is not a tokenizer ({error}); copy the model's own again"
            ) from error
        # Both may be stored in the file, and would silently shorten or lengthen a prompt.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._folder = folder
        self._bos_token_id = bos_token_id
        self._chat: ChatTemplate | None = None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the token ids of a text.

        Args:
            text: any text.
            special: let the tokenizer add what begins or ends a text.

        Raises:
            TextError: the text holds halves of characters, as Python makes of other bytes.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(
                f"the text is not UTF-8 (character {error.start}); convert it, e.g. with iconv"
            ) from error
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        if not ids and special and self._bos_token_id is not None:
            return [self._bos_token_id]
        return ids

    @property
    def prefix(self) -> list[int]:
        """Special tokens that the tokenizer puts before every text, often none or one."""
        encoding = self._tokenizer.encode("a")
        special = encoding.special_tokens_mask
        first = special.index(0) if 0 in special else 0
        return list(encoding.ids[:first])

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Returns the token ids of a conversation that the assistant is to continue.

        Raises:
            PackageError: the folder holds no chat template, or it fails.
        """
        if self._chat is None:
            self._chat = ChatTemplate.load(self._folder)
        # The template writes the special tokens itself.
        return self.encode(self._chat.render(messages), special=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def check_ids(self, ids: Sequence[int], vocab_size: int) -> None:
        """Checks that a model has all tokens of a text.

        Raises:
            PackageError: it has not: the tokenizer is another model's.
        """
        largest = max(ids, default=0)
        if largest >= vocab_size:
            raise PackageError(
                f"{str(self._folder / FILE_NAME)!r} gives token {largest}, the model's vocabulary "
                f"ends at {vocab_size - 1}: it is another model's; copy the model's own there"
            )

    def encode_documents(self, text: str) -> list[list[int]]:
        """Returns the ids of each document of a text; form feeds separate documents.

        Raises:
            TextError: no document holds any token.
        """
        documents = [part for part in text.split("\f") if part.strip()]
        ids = [self.encode(document) for document in documents]
        if not any(ids):
            raise TextError("the text holds no tokens; give a text file with some prose")
        return ids


class IncrementalDecoder:
    """Turns tokens into text one by one; never gives a part of a character.

    Decoding a token alone is wrong for byte-level pieces (a character may take several tokens) and
    for SentencePiece (a leading space belongs to the token, not to a text's start). So a tail of
    tokens is decoded with and without the new one, and the difference is the new text.

    Args:
        tokenizer: of the model.
        prompt: tokens that come before the first one; only the last few matter.
    """

    def __init__(self, tokenizer: TextTokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._tail = list(prompt[-CONTEXT_TOKENS:])
        self._said = tokenizer.decode(self._tail)
        if self._said.endswith(REPLACEMENT):
            # The prompt's tail begins or ends inside a character: no usable context.
            self._tail, self._said = [], ""

    def add(self, token: int) -> str:
        """Returns the text that ``token`` completes; empty while a character is incomplete."""
        self._tail.append(token)
        text = self._tokenizer.decode(self._tail)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._said):
            return ""
        new = text[len(self._said) :]
        self._tail = self._tail[-CONTEXT_TOKENS:]
        self._said = self._tokenizer.decode(self._tail)
        return new

    def flush(self) -> str:
        """Returns what is still held back at the end, replacement characters included."""
        text = self._tokenizer.decode(self._tail)
        new = text[len(self._said) :]
        self._said = text
        return new
