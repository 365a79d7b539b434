"""Texts to measure on: documents of a fixed number of tokens."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from minicache.runtime.errors import PackageError, TextError
from minicache.runtime.pieces import whole_pieces
from minicache.runtime.tokenizer import TextTokenizer

DEFAULT_TEXT = ("data", "default_text.txt")


def read_text(path: Path | None) -> str:
    """Reads a UTF-8 text file; None reads the one that ships with the package.

    Raises:
        TextError: the file is missing, not readable, or not UTF-8.
        PackageError: the built-in text is not installed.
    """
    if path is None:
        resource = importlib.resources.files("minicache.exporter").joinpath(*DEFAULT_TEXT)
        try:
            return resource.read_text(encoding="utf-8")
        except OSError as error:
            raise PackageError(
                f"the built-in text is missing ({error}); "
                "reinstall minicache-onnx or give a text file"
            ) from error
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TextError(
            f"text {str(path)!r} is not UTF-8 (byte {error.start}); convert it, e.g. with iconv"
        ) from error
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise TextError(
            f"text {str(path)!r} cannot be read ({reason}); give a UTF-8 text file"
        ) from error


def read_documents(path: Path | None, tokenizer: TextTokenizer, vocab_size: int) -> list[list[int]]:
    """Reads a text as token ids of its documents; None reads the text that ships.

    Raises:
        TextError: as ``read_text``.
        PackageError: as ``read_text``, or the tokenizer is another model's.
    """
    documents = tokenizer.encode_documents(read_text(path))
    for document in documents:
        tokenizer.check_ids(document, vocab_size)
    return documents


def cut_documents(
    text: str, tokenizer: TextTokenizer, context: int, vocab_size: int
) -> list[list[int]]:
    """Cuts a text into documents of exactly ``context`` tokens.

    Form feeds separate documents: each gives its first ``context`` tokens, shorter ones are left
    out. A text without form feeds is cut into consecutive windows.

    Args:
        text: the text.
        tokenizer: of the model.
        context: tokens per document.
        vocab_size: entries of the model's vocabulary.

    Raises:
        TextError: no document is long enough.
        PackageError: the tokenizer is another model's.
    """
    found = tokenizer.encode_documents(text)
    if len(found) == 1:
        whole = found[0]
        documents = whole_pieces(whole, context, tokenizer.prefix)
    else:
        documents = [ids[:context] for ids in found if len(ids) >= context]
    if not documents:
        longest = max(len(ids) for ids in found)
        raise TextError(
            f"the text's longest document has {longest} tokens, {context} are needed; "
            "give a longer text or a smaller context"
        )
    for document in documents:
        tokenizer.check_ids(document, vocab_size)
    return documents
