"""The size of a model's cache, for counting the bytes of a codec."""

from __future__ import annotations

from dataclasses import dataclass

from minicache.runtime.manifest import Manifest

FP16_BYTES = 2


@dataclass(frozen=True)
class CacheShape:
    """Layers and heads of a cache.

    Attributes:
        layers: attention layers.
        num_kv_heads: kv heads Hk.
        head_dim: head size D.
    """

    layers: int
    num_kv_heads: int
    head_dim: int

    @staticmethod
    def of(manifest: Manifest) -> CacheShape:
        """That of an exported model."""
        return CacheShape(manifest.num_layers, manifest.num_kv_heads, manifest.head_dim)

    @property
    def elements_per_token(self) -> int:
        """Numbers in the keys and values of one token, all layers."""
        return 2 * self.layers * self.num_kv_heads * self.head_dim

    def fp16_bytes(self, tokens: int) -> int:
        """Bytes of ``tokens`` tokens in fp16."""
        return FP16_BYTES * self.elements_per_token * tokens
