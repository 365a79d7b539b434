"""Form F1 as optimum writes it: attention in plain operators, a cache that grows by Concat."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from benchmarks.synthetic.graph import Graph
from benchmarks.synthetic.sizes import EPSILON, Decoder, add_embedding, add_head, add_mlp

MASKED = np.finfo(np.float32).min


def add_decomposed(graph: Graph, decoder: Decoder) -> None:
    """Adds the whole decoder."""
    x = add_embedding(graph, decoder)
    parts = _Parts(graph, decoder)
    for layer in range(decoder.layers):
        scope = f"/model/layers.{layer}"
        y = parts.attention(parts.norm(x, f"{scope}/input_layernorm"), layer, f"{scope}/self_attn")
        x = graph.add("Add", [x, y], f"{scope}/Add")
        y = parts.norm(x, f"{scope}/post_attention_layernorm")
        x = graph.add("Add", [x, add_mlp(graph, decoder, y, f"{scope}/mlp")], f"{scope}/Add_1")
    add_head(graph, decoder, parts.norm(x, "/model/norm"))


class _Parts:
    """Parts of a layer, and what all layers share: mask, cosines and sines, constants."""

    def __init__(self, graph: Graph, decoder: Decoder) -> None:
        self._graph, self._decoder = graph, decoder
        self._numbers: dict[tuple[int, ...], str] = {}
        self._floats: dict[float, str] = {}
        self._mask = self._causal_mask()
        self._turns = self._cosine_and_sine()

    def _integers(self, *values: int) -> str:
        """A vector of int64."""
        if values not in self._numbers:
            name = "/model/integers_" + "_".join(map(str, values))
            self._numbers[values] = self._graph.constant(name, np.array(values, np.int64))
        return self._numbers[values]

    def _float(self, value: float) -> str:
        if value not in self._floats:
            name = f"/model/float_{len(self._floats)}"
            self._floats[value] = self._graph.constant(name, np.float32(value))
        return self._floats[value]

    def _causal_mask(self) -> str:
        """Added to the scores ``[B, H, S, T]``: hides later tokens and padding."""
        add = self._graph.add
        number = {n: self._graph.constant(f"/model/int_{n}", n) for n in (0, 1, 2)}
        shape = add("Shape", ["past_key_values.0.key"], "/model/Shape")
        past = add("Gather", [shape, number[2]], "/model/Gather")
        shape = add("Shape", ["input_ids"], "/model/Shape_1")
        new = add("Gather", [shape, number[1]], "/model/Gather_1")
        total = add("Add", [past, new], "/model/Add")
        rows = add("Range", [past, total, number[1]], "/model/Range")
        rows = add("Unsqueeze", [rows, self._integers(1)], "/model/Unsqueeze")
        columns = add("Range", [number[0], total, number[1]], "/model/Range_1")
        causal = add("LessOrEqual", [columns, rows], "/model/LessOrEqual")
        given = add("Cast", ["attention_mask"], "/model/Cast", to=TensorProto.BOOL)
        given = add("Unsqueeze", [given, self._integers(1, 2)], "/model/Unsqueeze_1")
        visible = add("And", [causal, given], "/model/And")
        return add("Where", [visible, self._float(0.0), self._float(float(MASKED))], "/model/Where")

    def _cosine_and_sine(self) -> list[str]:
        """Each ``[B, 1, S, D]``."""
        add, scope = self._graph.add, "/model/rotary_emb"
        ids = add("Unsqueeze", ["position_ids", self._integers(1)], f"{scope}/Unsqueeze")
        ids = add("Cast", [ids], f"{scope}/Cast", to=TensorProto.FLOAT)
        table = self._graph.constant(f"{scope}/inv_freq", self._decoder.frequencies[None, :, None])
        angles = add("MatMul", [table, ids], f"{scope}/MatMul")
        angles = add("Transpose", [angles], f"{scope}/Transpose", perm=[0, 2, 1])
        angles = add("Concat", [angles, angles], f"{scope}/Concat", axis=-1)
        waves = [add(op, [angles], f"{scope}/{op}") for op in ("Cos", "Sin")]
        heads = self._integers(1)
        return [add("Unsqueeze", [w, heads], f"{scope}/wave_{i}") for i, w in enumerate(waves)]

    def norm(self, x: str, name: str) -> str:
        """An RMS norm."""
        add = self._graph.add
        square = add("Pow", [x, self._float(2.0)], f"{name}/Pow")
        mean = add("ReduceMean", [square, self._integers(-1)], f"{name}/ReduceMean")
        mean = add("Add", [mean, self._float(EPSILON)], f"{name}/Add")
        length = add("Sqrt", [mean], f"{name}/Sqrt")
        inverse = add("Div", [self._float(1.0), length], f"{name}/Div")
        scaled = add("Mul", [x, inverse], f"{name}/Mul")
        ones = np.ones(self._decoder.hidden, np.float32)
        return add("Mul", [self._graph.array(f"{name[1:]}.weight", ones), scaled], f"{name}/Mul_1")

    def attention(self, x: str, layer: int, name: str) -> str:
        """From the normalised residual stream to the output projection."""
        add, sizes = self._graph.add, self._decoder
        query = self._rotate(self._vectors(x, "q", sizes.heads, name), f"{name}/q_rope")
        key = self._rotate(self._vectors(x, "k", sizes.kv_heads, name), f"{name}/k_rope")
        key = self._grow(key, layer, "key", name)
        value = self._grow(self._vectors(x, "v", sizes.kv_heads, name), layer, "value", name)
        root = self._float(sizes.head_dim**-0.25)  # the scale, split over both sides
        key = add("Transpose", [key], f"{name}/Transpose", perm=[0, 1, 3, 2])
        sides = [add("Mul", [query, root], f"{name}/Mul"), add("Mul", [key, root], f"{name}/Mul_1")]
        scores = add("Add", [add("MatMul", sides, f"{name}/MatMul"), self._mask], f"{name}/Add")
        shares = add("Softmax", [scores], f"{name}/Softmax", axis=-1)
        y = add("MatMul", [shares, value], f"{name}/MatMul_1")
        y = add("Transpose", [y], f"{name}/Transpose_1", perm=[0, 2, 1, 3])
        width = sizes.heads * sizes.head_dim
        y = add("Reshape", [y, self._integers(0, 0, width)], f"{name}/Reshape")
        shape = (width, sizes.hidden)
        return self._graph.project(y, f"{name}/o_proj", shape, sizes.residual_gain)

    def _vectors(self, x: str, kind: str, heads: int, name: str) -> str:
        """``[B, heads, S, D]``."""
        size = self._decoder.head_dim
        shape = (self._decoder.hidden, heads * size)
        flat = self._graph.project(x, f"{name}/{kind}_proj", shape)
        split = self._integers(0, 0, heads, size)
        apart = self._graph.add("Reshape", [flat, split], f"{name}/{kind}/Reshape")
        return self._graph.add("Transpose", [apart], f"{name}/{kind}/Transpose", perm=[0, 2, 1, 3])

    def _rotate(self, x: str, name: str) -> str:
        add, size = self._graph.add, self._decoder.head_dim
        ends = [self._integers(n) for n in (0, size // 2, size)]
        last = self._integers(-1)
        low = add("Slice", [x, ends[0], ends[1], last], f"{name}/Slice")
        high = add("Slice", [x, ends[1], ends[2], last], f"{name}/Slice_1")
        turned = add("Concat", [add("Neg", [high], f"{name}/Neg"), low], f"{name}/Concat", axis=-1)
        cosine = add("Mul", [x, self._turns[0]], f"{name}/Mul")
        return add(
            "Add", [cosine, add("Mul", [turned, self._turns[1]], f"{name}/Mul_1")], f"{name}/Add"
        )

    def _grow(self, x: str, layer: int, kind: str, name: str) -> str:
        """Appends to the cache, and repeats each kv head for its query heads."""
        add, sizes = self._graph.add, self._decoder
        past, present = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
        self._graph.node("Concat", [past, x], [present], f"{name}/{kind}/Concat", axis=-2)
        repeats = sizes.heads // sizes.kv_heads
        if repeats == 1:
            return present
        wide = add("Unsqueeze", [present, self._integers(2)], f"{name}/{kind}/Unsqueeze")
        wide = add("Expand", [wide, self._integers(1, 1, repeats, 1, 1)], f"{name}/{kind}/Expand")
        shape = self._integers(0, sizes.heads, -1, sizes.head_dim)
        return add("Reshape", [wide, shape], f"{name}/{kind}/Reshape_1")
