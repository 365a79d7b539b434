"""Bytes of a cache whose tokens are either coded, all alike, or exact."""

from __future__ import annotations

from minicache.exporter.baselines.cache_codec import CacheCodec
from minicache.exporter.baselines.cache_shape import CacheShape


def coded_tokens(codec: CacheCodec, context: int) -> int:
    """Tokens of ``context`` that are coded."""
    return max(min(codec.coded_end(context), context) - codec.sinks, 0)


def bytes_of_context(codec: CacheCodec, shape: CacheShape, context: int) -> int:
    """Coded tokens at the codec's bits per element, the others in fp16."""
    coded = coded_tokens(codec, context)
    bits = coded * shape.elements_per_token * codec.bits_per_element
    return round(bits / 8) + shape.fp16_bytes(context - coded)
