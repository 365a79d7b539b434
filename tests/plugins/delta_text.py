"""Attributes and tables of small pairs with deltas."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers import make_attributes
from tests.plugins.aligned_text import make_alignment

Array = np.ndarray


def delta_attributes(**given: Any) -> dict[str, Any]:
    """Complete attributes of a small node of a pair; 4 bit deltas unless ``given``."""
    bits = {} if given.get("delta_rank") else {"delta_bits": 4}
    return make_attributes(**{"mode": "slerp", "slerp_t": 0.5, **bits, **given})


def make_bases(
    attributes: dict[str, Any], dtype: Any = np.float32, seed: int = 5
) -> dict[str, Array]:
    """Random orthonormal rows ``[Hk, rank, D]`` for keys and values; none where bits are kept."""
    heads, size, rank = (attributes[n] for n in ("kv_num_heads", "head_size", "delta_rank"))
    if not rank:
        return {}
    rng = np.random.default_rng(seed)
    bases = np.linalg.qr(rng.standard_normal((2, heads, size, size)))[0][:, :, :rank]
    return {
        f"{kind}_delta_basis": bases[i].astype(dtype) for i, kind in enumerate(("key", "value"))
    }


def with_bases(
    attributes: dict[str, Any], tables: list[dict[str, Array]], dtype: Any = np.float32
) -> list[dict[str, Array]]:
    """The tables of a pair's nodes with the bases of its deltas, the same ones for both."""
    bases = make_bases(attributes, dtype)
    return [{**table, **bases} for table in tables or [{}, {}]]


def tables_of(attributes: dict[str, Any], dtype: Any = np.float32) -> list[dict[str, Array]]:
    """The constant inputs of both nodes: of an alignment, and bases, where the pair has them."""
    aligned = make_alignment(attributes, dtype=dtype) if attributes["has_decoder"] else []
    return with_bases(attributes, aligned, dtype)
