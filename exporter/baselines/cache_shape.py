"""The size of a model's cache, for counting the bytes of a codec.

Codecs are judged on the layers that an export of ours codes: those of full attention. Layers of
sliding-window attention keep exact rings, whatever the codec; their bytes are the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicache.runtime.accounting import ring_states, state_bytes
from minicache.runtime.manifest import CAPACITY, Manifest

FP16_BYTES = 2


@dataclass(frozen=True)
class CacheShape:
    """Layers and heads of the part of a cache that codecs code.

    Attributes:
        layers: layers of full attention.
        num_kv_heads: kv heads Hk.
        head_dim: head size D.
        ring_bytes: of the other layers' rings of one row, in the model's type.
    """

    layers: int
    num_kv_heads: int
    head_dim: int
    ring_bytes: int = 0

    @staticmethod
    def of(manifest: Manifest) -> CacheShape:
        """That of an exact export with at least one layer of full attention."""
        keys = [state for state in manifest.state if state.name == "exact_key"]
        full = [state for state in keys if CAPACITY in state.shape]
        _, _, heads, _, size = full[0].shape
        return CacheShape(len(full), int(heads), int(size), state_bytes(ring_states(manifest)))

    @property
    def elements_per_token(self) -> int:
        """Numbers in the coded keys and values of one token, all layers."""
        return 2 * self.layers * self.num_kv_heads * self.head_dim

    def fp16_bytes(self, tokens: int) -> int:
        """Bytes of ``tokens`` tokens in fp16, without the rings."""
        return FP16_BYTES * self.elements_per_token * tokens
