"""Codes: quantised directions, packed into the bytes of a row or a tile.

A code is a list of segments ``bits, count, bits, count, ...`` (``minicache.exporter.schemas``);
each segment is packed in planes and padded with zeros to 4 bytes. Tokens never share a byte.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from minicache.exporter.schemas import SEGMENT_ALIGNMENT, code_bytes
from minicache.plugins.reference.primitives import Array

KEY_TILE = 16  # tokens of a key tile
VALUE_TILE = 4  # tokens of a value tile
WORD = 4  # bytes that stay together in a key tile


def quantise(direction: npt.ArrayLike, bits: int) -> tuple[Array, Array]:
    """Quantises directions on a mid-rise grid of 2^bits values per vector.

    Args:
        direction: ``[..., D]``.
        bits: 16 (fp16, no grid), 8, 4 or 2.

    Returns:
        components ``[..., D]`` (fp16 at 16 bits, else uint8 0..2^bits-1) and the step ``[...]``
        float64 that the stored magnitudes are multiplied by: 1 at 16 bits, 0 for a zero direction.
        With 2 bits the step is the root of the mean square, and what is beyond two steps is cut.

    Raises:
        ValueError: another width.
    """
    vectors = np.asarray(direction).astype(np.float64)
    if bits == 16:
        return vectors.astype(np.float16), np.ones(vectors.shape[:-1])
    if bits not in (8, 4, 2):
        raise ValueError(f"a direction cannot be quantised to {bits} bits; use 16, 8, 4 or 2")
    if bits == 2:  # four levels that reach the largest component would be far apart
        step = np.sqrt(np.mean(vectors * vectors, axis=-1))
    else:
        step = np.max(np.abs(vectors), axis=-1) / ((2**bits - 1) / 2)
    divisor = np.where(step > 0, step, 1.0)[..., None]
    levels = np.clip(np.floor(vectors / divisor) + 2 ** (bits - 1), 0, 2**bits - 1)
    return levels.astype(np.uint8), step


def dequantise(components: Array, bits: int) -> Array:
    """Returns the float64 values that stored components stand for, before the step.

    Args:
        components: fp16 at 16 bits, else uint8 levels.
        bits: their width.
    """
    values = components.astype(np.float64)
    return values if bits == 16 else values - (2**bits - 1) / 2


def pack_row(components: Sequence[Array], bits: Sequence[int]) -> Array:
    """Packs the components of tokens into code rows.

    Args:
        components: one array ``[..., count]`` per segment: fp16 at 16 bits, else uint8 levels.
        bits: ``bits, count, bits, count, ...`` as the attribute ``key_bits`` holds them.

    Returns:
        ``[..., code_bytes(bits)]`` uint8: planes from the low bits up, segments padded with zeros.

    Raises:
        ValueError: segments and ``bits`` do not match, or a count is no multiple of its planes.
    """
    widths, counts = bits[0::2], bits[1::2]
    if len(components) != len(widths) or len(widths) != len(counts):
        raise ValueError(f"{len(components)} segments do not match bits {tuple(bits)}")
    packed = []
    for segment, width, count in zip(components, widths, counts, strict=True):
        _check_segment(width, count)
        if segment.shape[-1] != count:
            raise ValueError(f"a segment has {segment.shape[-1]} components, not {count}")
        if width == 16:
            data = np.ascontiguousarray(segment.astype("<f2")).view(np.uint8)
        else:
            planes = np.split(segment.astype(np.uint8), 8 // width, axis=-1)
            data = np.zeros_like(planes[0])
            for place, plane in enumerate(planes):
                data |= plane << (width * place)
        padding = -data.shape[-1] % SEGMENT_ALIGNMENT
        packed.append(np.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, padding)]))
    return np.concatenate(packed, axis=-1)


def unpack_row(rows: Array, bits: Sequence[int]) -> list[Array]:
    """Undoes ``pack_row``.

    Args:
        rows: ``[..., code_bytes(bits)]``, int8 or uint8.
        bits: ``bits, count, ...``.

    Returns:
        One array ``[..., count]`` per segment: fp16 at 16 bits, else uint8 levels.

    Raises:
        ValueError: the rows have another number of bytes.
    """
    if rows.shape[-1] != code_bytes(tuple(bits)):
        raise ValueError(f"code rows have {rows.shape[-1]} bytes, not {code_bytes(tuple(bits))}")
    data, start, segments = np.ascontiguousarray(rows).view(np.uint8), 0, []
    for width, count in zip(bits[0::2], bits[1::2], strict=True):
        _check_segment(width, count)
        size = width * count // 8
        part = data[..., start : start + size]
        if width == 16:
            segments.append(np.ascontiguousarray(part).view("<f2"))
        else:
            mask = 2**width - 1
            planes = [(part >> (width * place)) & mask for place in range(8 // width)]
            segments.append(np.concatenate(planes, axis=-1))
        start += size + -size % SEGMENT_ALIGNMENT
    return segments


def _check_segment(width: int, count: int) -> None:
    if width not in (16, 8, 4, 2):
        raise ValueError(f"a segment has {width} bits; use 16, 8, 4 or 2")
    if width < 8 and count % (8 // width):
        raise ValueError(f"a {width} bit segment of {count} components does not fill its bytes")


def row_to_tile(rows: Array, kind: str) -> Array:
    """Reorders codes from the ``row`` to the ``tile`` layout.

    Args:
        rows: ``[..., C, bytes]``, C a multiple of 16.
        kind: ``key``: ``[C/16][bytes/4][16 tokens][4 bytes]``; ``value``:
            ``[C/4][bytes][4 tokens]``.

    Returns:
        The same shape and type; only the order in memory differs.
    """
    *lead, capacity, size = rows.shape
    if kind == "key":
        tiles = rows.reshape(*lead, capacity // KEY_TILE, KEY_TILE, size // WORD, WORD)
        return np.ascontiguousarray(np.swapaxes(tiles, -3, -2)).reshape(rows.shape)
    tiles = rows.reshape(*lead, capacity // VALUE_TILE, VALUE_TILE, size)
    return np.ascontiguousarray(np.swapaxes(tiles, -2, -1)).reshape(rows.shape)


def tile_to_row(tiles: Array, kind: str) -> Array:
    """Undoes ``row_to_tile``."""
    *lead, capacity, size = tiles.shape
    if kind == "key":
        rows = tiles.reshape(*lead, capacity // KEY_TILE, size // WORD, KEY_TILE, WORD)
        return np.ascontiguousarray(np.swapaxes(rows, -3, -2)).reshape(tiles.shape)
    rows = tiles.reshape(*lead, capacity // VALUE_TILE, size, VALUE_TILE)
    return np.ascontiguousarray(np.swapaxes(rows, -2, -1)).reshape(tiles.shape)
