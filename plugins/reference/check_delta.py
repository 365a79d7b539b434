"""Refusals of deltas: what only a pair that is merged halfway has."""

from __future__ import annotations

from minicache.exporter import schemas
from minicache.plugins.reference.state import Attributes


def check_delta(attributes: Attributes) -> None:
    """Refuses attributes that contradict deltas.

    Raises:
        ValueError: the contradiction, with the values found.
    """
    bits, rank = attributes["delta_bits"], attributes["delta_rank"]
    size = attributes["head_size"]
    if bits not in (0, *schemas.DELTA_BITS):
        raise ValueError(f"delta_bits is {bits}, not 0 (none), 16, 4 or 2")
    if not 0 <= rank <= size:
        raise ValueError(f"delta_rank is {rank}, not within 0..head_size {size}")
    if bits and rank:
        raise ValueError(f"delta_bits is {bits} and delta_rank {rank}; a pair has one or the other")
    if not bits and not rank:
        return
    if attributes["mode"] != "slerp" or attributes["group_size"] != 2:
        raise ValueError(
            "deltas are those of a pair in mode 'slerp', not of group_size "
            f"{attributes['group_size']} in mode {attributes['mode']!r}; set delta_bits and "
            "delta_rank to 0"
        )
    if attributes["slerp_t"] != 0.5:
        raise ValueError(
            f"one delta serves both layers at slerp_t 0.5, not at {attributes['slerp_t']:g}; set "
            "slerp_t to 0.5, or delta_bits and delta_rank to 0"
        )
    if bits in (4, 2) and size % (8 // bits):
        raise ValueError(
            f"delta_bits {bits} do not fill bytes with head_size {size}; take delta_rank, or "
            "delta_bits 16"
        )
