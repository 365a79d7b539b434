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
    "encode_pair": ProgramShape(2, 1),
    "quantise_joint": ProgramShape(1, 1),
    "mark": ProgramShape(2, 1),
}
_WIDTHS = (16, 8, 4, 2)
_ATTENTION = ("project", "attend_codes", "attend_pair", "attend_exact", "finish")
_OBSERVE = ("observe_codes", "observe_exact")
_PRODUCTS = ("project_joint", "align")  # pipelined where they take many tokens (DOT)


def program_shape(kernel: str, constants: Mapping[str, int]) -> ProgramShape:
    """The shape of a kernel's programs, given its compile-time values."""
    if kernel in _ATTENTION:
        if kernel in ("attend_codes", "attend_pair"):
            many = _needs_more_registers(constants)
        else:
            many = constants["BLOCK_M"] > 16 and _adjusts(constants)
        return ProgramShape(8 if many else 4, 2)
    if kernel in _OBSERVE:
        pads = [16 // w * constants.get(f"{kind}{w}", 0) for kind in "KW" for w in _WIDTHS]
        return ProgramShape(8 if sum(pads) >= 512 else 4, 2)
    if kernel in _PRODUCTS:
        return ProgramShape(4, 2 if constants["DOT"] else 1)
    return _SHAPES.get(kernel, ProgramShape(4, 1))


def _adjusts(constants: Mapping[str, int]) -> bool:
    """Whether scores get a bias or a softcap, which takes registers."""
    return constants.get("HAS_BIAS", 0) > 0 or constants.get("HAS_SOFTCAP", 0) > 0


def _needs_more_registers(constants: Mapping[str, int]) -> bool:
    """Whether a tile of codes is more than 4 warps hold, as compiling showed."""
    deltas = sum(16 // w * constants.get(f"W{w}", 0) for w in _WIDTHS)
    mixed = any(sum(constants[f"{kind}{w}"] > 0 for w in _WIDTHS) > 1 for kind in "KV")
    # Components of keys and values; pads count words of 16 bits.
    columns = sum(16 // w * constants[f"{kind}{w}"] for kind in "KV" for w in _WIDTHS)
    columns += 2 * deltas
    if mixed or deltas:
        return constants["BLOCK_M"] > 16 or columns > 832 or _adjusts(constants)
    # Finding segments by the table of evicted tokens takes a few registers more.
    most = 256 if constants["EVICTS"] and constants["BLOCK_M"] > 16 else 512
    return columns >= most
