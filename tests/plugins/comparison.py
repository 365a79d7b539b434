"""Runs kernels of a group next to the reference, and compares every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference import dequantise, pack_row, run_group, tile_to_row, unpack_row
from tests.helpers import Call, assert_close
from tests.tolerances import (
    ATTENTION,
    ATTENTION_SUBSPACE,
    CODE_SHARE,
    CODE_STEPS,
    FP16_TINY,
    FP16_ULP,
    INTEGER_MATHS,
    MASS,
    SIMILARITY,
)

Array = np.ndarray
State = dict[str, Array]


class Kernels(Protocol):
    """What runs the nodes of a group call by call, and holds its state."""

    attributes: dict[str, Any]
    dtype: Any
    tables: Sequence[State]

    @property
    def state(self) -> State: ...

    def run(self, call: Call) -> list[Array]: ...


def relative_error(actual: Array, expected: Array) -> float:
    """The largest error, relative to the largest magnitude of ``expected``; inf for NaN."""
    a, b = (np.asarray(x, np.float64) for x in (actual, expected))
    largest = max(float(np.abs(b).max(initial=0)), 1e-30)
    error = float(np.abs(a - b).max(initial=0)) / largest
    return error if np.isfinite(error) else float("inf")


def assert_same(actual: Array, expected: Array, what: str) -> None:
    """Equal element by element; NumPy writes the message only where they are not, as it is slow."""
    if not np.array_equal(actual, expected):
        np.testing.assert_array_equal(actual, expected, what)


class Judge:
    """Compares what kernels of a group made of a call with what the reference makes of it.

    ``score_growth`` says how many times larger than usual the scores are: see ``ATTENTION``.
    ``worst`` is the largest error of an output so far, as ``tolerance`` limits it; likewise
    ``worst_mass`` of ``attention_mass``, relative to the largest of a row, or to 1.
    """

    def __init__(self, attributes: dict[str, Any], dtype: Any, score_growth: float = 1.0) -> None:
        self.attributes, self.dtype = attributes, np.dtype(dtype)
        limits = ATTENTION_SUBSPACE if attributes["mode"] == "subspace" else ATTENTION
        self.tolerance = limits[self.dtype.name] * score_growth
        self.mass_tolerance = MASS
        self.worst = 0.0
        self.worst_mass = 0.0
        self.codes = 0
        self.differing = 0

    def compare(
        self,
        outputs: tuple[Sequence[Array], Sequence[Array]],
        states: tuple[State, State],
        lengths: tuple[Array, Array],
    ) -> None:
        """Compares one call; each argument is a pair.

        Args:
            outputs: the attention of every layer, by the kernels and by the reference.
            states: after the call, likewise.
            lengths: past and total.
        """
        past, total = lengths
        where = f"past {past.tolist()} total {total.tolist()}"
        for layer, (a, b) in enumerate(zip(*outputs, strict=True)):
            assert a.dtype == b.dtype == self.dtype
            self.worst = max(self.worst, relative_error(a, b))
            assert_close(a, b, self.tolerance, f"layer {layer} at {where}")
        for row in range(len(past)):
            mine, its = ({n: a[row] for n, a in s.items()} for s in states)
            left = int(total[row]) - int(its["evicted"][-1] if "evicted" in its else 0)
            self._compare_row(mine, its, f"row {row} after {where}", left)
            if "attention_mass" in its:
                self._compare_mass(mine["attention_mass"], its["attention_mass"], left, where)

    def finish(self) -> None:
        """Checks over all steps that differing codes are rare."""
        share = self.differing / max(self.codes, 1)
        assert share <= CODE_SHARE, f"{self.differing} of {self.codes} code components differ"

    def _compare_row(self, actual: State, expected: State, where: str, total: int) -> None:
        attributes = self.attributes
        for name in actual:
            if name.startswith("exact") or name in ("retained_key", "retained_value", "evicted"):
                # The bytes, so that untouched poison counts: NaN must still be there.
                a, b = (x[name].view(f"u{x[name].itemsize}") for x in (actual, expected))
                assert_same(a, b, f"{name} of {where}")
        if attributes["mode"] == "exact":
            return
        first, states = attributes["sinks"], (actual, expected)
        coded = slice(first, max(first, total - attributes["window"]))
        for kind in ("key", "value"):
            name = f"{kind}_magnitude"
            a, b = (x[name][:, coded] for x in (actual, expected))
            assert_same(np.signbit(a), np.signbit(b), f"sign of {name}, {where}")
            a64, b64 = a.astype(np.float64), b.astype(np.float64)
            assert (np.abs(a64 - b64) <= FP16_ULP * np.abs(b64) + FP16_TINY).all(), (name, where)
            self._compare_codes(f"{kind}_code", attributes[f"{kind}_bits"], states, coded, where)
            later = slice(coded.stop, None)
            self._compare_untouched(name, states, later, where)
            if delta := schemas.delta_code(attributes):
                self._compare_codes(f"{kind}_delta", delta, states, coded, where)
                name = f"{kind}_delta_ratio"
                a64, b64 = (x[name][:, coded].astype(np.float64) for x in states)
                assert (np.abs(a64 - b64) <= FP16_ULP * b64 + FP16_TINY).all(), (name, where)
                self._compare_untouched(name, states, later, where)
        if "retained_position" in actual:
            a, b = actual["retained_position"], expected["retained_position"]
            assert_same(a, b, f"retained_position of {where}")
            a, b = (x["retained_similarity"][b >= 0] for x in (actual, expected))
            np.testing.assert_allclose(a, b, atol=SIMILARITY, err_msg=f"similarity of {where}")
            a, b = (x["similarity_range"] for x in (actual, expected))
            np.testing.assert_allclose(a, b, atol=SIMILARITY, err_msg=f"range of {where}")

    @staticmethod
    def _compare_untouched(
        name: str, states: tuple[State, State], later: slice, where: str
    ) -> None:
        """What no call has encoded keeps its poison."""
        a, b = (x[name][:, later].view(np.uint16) for x in states)
        assert_same(a, b, f"{name} beyond c1 of {where}")

    def _compare_mass(self, actual: Array, expected: Array, left: int, where: str) -> None:
        largest = max(float(expected[:left].max(initial=0)), 1.0)
        error = float(np.abs(actual[:left].astype(np.float64) - expected[:left]).max(initial=0))
        self.worst_mass = max(self.worst_mass, error / largest)
        limit = self.mass_tolerance * largest
        assert error <= limit, f"attention_mass is off by {error} of {largest}, {where}"
        same = actual[left:].view(np.uint32), expected[left:].view(np.uint32)
        assert_same(*same, f"attention_mass of free slots, {where}")

    def _compare_codes(
        self, name: str, bits: Sequence[int], states: tuple[State, State], coded: slice, where: str
    ) -> None:
        rows = [x[name] for x in states]
        if self.attributes["code_layout"] == "tile":
            rows = [tile_to_row(x, name.partition("_")[0]) for x in rows]
        for beyond in (slice(coded.stop, None), slice(0, coded.start)):
            assert_same(*(x[:, beyond] for x in rows), f"{name} of {where}")
        segments = [unpack_row(x[:, coded], bits) for x in rows]
        packed = pack_row(segments[0], bits).view(np.int8)
        assert_same(rows[0][:, coded], packed, f"{name} of {where}: padding is not zero")
        for width, *pair in zip(bits[0::2], *segments, strict=True):
            a, b = (dequantise(x, width) for x in pair)
            limit = FP16_ULP * np.abs(b) + FP16_TINY if width == 16 else CODE_STEPS
            assert (np.abs(a - b) <= limit).all(), f"{name} of {where}: more than one step apart"
            self.codes += a.size
            self.differing += int((a != b).sum())


class Comparison(Judge):
    """Runs kernel and reference side by side; each step starts from the kernel's state."""

    def __init__(self, kernel: Kernels, score_growth: float = 1.0) -> None:
        super().__init__(kernel.attributes, kernel.dtype, score_growth)
        self.kernel = kernel
        self.tolerance += INTEGER_MATHS[getattr(kernel, "maths", "fp32")]

    def step(self, call: Call) -> list[Array]:
        """Runs one call on both, compares outputs and every state, returns the kernel's output."""
        attributes, before = self.kernel.attributes, self.kernel.state
        expected, wanted = run_group(attributes, before, *call.arguments, tables=self.kernel.tables)
        actual = self.kernel.run(call)
        self.compare((actual, expected), (self.kernel.state, wanted), (call.past, call.total))
        return actual
