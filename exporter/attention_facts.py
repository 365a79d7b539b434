"""What configuration files state about a model's attention, to compare a graph with.

``read_attention_facts`` reads them. Where no file says anything there is nothing to compare:
silence is no disagreement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SLIDING = ("sliding_attention", "local")  # as ``layer_types`` and GPT-Neo's files name them
FULL = ("full_attention", "global")


@dataclass(frozen=True)
class Stated:
    """One number that a file states.

    Attributes:
        value: the number, as the graph would have it.
        text: key and value as they stand in the file.
        file: name of the file.
    """

    value: float
    text: str
    file: str


@dataclass(frozen=True)
class AttentionFacts:
    """Statements about attention; None where no file says.

    Attributes:
        num_layers: layers that have a cache.
        num_heads: query heads.
        num_kv_heads: kv heads.
        head_dim: size of a head, where it is stated itself.
        vocab_size: logits per token.
        scale: factor on attention scores.
        softcap: of attention scores; 0: none.
        final_softcap: of logits.
        rotary: rotated share of a head's components.
        sliding: the window of those layers that slide; 0: none do.
        layer_types: of the layers that attend, in order; empty where not stated.
        pattern: layer i is full where i + 1 is a multiple of it; 0: unknown.
        first_sliding: layers from this one on slide; None: unknown.
        thetas: base of the RoPE frequencies by type of layer, or for all layers by "".
    """

    num_layers: Stated | None = None
    num_heads: Stated | None = None
    num_kv_heads: Stated | None = None
    head_dim: Stated | None = None
    vocab_size: Stated | None = None
    scale: Stated | None = None
    softcap: Stated | None = None
    final_softcap: Stated | None = None
    rotary: Stated | None = None
    sliding: Stated | None = None
    layer_types: tuple[str, ...] = ()
    pattern: int = 0
    first_sliding: int | None = None
    thetas: Mapping[str, Stated] = field(default_factory=dict)

    def slides(self, layer: int) -> bool | None:
        """Whether a layer attends to a window; None where nothing says."""
        if self.layer_types:
            kind = self.layer_types[layer] if layer < len(self.layer_types) else ""
            return True if kind in SLIDING else False if kind in FULL else None
        if self.pattern:
            return bool((layer + 1) % self.pattern)
        return None if self.first_sliding is None else layer >= self.first_sliding

    def window(self, layer: int) -> Stated | None:
        """The window of a layer, with the value 0 for full attention; None where nothing says."""
        slides, sliding = self.slides(layer), self.sliding
        if sliding is None or (slides and self.layer_types and not sliding.value):
            return None  # the second is a contradiction
        if slides is False and sliding.value:
            return Stated(0, "full attention", sliding.file)
        return sliding if slides or not sliding.value else None

    def theta(self, layer: int) -> Stated | None:
        """Base of a layer's RoPE frequencies; None where they are scaled, or nothing says."""
        if "" in self.thetas:
            return self.thetas[""]
        slides = self.slides(layer)
        return None if slides is None else self.thetas.get((SLIDING if slides else FULL)[0])
