"""The three parts of a text: no token is in two of them, and each has what it needs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.runtime.errors import TextError
from minicache.runtime.text_split import (
    FEWEST_DOCUMENTS,
    MOST_PLANNING,
    Documents,
    TextSplit,
    judging_documents,
    split_documents,
)


def numbered(lengths: list[int]) -> Documents:
    """Documents in which every token is another one, so that its way can be followed."""
    count = itertools.count()
    return [list(itertools.islice(count, length)) for length in lengths]


def tokens(documents: Documents) -> list[int]:
    return [token for document in documents for token in document]


@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    piece=st.integers(10, 120),
    elsewhere=st.booleans(),
)
def test_no_token_is_in_two_parts(lengths: list[int], piece: int, elsewhere: bool) -> None:
    """None twice in one part either, and every document is a run of the text as it was."""
    documents = numbered(lengths)
    try:
        split = split_documents(documents, piece, verify_elsewhere=elsewhere)
    except TextError:
        return
    parts = [split.calibration, split.planning, split.verification]
    dealt = [token for part in parts for token in tokens(part)]
    assert len(set(dealt)) == len(dealt)
    assert set(dealt) <= set(tokens(documents))
    for document in [document for part in parts for document in part]:
        assert document == list(range(document[0], document[0] + len(document)))
        assert any(set(document) <= set(whole) for whole in documents)
    assert all(len(document) == piece for document in split.planning)
    # Two documents: the interval of a loss needs them.
    assert 2 <= len(split.planning) <= MOST_PLANNING
    assert (split.verification == []) == elsewhere


def test_half_calibrates_a_quarter_plans_a_quarter_judges() -> None:
    """Documents are dealt in turn, so that kinds of text that follow each other are in all."""
    documents = numbered([100] * 32)
    split = split_documents(documents, 100, verify_elsewhere=False)
    assert sorted(split.calibration) == documents[0::2]
    assert split.planning == documents[1::4]
    assert split.verification == documents[3::4]


def test_with_another_judge_three_quarters_calibrate() -> None:
    documents = numbered([100] * 32)
    split = split_documents(documents, 100, verify_elsewhere=True)
    assert len(split.calibration) == 24 and split.planning == documents[1::4]
    assert split.verification == []


def test_short_documents_calibrate() -> None:
    """They are too short to plan on, and the codecs should know them all the same."""
    documents = numbered([200] * FEWEST_DOCUMENTS + [30] * 5)
    split = split_documents(documents, 100, verify_elsewhere=False)
    assert all(document in split.calibration for document in documents[FEWEST_DOCUMENTS:])


def test_long_documents_plan_in_several_pieces() -> None:
    documents = numbered([350] * 8)
    split = split_documents(documents, 100, verify_elsewhere=False)
    assert split.planning == [
        document[start : start + 100] for document in documents[1::4] for start in (0, 100, 200)
    ]


def test_one_long_document_is_cut() -> None:
    """A book without form feeds: pieces of it serve as documents, nearly all of it is used."""
    split = split_documents(numbered([40_000]), 769, verify_elsewhere=False)
    assert max(map(len, split.calibration)) == 1024
    used = sum(len(tokens(part)) for part in (split.calibration, split.verification))
    assert used > 0.7 * 40_000
    assert len(split.planning) == MOST_PLANNING


def test_few_documents_are_cut_each_on_its_own() -> None:
    """No piece runs over the end of a document."""
    split = split_documents(numbered([3000, 2500, 1500]), 500, verify_elsewhere=False)
    assert len(split.planning) >= 2 and split.verification
    starts = {document[0] for document in split.calibration + split.verification}
    assert starts <= {0, 1024, 2048, 3000, 4024, 5500}


@pytest.mark.parametrize("lengths", [[10] * 50, [100, 100, 100], [50_000 % 99], [769] * 5, [3500]])
def test_too_short_a_text_is_refused_with_numbers(lengths: list[int]) -> None:
    with pytest.raises(TextError, match=r"gives \d+ documents of \d+ tokens.*give a longer text"):
        split_documents(numbered(lengths), 769, verify_elsewhere=False)


def test_the_start_of_every_document_judges_before_more_of_any() -> None:
    """Few documents to measure on are of as many kinds as there are."""
    documents = numbered([250, 90, 100, 310])
    found = judging_documents(TextSplit([], [], documents), 100)
    assert [document[0] for document in found] == [0, 340, 440, 100, 540, 640]
    assert all(len(document) == 100 for document in found)


def test_too_short_a_held_out_part_is_refused_with_remedies() -> None:
    with pytest.raises(TextError, match=r"at most 90 tokens, 100 are needed.*--no-verify"):
        judging_documents(TextSplit([], [], numbered([90, 20])), 100)
