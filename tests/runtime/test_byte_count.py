"""Sizes in bytes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.runtime.byte_count import read_byte_count
from minicache.runtime.errors import SessionError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("16GiB", 2**34),
        ("16 gib", 2**34),
        ("1.5GB", 1_500_000_000),
        ("512M", 512_000_000),
        ("2KiB", 2048),
        ("7b", 7),
        ("0.5Ti", 2**39),
    ],
)
def test_units(text: str, size: int) -> None:
    assert read_byte_count(text) == size


@given(st.integers(1, 10**15))
def test_numbers_are_bytes(size: int) -> None:
    assert read_byte_count(str(size)) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "3XB", "1e9", "iB", "5iB", "0", "0.4", "1 GB GB"])
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(SessionError, match="is no number of bytes; give one such as") as error:
        read_byte_count(text)
    assert repr(text) in str(error.value)
