"""Walks of calls in which the attention kernels run beside the reference, on its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference import run_group
from tests.helpers import Text, assert_close, poisoned_state
from tests.plugins.triton.attend_call import AttendCall, Blocks, model_type
from tests.plugins.triton.interpreter import Array
from tests.tolerances import ATTENTION_GPU

State = dict[str, Array]
SMALL = Blocks()


def compare_walk(
    attributes: dict[str, Any],
    text: Text,
    calls: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    tables: Sequence[State] = (),
    capacity: int = 192,
    retained: int = 0,
    exact_dtype: Any = np.float16,
    blocks: Blocks = SMALL,
    layers: Sequence[int] = (),
    skip: int = 0,
) -> None:
    """Compares every layer's attention in every call.

    Args:
        attributes: of the group.
        text: in the model's type.
        calls: past and new tokens of every row, call by call.
        tables: per layer the constant inputs of its node.
        capacity: C.
        retained: M.
        exact_dtype: of ``exact_*``.
        blocks: how the kernels cut the work.
        layers: which to compare; all unless given.
        skip: calls at the start that only the reference makes.
    """
    batch = text.query.shape[1]
    state = poisoned_state(attributes, batch, capacity, retained, exact_dtype)
    dtype = model_type(text.query.dtype)
    for number, (past, new) in enumerate(calls):
        call = text.call(past, new, slots=max(1, *new), capacity=capacity)
        expected, after = run_group(attributes, state, *call.arguments, tables=tables)
        for slot in layers or range(len(expected)):
            if number < skip:
                break
            inputs = {"query": call.queries[slot], "key": call.keys[slot]}
            inputs |= {"value": call.values[slot], "past_lengths": call.past}
            inputs |= {"total_lengths": call.total} | dict(tables[slot] if tables else {})
            inputs |= {} if call.bias is None else {"attention_bias": call.bias}
            inputs |= {} if call.sink is None else {"head_sink": call.sink}
            inputs |= {f"past_{name}": array for name, array in state.items()}
            full = schemas.attributes_with_defaults({**attributes, "group_slot": slot})
            actual = AttendCall(full, inputs, blocks).run()
            where = f"layer {slot} at past {list(past)} new {list(new)}"
            assert_close(actual, expected[slot], ATTENTION_GPU[dtype], where)
        state = after
