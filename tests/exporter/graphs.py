"""The real export fixtures, and small hand-made graphs that must be refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

FIXTURES = Path(__file__).parent.parent / "fixtures"
SHARED = Path(__file__).parents[3] / "shared" / "fixtures"


@dataclass(frozen=True)
class Fixture:
    """A tiny real export and the facts that the exporter must find."""

    name: str
    form: str
    dtype: str
    layers: int
    heads: tuple[int, int, int]
    window: int = 0

    @property
    def path(self) -> Path:
        """Its folder."""
        return FIXTURES / self.name


EXPORTS = [
    Fixture("onnx-llama3-gqa-optimum-fp32", "F1", "fp32", 4, (8, 2, 8)),
    Fixture("onnx-llama3-gqa-optimum-fp16", "F1", "fp16", 4, (8, 2, 8)),
    Fixture("onnx-llama2-mha-optimum-fp32", "F1", "fp32", 4, (4, 4, 16)),
    Fixture("onnx-qwen3-optimum-fp32", "F1", "fp32", 4, (4, 2, 32)),
    Fixture("onnx-phi3-optimum-fp32", "F1", "fp32", 4, (4, 4, 16)),
    Fixture("onnx-mistral-sw-optimum-fp32", "F1", "fp32", 4, (4, 2, 16), window=32),
    Fixture("onnx-llama3-gqa-hfexport-default", "F1", "fp32", 4, (8, 2, 8)),
    Fixture("onnx-llama3-gqa-dynamo-opset23", "F2", "fp32", 4, (8, 2, 8)),
    Fixture("mob-llama3-gqa-default", "F3", "fp32", 4, (8, 2, 8)),
    Fixture("genai-llama3-gqa-cpu-fp16", "F5", "fp16", 4, (4, 2, 16)),
    Fixture("genai-llama3-gqa-h16-cpu-int4", "F4", "fp32", 6, (8, 2, 16)),
    Fixture("genai-llama2-mha-cpu-fp32", "F4", "fp32", 4, (4, 4, 16)),
    Fixture("genai-qwen2-cpu-fp32", "F4", "fp32", 4, (4, 2, 16)),
    Fixture("genai-qwen3-cpu-fp32", "F4", "fp32", 4, (4, 2, 32)),
]
# Not copied into the repository: more producers and models of the same forms.
MORE_EXPORTS = [
    "onnx-gpt2-optimum-fp32",
    "onnx-gptneox-optimum-fp32",
    "onnx-gemma2-optimum-fp32",
    "onnx-gemma3-optimum-fp32",
    "onnx-llama3-gqa-dynamo-opset18",
    "onnx-mixtral-hfexport-default",
    "mob-mixtral-default",
    "genai-gemma2-cpu-fp32",
    "genai-llama3-gqa-h16-cuda-fp16",
]
REFUSED_EXPORTS = {
    "onnx-bloom-alibi-optimum-fp32": "ALiBi",
    "mob-llama3-gqa-static": "static cache",
    "genai-llama3-gqa-h16-cuda-fp16-paged": "PagedAttention",
}

HEADS, HEAD_DIM, VOCAB = 2, 4, 11
WIDTH = HEADS * HEAD_DIM


def value(
    name: str, dims: Sequence[int | str], kind: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    """A typed graph input or output."""
    return helper.make_tensor_value_info(name, kind, list(dims))


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 18,
) -> ir.Model:
    """A model from nodes; ``input_ids`` and ``logits`` are added."""
    ids = value("input_ids", ["batch", "sequence"], TensorProto.INT64)
    logits = value("logits", ["batch", "sequence", VOCAB])
    initializers = [onnx.numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(
        list(nodes), "hand_made", [ids, *inputs], [logits, *outputs], initializers
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    """A node; names are separated by spaces, ``-`` is an absent input."""
    given = ["" if name == "-" else name for name in inputs.split()]
    made = outputs.split()
    return helper.make_node(op, given, made, name=f"node_{made[0]}", **attributes)


CONCATS = [
    node("Concat", "past.0.key k", "present.0.key", axis=2),
    node("Concat", "past.0.value v", "present.0.value", axis=2),
]
SCORES = [
    node("Transpose", "present.0.key", "kt", perm=[0, 1, 3, 2]),
    node("MatMul", "q kt", "raw"),
    node("Mul", "raw scale", "scores"),
]
VALUES = [node("MatMul", "p present.0.value", "o4")]
JOINED = [node("Transpose", "o4", "ot", perm=[0, 2, 1, 3]), node("Reshape", "ot join", "o")]


def decomposed_model(mask: str = "causal") -> ir.Model:
    """One F1 layer whose mask is ``causal``, ``none``, ``bias`` or ``window`` (of 3 tokens)."""
    used = {"bias": "biased", "none": "", "window": "near_mask"}.get(mask, "plain")
    softmax = [node("Add", f"scores {used}", "masked")] if used else []
    softmax.append(node("Softmax", "masked" if used else "scores", "p", axis=-1))
    return one_layer([*CONCATS, *SCORES, *softmax, *VALUES, *JOINED])


def one_layer(
    attention: Sequence[onnx.NodeProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 18,
) -> ir.Model:
    """A model of one layer.

    Args:
        attention: nodes from queries, keys and values (q, k, v [B, H, S, D]; q3, k3, v3
            [B, S, H*D]), the past (past.0.key, past.0.value) and masks [S, T] (plain and near_mask
            to add, causal to keep) to present.0.key, present.0.value and the joined heads o.
        weights: what only these nodes read.
        opset: of the model.
    """
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "table": rng.standard_normal((VOCAB, WIDTH)).astype(np.float32),
        "head": rng.standard_normal((WIDTH, VOCAB)).astype(np.float32),
        "split": np.array([0, 0, HEADS, HEAD_DIM]),
        "join": np.array([0, 0, WIDTH]),
        "scale": np.float32(0.5),
        "zero": np.float32(0),
        "hidden": np.float32(-1e9),
        "i0": np.array(0),
        "i1": np.array(1),
        "i2": np.array(2),
        "w": np.array(3),
        "axis0": np.array([0]),
        "axis1": np.array([1]),
    }
    nodes = [node("Gather", "table input_ids", "x")]
    for name in "qkv":
        weight = f"weight_{name}"
        arrays[weight] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        nodes += [
            node("MatMul", f"x {weight}", f"{name}3"),
            node("Reshape", f"{name}3 split", f"{name}4"),
            node("Transpose", f"{name}4", name, perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("Shape", "input_ids", "ids_shape"),
        node("Gather", "ids_shape i1", "new"),
        node("Shape", "past.0.key", "past_shape"),
        node("Gather", "past_shape i2", "past"),
        node("Add", "past new", "total"),
        node("Range", "past total i1", "rows1"),
        node("Unsqueeze", "rows1 axis1", "rows"),
        node("Range", "i0 total i1", "columns1"),
        node("Unsqueeze", "columns1 axis0", "columns"),
        node("Sub", "rows columns", "distance"),
        node("GreaterOrEqual", "distance i0", "causal"),
        node("Less", "distance w", "near"),
        node("And", "causal near", "window"),
        node("Cast", "distance", "slope", to=TensorProto.FLOAT),
        node("Neg", "slope", "falling"),
        node("Where", "causal zero hidden", "plain"),
        node("Where", "window zero hidden", "near_mask"),
        node("Where", "causal falling hidden", "biased"),
        *attention,
        node("MatMul", "o head", "logits"),
    ]
    past = [value(f"past.0.{k}", ["batch", HEADS, "past", HEAD_DIM]) for k in ("key", "value")]
    present = [
        value(f"present.0.{k}", ["batch", HEADS, "total", HEAD_DIM]) for k in ("key", "value")
    ]
    return make_model(nodes, past, present, arrays | (weights or {}), opset)


def single_node_model(
    op_type: str, domain: str = "", opset: int = 18, past: bool = True
) -> ir.Model:
    """A graph whose only node of interest is ``op_type``; enough for a refusal by operator."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["x"], to=TensorProto.FLOAT),
        helper.make_node(op_type, ["x", "x", "x"], ["y"], name="the_node", domain=domain),
        helper.make_node("Identity", ["y"], ["logits"]),
    ]
    inputs = [value("past.0.key", ["batch", HEADS, "past", HEAD_DIM])] if past else []
    return make_model(nodes, inputs, [], opset=opset)
