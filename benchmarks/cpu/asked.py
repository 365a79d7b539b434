"""The speeds that were asked for: at least this many times a baseline of the same run.

They are for B = 1, H = 32, Hk = 8, D = 128 and one thread of a machine with AVX-512, unless a bound
names an instruction set that ours is held to while ONNX Runtime keeps what the machine has.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cpu.formats import EXACT16, JOINT, SLERP8
from benchmarks.cpu.library import Choice
from benchmarks.cpu.ort_baselines import GQA_FP16, GQA_FP32, GQA_INT4, GQA_INT8

MOST_FOR_CASES = 1.15  # ragged rows, ring wrap, retained tokens: times the plain case
MOST_MICROSECONDS = {"subspace G=2": 40.0, "subspace G=3": 120.0}  # to encode a token, per group
MOST_FOR_EXACT_PREFILL = 1.1  # times GQA fp32
MOST_FOR_CODED_PREFILL = 1.2  # times exact mode, encoding included
LEAST_BANDWIDTH_SHARE = {EXACT16: 0.5, SLERP8: 0.5}


@dataclass(frozen=True)
class Bound:
    """``at_least`` times ``baseline``; an empty ``math`` or ``isa`` is any."""

    form: str
    baseline: str
    at_least: float
    math: str = ""
    isa: str = ""


def _bounds(form: str, math: str, isa: str = "", **at_least: float) -> list[Bound]:
    names = {"fp32": GQA_FP32, "fp16": GQA_FP16, "int8": GQA_INT8, "int4": GQA_INT4}
    return [Bound(form, names[name], value, math, isa) for name, value in at_least.items()]


BOUNDS = (
    *_bounds(EXACT16, "", fp16=4, fp32=3.5),
    *_bounds(SLERP8, "", int8=3),
    *_bounds("slerp 4 bit", "", int4=4),
    *_bounds("subspace G=2", "int8", fp32=11, int8=5.5, int4=7),
    *_bounds("subspace G=2", "int16", fp32=8, int8=4, int4=5),
    *_bounds("subspace G=2", "fp32", fp32=5, int8=2.5, int4=3.2),
    *_bounds("subspace G=3", "int8", fp32=6.5, int8=3.3),
    *_bounds("subspace G=3", "int16", fp32=4.5, int8=2.3),
    *_bounds("subspace G=3", "fp32", fp32=3.2, int8=1.6),
    *_bounds(JOINT, "int16", fp32=2, int8=1),
    *_bounds("subspace G=2", "", "avx2", int8=2),
    *_bounds("subspace G=3", "", "avx2", int8=1.4),
)


def asked(form: str, choice: Choice, baseline: str) -> float | None:
    """The bound for a row of a table, or None."""
    for bound in BOUNDS:
        same = (bound.form, bound.baseline, bound.isa) == (form, baseline, choice.isa)
        if same and bound.math in ("", choice.math):
            return bound.at_least
    return None
