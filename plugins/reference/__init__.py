"""The operator in plain NumPy: the judge of every kernel, written to be read.

Reading order: ``primitives`` (directions, SLERP), ``code`` (bytes), ``retention``, ``eviction``,
``state`` (where tokens lie), ``delta``, ``direction``, ``rope``, ``frame``, ``align``,
``subspace``, ``attend``, ``encode``, ``node`` (the whole operator), ``group``. It follows
docs/operator.md; sums are float64, and values are rounded only where the contract stores them.
"""

from __future__ import annotations

from minicache.plugins.reference.code import (
    dequantise,
    pack_row,
    quantise,
    row_to_tile,
    tile_to_row,
    unpack_row,
)
from minicache.plugins.reference.group import run_group
from minicache.plugins.reference.node import run_node
from minicache.plugins.reference.primitives import (
    merge_group,
    merge_pair,
    restore,
    similarity,
    slerp,
    to_magnitude_direction,
)
from minicache.plugins.reference.retention import group_similarity, retention_mask
from minicache.plugins.reference.rope import rotate_by_positions, segment_offsets
from minicache.plugins.reference.state import new_state
from minicache.plugins.reference.subspace import (
    encode_subspace,
    joint_vectors,
    quantise_components,
    restored_subspace,
)

__all__ = [
    "dequantise",
    "encode_subspace",
    "group_similarity",
    "joint_vectors",
    "merge_group",
    "merge_pair",
    "new_state",
    "pack_row",
    "quantise",
    "quantise_components",
    "restore",
    "restored_subspace",
    "retention_mask",
    "rotate_by_positions",
    "row_to_tile",
    "run_group",
    "run_node",
    "segment_offsets",
    "similarity",
    "slerp",
    "tile_to_row",
    "to_magnitude_direction",
    "unpack_row",
]
