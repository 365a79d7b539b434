"""Walks of calls in which the writer's kernels run beside the reference, each call on one state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference import dequantise, pack_row, run_group, unpack_row
from minicache.plugins.reference.eviction import slot_map
from minicache.plugins.reference.retention import active_slots
from minicache.plugins.reference.state import Span
from tests.helpers import Call, poisoned_state
from tests.plugins.triton.interpreter import Array
from tests.plugins.triton.writer import Writer
from tests.tolerances import CODE_SHARE, CODE_STEPS, FP16_TINY, FP16_ULP, SIMILARITY

State = dict[str, Array]


def same_bits(actual: Array, expected: Array, what: str) -> None:
    """Equal byte by byte, so that poison that was left alone counts."""
    a, b = (np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in (actual, expected))
    if not np.array_equal(a, b):
        np.testing.assert_array_equal(actual, expected, what)
        raise AssertionError(f"{what}: the values are equal, the bytes are not")


class EncodeWalk:
    """The kernels on a state of their own; the reference starts each call from the same one."""

    def __init__(
        self,
        attributes: dict[str, Any],
        *,
        tables: Sequence[State] = (),
        batch: int = 2,
        capacity: int = 48,
        retained: int = 0,
        exact_dtype: Any = np.float16,
        segments: int = 1,
    ) -> None:
        exact = attributes["mode"] == "exact"
        self.attributes, self.tables = attributes, tables
        state = poisoned_state(attributes, batch, capacity, retained, exact_dtype, segments)
        self.writer = Writer(attributes, state, tables)
        # Aligned vectors are sums in fp32; the others' cosines are fp64, and so exact in fp32.
        self.similarity = SIMILARITY if schemas.is_aligned(attributes) or exact else 0.0
        self.components = self.differing = 0

    @property
    def state(self) -> State:
        """The kernels' state."""
        return self.writer.state

    def step(self, call: Call) -> None:
        """Runs a call on both and compares all of the state."""
        before = {name: array.copy() for name, array in self.state.items()}
        if self.attributes["retention"] == "budget":
            self._compare_active(call)
        _, expected = run_group(self.attributes, before, *call.arguments, tables=self.tables)
        self.writer.step(call)
        for row, lengths in enumerate(zip(call.past.tolist(), call.total.tolist(), strict=True)):
            where = "row {} from {} to {}".format(row, *lengths)
            mine, its = ({n: a[row] for n, a in s.items()} for s in (self.state, expected))
            self._compare_row(mine, its, lengths, where)

    def finish(self) -> None:
        """Differing components were rare."""
        assert self.differing <= CODE_SHARE * self.components, (self.differing, self.components)

    def _compare_row(
        self, actual: State, expected: State, lengths: tuple[int, int], where: str
    ) -> None:
        for name in actual:
            if name.startswith("exact") or name in ("retained_key", "retained_value"):
                same_bits(actual[name], expected[name], f"{name}, {where}")
        if "retained_position" in actual:
            same_bits(*(x["retained_position"] for x in (actual, expected)), f"position, {where}")
            for name in ("retained_similarity", "similarity_range"):
                np.testing.assert_allclose(
                    actual[name], expected[name], rtol=0, atol=self.similarity, err_msg=where
                )
        if "key_code" not in actual:
            return
        sinks, window = self.attributes["sinks"], self.attributes["window"]
        # What a call encodes comes behind all that is evicted.
        gone = int(expected["evicted"][-1]) if "evicted" in expected else 0
        encoded = slice(*(p - gone for p in Span(*lengths, sinks, window).encoded))
        for kind in ("key", "value"):
            codes, magnitudes = ([x[f"{kind}_{part}"] for x in (actual, expected)]
                                 for part in ("code", "magnitude"))  # fmt: skip
            for other in (slice(0, encoded.start), slice(encoded.stop, None)):
                same_bits(*(x[:, other] for x in codes), f"{kind} codes, {where}")
                same_bits(*(x[:, other] for x in magnitudes), f"{kind} magnitudes, {where}")
            self._compare_codes(kind, *(x[:, encoded] for x in codes), where)
            a, b = (x[:, encoded] for x in magnitudes)
            same_bits(np.signbit(a), np.signbit(b), f"sign of {kind} magnitudes, {where}")
            a64, b64 = a.astype(np.float64), b.astype(np.float64)
            off = np.abs(a64 - b64) > FP16_ULP * np.abs(b64) + FP16_TINY
            assert not off.any(), f"{kind} magnitudes, {where}: {a[off]}, not {b[off]}"

    def _compare_codes(self, kind: str, actual: Array, expected: Array, where: str) -> None:
        bits = self.attributes[f"{kind}_bits"]
        segments = [unpack_row(x, bits) for x in (actual, expected)]
        padded = pack_row(segments[0], bits).view(np.int8)
        same_bits(actual, padded, f"padding of {kind} codes, {where}")
        for width, *pair in zip(bits[0::2], *segments, strict=True):
            a, b = (dequantise(x, width) for x in pair)
            limit = FP16_ULP * np.abs(b) + FP16_TINY if width == 16 else CODE_STEPS
            off = np.abs(a - b) > limit
            assert not off.any(), f"{kind} codes of {width} bits, {where}: {a[off]}, not {b[off]}"
            self.components += a.size
            self.differing += int((a != b).sum())

    def _compare_active(self, call: Call) -> None:
        """What attention reads before the call, and skips without a mark."""
        flags, skipped = self.writer.active(call.past, call.total)
        a, state = self.attributes, self.state
        for row, past in enumerate(call.past.tolist()):
            c0 = Span(past, past, a["sinks"], a["window"]).c0
            position = state["retained_position"][row]
            most = max(0, position.size - schemas.retained_extra(a))
            coded = a["sinks"], c0
            similarity = state["retained_similarity"][row]
            read = active_slots(position, similarity, coded, "budget", most)
            assert np.flatnonzero(flags[row]).tolist() == sorted(read), f"active, row {row}"
            slots = slot_map(a, state, row).slots(position[read].astype(np.int64))
            marked = np.signbit(state["key_magnitude"][row, 0, slots, 0])
            wanted = sorted(slots[~marked])
            count = int(skipped[row, 0])
            assert sorted(skipped[row, 1 : 1 + count]) == wanted, f"skipped, row {row}"
