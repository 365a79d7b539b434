"""Pieces of a document: they hold its tokens in order, and each begins as a text does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.runtime.pieces import cut_pieces


@given(tokens=st.integers(0, 300), length=st.integers(4, 60), first=st.integers(0, 3))
def test_pieces_joined_are_the_document(tokens: int, length: int, first: int) -> None:
    prefix = [-1, -2, -3][:first]
    pieces = cut_pieces([*prefix, *range(tokens)], length, prefix)
    assert all(piece[:first] == prefix for piece in pieces)
    assert [token for piece in pieces for token in piece[first:]] == list(range(tokens))
    assert all(len(piece) == length for piece in pieces[:-1])
    assert all(first < len(piece) <= length for piece in pieces)


def test_a_prefix_leaves_place() -> None:
    with pytest.raises(ValueError, match="2 tokens have no place behind 2"):
        cut_pieces([1, 2, 3], 2, [1, 2])
