"""Documents to measure on, and the file of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.held_out import join_short, pick_documents, split_text
from benchmarks.row_store import RowStore, digest
from minicache.runtime.errors import OutputError, TextError
from minicache.runtime.tokenizer import TextTokenizer
from tests.byte_tokenizer import byte_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return TextTokenizer(tmp_path)


def test_texts_are_cut_between_documents(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("aaaa\fbbbbbb\fcc")
    assert split_text(path, 0.5) == ("aaaa\fbbbbbb", "cc")
    assert split_text(path, 0.0) == ("", "aaaa\fbbbbbb\fcc")
    path.write_text("abcdefgh")
    assert split_text(path, 0.5) == ("abcd", "efgh")


def test_short_documents_are_joined() -> None:
    assert join_short("aa\fbb\f \fcccccc\fd", 5) == ["aa\n\nbb", "cccccc", "d"]
    assert join_short("aaaaaa\fbbbbb", 5) == ["aaaaaa", "bbbbb"]


def test_picks_spread_over_documents_and_grow(tokenizer: TextTokenizer) -> None:
    text = "\f".join(letter * 130 for letter in "abcdef")
    texts = [tokenizer.decode(ids) for ids in pick_documents(text, tokenizer, 20, 8)]
    assert sorted({t[0] for t in texts[:6]}) == list("abcdef"), "each document gives one first"
    assert [tokenizer.decode(ids) for ids in pick_documents(text, tokenizer, 20, 3)] == texts[:3]
    assert len(pick_documents(text, tokenizer, 20, 99)) == 6 * (130 // 20), "all there are"
    assert all(len(t) == 20 for t in texts)
    with pytest.raises(TextError, match="no document of 900 tokens"):
        pick_documents(text, tokenizer, 900, 1)
    with pytest.raises(TextError, match="no document of 9 tokens"):
        pick_documents("", tokenizer, 9, 1)


def test_later_pieces_begin_as_a_text_does(tmp_path: Path) -> None:
    byte_tokenizer(begin="<s>").save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer(tmp_path)
    pieces = pick_documents("abcdefgh", tokenizer, 5, 9)
    assert [tokenizer.decode(ids[1:]) for ids in pieces] == ["abcd", "efgh"]
    assert [ids[:1] for ids in pieces] == [tokenizer.prefix] * 2


def test_rows_survive_and_are_found(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    store = RowStore(path)
    store.add({"name": "a", "value": 1})
    store.add({"name": "b", "value": 2})
    with path.open("a") as file:
        file.write('{"name": "half')  # killed while writing
    again = RowStore(path, resume=True)
    again.add({"name": "b", "value": 3})
    assert RowStore(path, resume=True).find(name="b") == {"name": "b", "value": 3}
    assert again.find(name="b", value=2) == {"name": "b", "value": 2}
    assert again.find(name="c") is None
    with pytest.raises(OutputError, match="give --resume"):
        RowStore(path)
    path.write_text("no rows\n")
    with pytest.raises(OutputError, match="not a file of results"):
        RowStore(path, resume=True)


def test_digests_tell_parts_apart() -> None:
    assert digest(b"ab", b"c") != digest(b"a", b"bc")
