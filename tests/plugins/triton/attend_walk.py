"""Walks of calls in which the attention kernels run beside the reference, on its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference import run_group
from tests.helpers import Call, Text, assert_close, poisoned_state
from tests.plugins.triton.attend_call import AttendCall, Blocks, model_type
from tests.plugins.triton.interpreter import Array
from tests.tolerances import ATTENTION_GPU

State = dict[str, Array]
SMALL = Blocks()


class AttendWalk:
    """The reference on a state; the kernels attend on the same one before each of its calls.

    Args:
        attributes: of the group.
        state: before the first call.
        tables: per layer the constant inputs of its node.
        blocks: how the kernels cut the work.
        layers: which to compare; all unless given.
    """

    def __init__(
        self,
        attributes: dict[str, Any],
        state: State,
        *,
        tables: Sequence[State] = (),
        blocks: Blocks = SMALL,
        layers: Sequence[int] = (),
    ) -> None:
        self.attributes, self.state, self.tables = attributes, state, tables
        self.blocks, self.layers = blocks, layers or range(attributes["group_size"])

    def step(self, call: Call, *, compare: bool = True) -> list[Array]:
        """Runs a call; returns the attention of the layers that were compared."""
        group = self.attributes, self.state
        expected, after = run_group(*group, *call.arguments, tables=self.tables)
        outputs = [self._layer(slot, call, expected[slot]) for slot in self.layers if compare]
        self.state = after
        return outputs

    def _layer(self, slot: int, call: Call, expected: Array) -> Array:
        inputs = {"query": call.queries[slot], "key": call.keys[slot], "value": call.values[slot]}
        inputs |= {"past_lengths": call.past, "total_lengths": call.total}
        inputs |= dict(self.tables[slot] if self.tables else {})
        inputs |= {} if call.bias is None else {"attention_bias": call.bias}
        inputs |= {} if call.sink is None else {"head_sink": call.sink}
        inputs |= {f"past_{name}": array for name, array in self.state.items()}
        full = schemas.attributes_with_defaults({**self.attributes, "group_slot": slot})
        actual = AttendCall(full, inputs, self.blocks).run()
        where = f"layer {slot} at past {call.past.tolist()} total {call.total.tolist()}"
        assert_close(actual, expected, ATTENTION_GPU[model_type(call.queries[0].dtype)], where)
        return actual


def compare_walk(
    attributes: dict[str, Any],
    text: Text,
    calls: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    capacity: int = 192,
    retained: int = 0,
    exact_dtype: Any = np.float16,
    skip: int = 0,
    **options: Any,
) -> None:
    """Compares every layer's attention in every call.

    Args:
        attributes: of the group.
        text: in the model's type.
        calls: past and new tokens of every row, call by call.
        capacity: C.
        retained: M.
        exact_dtype: of ``exact_*``.
        skip: calls at the start that only the reference makes.
        options: of ``AttendWalk``.
    """
    batch = text.query.shape[1]
    state = poisoned_state(attributes, batch, capacity, retained, exact_dtype)
    walk = AttendWalk(attributes, state, **options)
    for number, (past, new) in enumerate(calls):
        call = text.call(past, new, slots=max(1, *new), capacity=capacity)
        walk.step(call, compare=number >= skip)
