"""One hand-made layer in every form, and with the peculiarities that exporters have been seen with.

``GRAPHS`` maps a name to the form that must be found, the nodes of the attention and the weights
that only they read; ``one_layer`` puts the rest of a model around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from tests.exporter.graphs import (
    CONCATS,
    HEADS,
    JOINED,
    SCORES,
    VALUES,
    WIDTH,
    node,
    one_layer,
)

MASKED = node("Add", "scores plain", "masked")
SOFTMAX = node("Softmax", "masked", "p", axis=-1)
PRESENTS = "present.0.key present.0.value"
PASTS = "past.0.key past.0.value"
JOIN_CACHES = [
    node(op, f"{source} {shape}".strip(), target, **extra)
    for kind in ("key", "value")
    for op, source, shape, target, extra in (
        ("Transpose", f"present.0.{kind}", "", f"{kind}_by_token", {"perm": [0, 2, 1, 3]}),
        ("Reshape", f"{kind}_by_token", "join", f"{kind}3", {}),
    )
]


@dataclass(frozen=True)
class FormGraph:
    """A layer: its form, its attention nodes, their weights and the opset."""

    form: str
    nodes: Sequence[onnx.NodeProto]
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    opset: int = 18

    def model(self) -> ir.Model:
        """The model around it."""
        return one_layer(self.nodes, self.weights, self.opset)


def _microsoft(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return node(op, inputs, outputs, domain="com.microsoft", **attributes)


def _index(number: int) -> np.ndarray:
    return np.array([number])


GRAPHS: dict[str, FormGraph] = {
    "head sink": FormGraph(
        "F1",
        [
            *CONCATS,
            *SCORES,
            MASKED,
            node("Shape", "masked", "masked_shape"),
            node("Slice", "masked_shape from_0 to_3", "rows_shape"),
            node("Concat", "rows_shape from_1", "sink_shape", axis=0),
            node("Expand", "sink sink_shape", "sinks"),
            node("Concat", "masked sinks", "with_sink", axis=-1),
            node("ReduceMax", "with_sink last", "largest", keepdims=1),
            node("Sub", "with_sink largest", "shifted"),
            node("Softmax", "shifted", "p_sink", axis=-1),
            node("Slice", "p_sink from_0 last last", "p"),
            *VALUES,
            *JOINED,
        ],
        {
            "sink": np.array([0.5, -1.0], np.float32).reshape(1, HEADS, 1, 1),
            "from_0": _index(0),
            "from_1": _index(1),
            "to_3": _index(3),
            "last": _index(-1),
        },
    ),
    "scale behind the mask": FormGraph(
        "F1",
        [
            *CONCATS,
            *SCORES,
            MASKED,
            node("Div", "masked eighth", "divided"),
            node("Softmax", "divided", "p", axis=-1),
            *VALUES,
            *JOINED,
        ],
        {"eighth": np.array(8, np.float32)},
    ),
    "cast of the same type behind the cache": FormGraph(
        "F1",
        [
            node("Concat", "past.0.key k", "grown", axis=-2),
            node("Cast", "grown", "present.0.key", to=TensorProto.FLOAT),
            CONCATS[1],
            *SCORES,
            MASKED,
            SOFTMAX,
            *VALUES,
            *JOINED,
        ],
    ),
    "heads joined to two dimensions": FormGraph(
        "F1",
        [
            *CONCATS,
            *SCORES,
            MASKED,
            SOFTMAX,
            *VALUES,
            JOINED[0],
            node("Reshape", "ot flat", "o2"),
            node("Gemm", "o2 square", "projected"),
            node("Shape", "x", "x_shape"),
            node("Reshape", "projected x_shape", "o"),
        ],
        {"flat": np.array([-1, WIDTH]), "square": np.eye(WIDTH, dtype=np.float32)},
    ),
    "Attention over Concat": FormGraph(
        "F2",
        [
            *CONCATS,
            node("Attention", "q present.0.key present.0.value causal", "o4", scale=0.5),
            *JOINED,
        ],
        opset=23,
    ),
    "Attention over Concat, mask to add, softcap": FormGraph(
        "F2",
        [
            *CONCATS,
            node("Attention", "q present.0.key present.0.value near_mask", "o4", softcap=3.0),
            *JOINED,
        ],
        opset=23,
    ),
    "Attention of three dimensions": FormGraph(
        "F3",
        [
            node(
                "Attention", f"q3 k3 v3 - {PASTS}", f"o {PRESENTS}",
                is_causal=1, q_num_heads=HEADS, kv_num_heads=HEADS,
            )
        ],
        opset=23,
    ),
    "Attention of four dimensions": FormGraph(
        "F3",
        [node("Attention", f"q k v plain {PASTS}", f"o4 {PRESENTS}", scale=0.3), *JOINED],
        opset=24,
    ),
    "MultiHeadAttention over Concat": FormGraph(
        "F5",
        [
            *CONCATS,
            *JOIN_CACHES,
            node("Unsqueeze", "plain axes_01", "plain4"),
            _microsoft("MultiHeadAttention", "q3 key3 value3 - - plain4", "o", num_heads=HEADS),
        ],
        {"axes_01": np.array([0, 1])},
    ),
    "MultiHeadAttention with its own cache": FormGraph(
        "F5",
        [
            node("Unsqueeze", "near_mask axes_01", "mask4"),
            _microsoft(
                "MultiHeadAttention", f"q3 k3 v3 - - mask4 {PASTS}", f"o {PRESENTS}",
                num_heads=HEADS, scale=0.7,
            ),
        ],
        {"axes_01": np.array([0, 1])},
    ),
}  # fmt: skip

# A layer that looks like a form but is not: what the refusal must say.
REFUSED: dict[str, tuple[str, FormGraph]] = {
    "causal Attention behind Concat": (
        "is_causal but does not know the past",
        FormGraph(
            "F2",
            [
                *CONCATS,
                node("Attention", "q present.0.key present.0.value", "o4", is_causal=1),
                *JOINED,
            ],
            opset=23,
        ),
    ),
    "scores returned": (
        "qk_matmul_output",
        FormGraph(
            "F3",
            [
                node("Attention", f"q k v causal {PASTS}", f"o4 {PRESENTS} qk", is_causal=1),
                node("ReduceMax", "qk", "largest", keepdims=0),
                *JOINED[:1],
                node("Reshape", "ot join", "o_plain"),
                node("Add", "o_plain largest", "o"),
            ],
            opset=23,
        ),
    ),
    "keys scaled for themselves": (
        "multiplied by a constant",
        FormGraph(
            "F2",
            [
                *CONCATS,
                node("Mul", "present.0.key scale", "scaled"),
                node("Attention", "q scaled present.0.value causal", "o4"),
                *JOINED,
            ],
            opset=23,
        ),
    ),
    "bias of the projections inside": (
        "has the input bias",
        FormGraph(
            "F5",
            [
                _microsoft(
                    "MultiHeadAttention", f"q3 k3 v3 biases - - {PASTS}", f"o {PRESENTS}",
                    num_heads=HEADS, unidirectional=1,
                )
            ],
            {"biases": np.zeros(3 * 8, np.float32)},
        ),
    ),
    "cache of two layers": (
        "shared by several layers",
        FormGraph(
            "F1",
            [
                *CONCATS,
                *SCORES,
                MASKED,
                SOFTMAX,
                *VALUES,
                node("Transpose", "present.0.key", "kt2", perm=[0, 1, 3, 2]),
                node("MatMul", "o4 kt2", "raw2"),
                node("Softmax", "raw2", "p2", axis=-1),
                node("MatMul", "p2 present.0.value", "o42"),
                node("Transpose", "o42", "ot", perm=[0, 2, 1, 3]),
                node("Reshape", "ot join", "o"),
            ],
        ),
    ),
    "columns that are no weight": (
        "no weight",
        FormGraph(
            "F1",
            [
                *CONCATS,
                *SCORES,
                MASKED,
                node("Concat", "masked q", "twice", axis=-1),
                node("Softmax", "twice", "p", axis=-1),
                *VALUES,
                *JOINED,
            ],
        ),
    ),
}  # fmt: skip
