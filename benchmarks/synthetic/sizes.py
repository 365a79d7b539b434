"""How large a synthetic decoder is, and the parts that all its forms share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.synthetic.graph import Graph

FORMS = ("F1", "F4")
EPSILON = 1e-5
ROPE_BASE = 10000.0


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder; the defaults are those of Llama models of about a billion weights.

    Attributes:
        layers: number of layers.
        hidden: width of the residual stream.
        heads: query heads H.
        kv_heads: kv heads Hk.
        head_dim: head size D.
        intermediate: width of the MLP.
        vocabulary: tokens V.
        positions: longest context.
        form: ``F1`` or ``F4``.
    """

    layers: int
    hidden: int = 2048
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 64
    intermediate: int = 5632
    vocabulary: int = 32000
    positions: int = 2048
    form: str = "F1"

    @property
    def layer_bytes(self) -> int:
        """Bytes of the matrices of one layer."""
        attention = 2 * (self.heads + self.kv_heads) * self.head_dim * self.hidden
        return 4 * (attention + 3 * self.hidden * self.intermediate)

    @property
    def outer_bytes(self) -> int:
        """Bytes of the embedding and of the LM head."""
        return 4 * 2 * self.vocabulary * self.hidden

    @property
    def residual_gain(self) -> float:
        """Of every projection into the residual stream: the sum of all stays near 1."""
        return float((2 * self.layers) ** -0.5)

    @property
    def frequencies(self) -> npt.NDArray[np.float32]:
        """RoPE's, ``[D / 2]``."""
        powers = np.arange(0, self.head_dim, 2) / self.head_dim
        return np.asarray(ROPE_BASE**-powers, np.float32)


def decoder_of(gigabytes: float, vocabulary: int, form: str) -> Decoder:
    """The smallest decoder of at least so many bytes (1 GB: 10^9) and two layers."""
    one = Decoder(1, vocabulary=vocabulary, form=form)
    layers = -int((one.outer_bytes - gigabytes * 1e9) // one.layer_bytes)
    return Decoder(max(layers, 2), vocabulary=vocabulary, form=form)


def add_embedding(graph: Graph, decoder: Decoder) -> str:
    """Looks the tokens up: ``[B, S, hidden]``."""
    shape = (decoder.vocabulary, decoder.hidden)
    table = graph.matrix("model.embed_tokens.weight", shape, 1.0)
    return graph.add("Gather", [table, "input_ids"], "/model/embed_tokens/Gather")


def add_mlp(graph: Graph, decoder: Decoder, x: str, name: str) -> str:
    """A gated MLP."""
    wide, narrow = (decoder.hidden, decoder.intermediate), (decoder.intermediate, decoder.hidden)
    gate, up = (graph.project(x, f"{name}/{part}_proj", wide) for part in ("gate", "up"))
    sigmoid = graph.add("Sigmoid", [gate], f"{name}/act_fn/Sigmoid")
    swish = graph.add("Mul", [gate, sigmoid], f"{name}/act_fn/Mul")
    product = graph.add("Mul", [swish, up], f"{name}/Mul")
    return graph.project(product, f"{name}/down_proj", narrow, decoder.residual_gain)


def add_head(graph: Graph, decoder: Decoder, x: str) -> None:
    """The LM head, whose output is the graph's."""
    graph.project(x, "/lm_head", (decoder.hidden, decoder.vocabulary))
    graph.nodes[-1].output[0] = "logits"
