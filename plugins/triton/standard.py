"""The variants of usual models: what ``build`` compiles unless told else, and what CI checks.

An exported model gets its own variants, those of its nodes (``node_variants``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from minicache.exporter.schemas import attributes_with_defaults
from minicache.plugins.triton.node_variants import node_variants
from minicache.plugins.triton.variant import Variant

MODEL_TYPES = ("float16", "bfloat16")
HEAD_SIZES = (64, 128)
LARGE = (8, 128, 4, 512, 2, 512)


def standard_variants(
    model_types: Sequence[str] = MODEL_TYPES, head_sizes: Sequence[int] = HEAD_SIZES
) -> list[Variant]:
    """Every kernel in the variants of usual nodes, in a fixed order.

    Args:
        model_types: NumPy's names.
        head_sizes: D.
    """
    variants: dict[Variant, None] = {}
    for model_type in model_types:
        for size in head_sizes:
            for node in standard_nodes(size):
                variants |= dict.fromkeys(node_variants(node, model_type=model_type))
    return list(variants)


def standard_nodes(size: int) -> Iterator[dict[str, Any]]:
    """Attributes of nodes, 8 query heads on 2 kv heads, that between them need every kernel.

    Args:
        size: D, a multiple of 16.
    """
    heads = {"num_heads": 8, "kv_num_heads": 2, "head_size": size}
    writer = heads | {"group_size": 2, "group_slot": 1}
    mixed = (8, size // 2, 4, size, 2, 64)  # segments of 16 bytes and more
    decoded, evicts = {"has_decoder": 1, "segment_length": 128}, {"evicts": 1}
    observes = {"evicts": 1, "observes": 32}
    nodes: tuple[dict[str, Any], ...] = (
        heads,
        heads | {"local_window_size": 256, "ring_slots": 320},
        heads | {"has_bias": 1, "has_sink": 1, "softcap": 30.0},
        writer | _slerp((8, size)),
        writer | _slerp((4, size)) | {"retention": "threshold"},
        writer | _slerp((8, size)) | {"retention": "budget"},
        writer
        | _slerp((8, size))
        | {"retention": "minmax", "retention_scope": "any-head", "magnitude": "blended"},
        writer | _slerp((8, size)) | decoded,
        writer | _slerp((4, size)) | {"delta_bits": 4, "slerp_t": 0.5},
        writer | _slerp((16, size)) | {"delta_bits": 2, "slerp_t": 0.5} | decoded,
        writer | {"mode": "subspace", "key_bits": mixed, "value_bits": mixed} | decoded,
        writer
        | {"mode": "subspace", "key_bits": (8, size), "value_bits": (4, size), "code_heads": 1}
        | decoded
        | {"rotary_interleaved": 1},
        # Rows that evict.
        heads | evicts,
        writer | _slerp((8, size)) | evicts | {"retention": "budget"},
        writer | _slerp((16, size)) | evicts | decoded | {"delta_bits": 2, "slerp_t": 0.5},
        writer | {"mode": "subspace", "key_bits": mixed, "value_bits": mixed} | decoded | evicts,
        # A group of several layers with joint heads: the largest codes that plans are made of.
        writer
        | {"mode": "subspace", "key_bits": LARGE, "value_bits": LARGE, "code_heads": 1}
        | decoded,
        # Rows that add up attention.
        heads | observes | {"has_sink": 1, "softcap": 30.0},
        writer | _slerp((8, size)) | {"retention": "budget"} | observes,
        writer | _slerp((4, size)) | {"retention": "threshold"} | observes,
        writer
        | _slerp((16, size))
        | {"delta_bits": 2, "slerp_t": 0.5}
        | decoded
        | observes
        | {"softcap": 30.0},
        writer | _slerp((8, size)) | {"delta_bits": 4, "slerp_t": 0.5} | observes,
        writer | {"mode": "subspace", "key_bits": mixed, "value_bits": mixed} | decoded | observes,
        writer
        | {"mode": "subspace", "key_bits": LARGE, "value_bits": LARGE, "code_heads": 1}
        | decoded
        | observes,
    )
    for node in nodes:
        yield attributes_with_defaults(node)


def _slerp(bits: tuple[int, int]) -> dict[str, Any]:
    return {"mode": "slerp", "key_bits": bits, "value_bits": bits}
