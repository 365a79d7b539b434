"""How many warps a program of each kernel has, and how deep its pipelines are.

Chosen so that nothing spills and shared memory fits every architecture (``resources``). They are no
part of a variant's key: the pack tells the launcher the warps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgramShape:
    """Warps of 32 threads, and stages of software pipelines."""

    warps: int
    stages: int


_SHAPES = {
    "encode": ProgramShape(2, 1),
    "quantise_joint": ProgramShape(1, 1),
    "mark": ProgramShape(2, 1),
}
_ATTENTION = ("project", "attend_codes", "attend_exact", "finish")
_PRODUCTS = ("project_joint", "align")  # pipelined where they take many tokens (DOT)


def program_shape(kernel: str, constants: Mapping[str, int]) -> ProgramShape:
    """The shape of a kernel's programs, given its compile-time values."""
    if kernel in _ATTENTION:
        needs_more = _is_mixed(constants) if kernel == "attend_codes" else _adjusts(constants)
        return ProgramShape(8 if constants["BLOCK_M"] > 16 and needs_more else 4, 2)
    if kernel in _PRODUCTS:
        return ProgramShape(4, 2 if constants["DOT"] else 1)
    return _SHAPES.get(kernel, ProgramShape(4, 1))


def _adjusts(constants: Mapping[str, int]) -> bool:
    """Whether scores get a bias or a softcap, which takes registers."""
    return constants.get("HAS_BIAS", 0) > 0 or constants.get("HAS_SOFTCAP", 0) > 0


def _is_mixed(constants: Mapping[str, int]) -> bool:
    """Whether a code has components of several widths: more tiles than 4 warps have registers."""
    widths = ("16", "8", "4", "2")
    return any(sum(constants[f"{kind}{w}"] > 0 for w in widths) > 1 for kind in "KV")
