"""Evaluates the inline PTX of kernels, of which Triton's interpreter knows nothing.

Only what the kernels use: one input and one output register of 32 bits that hold two numbers of 16
bits each, and the instructions below.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

Array = np.ndarray


def evaluate(text: str, source: Array) -> Array:
    """Runs ``text`` with ``$1`` = ``source``, uint32, for every element; returns ``$0``.

    Raises:
        ValueError: an instruction that is not known here.
    """
    registers: dict[str, Array] = {"$1": source}

    def value(operand: str) -> Array:
        if operand in registers:
            return registers[operand]
        return np.full_like(source, int(operand, 0))

    for statement in text.strip().strip("{}").split(";"):
        words = statement.replace(",", " ").split()
        if not words or words[0] == ".reg":
            continue
        operation, target, *operands = words
        if operation not in OPERATIONS:
            raise ValueError(f"inline PTX {operation!r} is not known to the tests: {text}")
        registers[target] = OPERATIONS[operation](*(value(operand) for operand in operands))
    return registers["$0"]


def is_packed_16_bit(constraints: str, pack: int) -> bool:
    """Whether the asm takes one register of two 16 bit numbers and makes another."""
    return bool(re.fullmatch(r"=r,\s*r", constraints)) and pack == 2


def _lop3(a: Array, b: Array, c: Array, table: Array) -> Array:
    """Any function of three bits: bit ``4 a + 2 b + c`` of the table."""
    result = np.zeros_like(a)
    for case in range(8):
        if int(table.flat[0]) >> case & 1:
            terms = ((x if case & place else ~x) for x, place in ((a, 4), (b, 2), (c, 1)))
            result |= np.bitwise_and.reduce(list(terms))
    return result


def _fma_f16x2(a: Array, b: Array, c: Array) -> Array:
    x, y, z = (np.ascontiguousarray(v).view(np.float16).astype(np.float64) for v in (a, b, c))
    return (x * y + z).astype(np.float16).view(np.uint32)


OPERATIONS: dict[str, Callable[..., Array]] = {
    "mov.b32": lambda a: a,
    "shr.b32": lambda a, b: a >> b,
    "lop3.b32": _lop3,
    "fma.rn.f16x2": _fma_f16x2,
}
