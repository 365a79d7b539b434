"""Attention kernels in exact mode against the reference, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import make_attributes, make_text
from tests.plugins.triton.attend_call import Blocks
from tests.plugins.triton.attend_walk import compare_walk
from tests.plugins.triton.interpreter import TYPES

# Ragged: a prompt next to an empty row; more, from no past; one row does nothing; one token each.
CALLS = [((0, 0), (100, 0)), ((100, 0), (9, 20)), ((109, 20), (1, 0)), ((110, 20), (1, 1))]


@pytest.mark.parametrize(
    ("size", "heads", "kv_heads", "dtype"),
    [(64, 4, 2, "fp16"), (96, 2, 2, "bf16"), (128, 5, 1, "fp16"), (256, 2, 2, "fp16")],
)
def test_growing(size: int, heads: int, kv_heads: int, dtype: str) -> None:
    """Every position in its own slot; grouped, many and single kv heads; all head sizes."""
    attributes = make_attributes(head_size=size, num_heads=heads, kv_num_heads=kv_heads)
    text = make_text(attributes, 112, batch=2, dtype=TYPES[dtype])
    compare_walk(attributes, text, CALLS, capacity=112, exact_dtype=TYPES[dtype], skip=1)


@pytest.mark.parametrize(("splits", "dtype"), [(1, "fp16"), (2, "bf16")])
def test_sliding(splits: int, dtype: str) -> None:
    """A ring of slots that has gone round, and calls that bring more than fits the window."""
    attributes = make_attributes(
        head_size=64, num_heads=4, kv_num_heads=2, local_window_size=70, ring_slots=83
    )
    text = make_text(attributes, 175, batch=2, dtype=TYPES[dtype])
    calls = [((0, 0), (150, 60)), ((150, 60), (1, 20)), ((151, 80), (24, 1))]
    blocks = Blocks(exact_splits=splits)
    compare_walk(
        attributes, text, calls, capacity=192, exact_dtype=TYPES[dtype], blocks=blocks, skip=1
    )


@pytest.mark.parametrize("extras", [("has_bias",), ("has_sink", "softcap")])
def test_prompt_in_chunks(extras: tuple[str, ...]) -> None:
    """Prompts of many blocks of rows, cut into launches of 13 tokens; bias, sink, soft cap."""
    given: dict[str, Any] = {name: 4.0 if name == "softcap" else 1 for name in extras}
    attributes = make_attributes(head_size=64, num_heads=3, kv_num_heads=1, **given)
    text = make_text(attributes, 64, batch=2, dtype=np.float16)
    calls = [((0, 0), (40, 29)), ((40, 29), (2, 0))]
    compare_walk(attributes, text, calls, capacity=64, blocks=Blocks(chunk=13))


def test_bias_may_hide_everything() -> None:
    """A bias of -inf hides a token; one that hides all of a row's tokens makes zeros of it."""
    attributes = make_attributes(head_size=64, num_heads=2, kv_num_heads=1, has_bias=1)
    text = make_text(attributes, 40, batch=2, dtype=np.float16)
    assert text.bias is not None
    text.bias[:, :, :, ::3] = -np.inf
    text.bias[0, 1, 37] = -np.inf
    calls = [((0, 0), (36, 36)), ((36, 36), (2, 2))]
    compare_walk(attributes, text, calls, capacity=48, skip=1)
