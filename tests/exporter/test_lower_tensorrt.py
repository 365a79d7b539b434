"""The lowering for TensorRT: the same numbers in standard operators, states in linear chains."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from minicache.exporter import io, schemas
from minicache.exporter.normalise import normalise
from minicache.exporter.passes.apply_plan import ApplyPlanPass, attention_nodes
from minicache.exporter.passes.lower_norms import NORMS, LowerNormsPass
from minicache.exporter.passes.lower_rotary import LowerRotaryPass
from minicache.exporter.passes.lower_tensorrt import check_parsable, lower_tensorrt
from minicache.exporter.passes.thread_states import ThreadStatesPass, state_values
from minicache.exporter.plan import Group, Plan
from minicache.runtime.errors import UnsupportedModelError
from tests.helpers import assert_close
from tests.tolerances import LOGITS

FIXTURES = Path(__file__).parent.parent / "fixtures"
MICROSOFT = "com.microsoft"
B, S, HEADS, SIZE, WIDTH = 2, 5, 3, 16, 48


def one_node(
    node: onnx.NodeProto, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """A model of one node; every axis but the last is dynamic, as in an exported graph."""
    inputs = []
    for name, array in feeds.items():
        last = [array.shape[-1]] if array.ndim > 2 else ["d1"]
        dims = ["batch", *[f"d{axis}" for axis in range(1, array.ndim - 1)], *last]
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(helper.make_tensor_value_info(name, dtype, dims))
    kind = inputs[0].type.tensor_type.elem_type
    shape = [dim.dim_param or dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim]
    # As in a model, what the node gives is no output of the graph itself.
    ends = [helper.make_node("Identity", [n], [f"{n}/end"]) for n in node.output if n]
    outputs = [helper.make_tensor_value_info(end.output[0], kind, shape) for end in ends]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node, *ends], "one", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def lowered(model: onnx.ModelProto, one: ir.passes.InPlacePass) -> onnx.ModelProto:
    """The model after a pass; no operator that the standard does not have is left."""
    graph = ir.from_proto(model)
    assert one(graph).modified
    proto = ir.to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    assert {node.domain for node in proto.graph.node} == {""}
    assert not {node.op_type for node in proto.graph.node} & {*NORMS, "RotaryEmbedding"}
    return proto


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary", [0, 8])
@pytest.mark.parametrize("rank", [3, 4])
def test_rotary_embedding_gives_the_same_numbers(
    dtype: Any, interleaved: int, rotary: int, rank: int
) -> None:
    """Whole heads and parts, both kinds of pairs, heads joined or in an axis of their own."""
    attributes: dict[str, Any] = {"interleaved": interleaved}
    if rank == 3 or rotary:
        attributes["num_heads"] = HEADS
    if rotary:
        attributes["rotary_embedding_dim"] = rotary
    angles = normal(40, (rotary or SIZE) // 2, seed=1) * 3
    constants = {"cos": np.cos(angles).astype(dtype), "sin": np.sin(angles).astype(dtype)}
    shape = (B, S, HEADS * SIZE) if rank == 3 else (B, HEADS, S, SIZE)
    feeds = {
        "x": normal(*shape, dtype=dtype),
        "positions": np.array([[0, 1, 2, 3, 4], [30, 31, 32, 33, 33]], np.int64),
    }
    node = helper.make_node(
        "RotaryEmbedding", ["x", "positions", "cos", "sin"], ["y"], domain=MICROSOFT, **attributes
    )
    model = one_node(node, feeds, constants)
    (expected,), (actual,) = run(model, feeds), run(lowered(model, LowerRotaryPass()), feeds)
    assert_close(actual, expected, LOGITS[np.dtype(dtype).name], "rotated")


def test_angles_are_gathered_once_for_all_layers() -> None:
    constants = {"cos": normal(9, 8), "sin": normal(9, 8)}
    feeds = {"x": normal(B, S, WIDTH), "positions": np.zeros((B, S), np.int64)}
    node = helper.make_node(
        "RotaryEmbedding", ["x", "positions", "cos", "sin"], ["y"],
        domain=MICROSOFT, num_heads=HEADS,
    )  # fmt: skip
    model = one_node(node, feeds, constants)
    second = helper.make_node(
        "RotaryEmbedding", ["y", "positions", "cos", "sin"], ["z"],
        domain=MICROSOFT, num_heads=HEADS,
    )  # fmt: skip
    model.graph.node.insert(1, second)
    model.graph.node[2].input[0] = "z"
    # Shape inference knows no operators of ONNX Runtime; an export notes the shapes itself.
    model.graph.value_info.append(
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "d1", WIDTH])
    )
    kinds = Counter(node.op_type for node in lowered(model, LowerRotaryPass()).graph.node)
    assert kinds["Gather"] == 2 and kinds["Mul"] == 8


def test_positions_that_a_node_counts_itself_are_refused() -> None:
    feeds = {"x": normal(B, S, WIDTH)}
    constants = {"cos": normal(9, 8), "sin": normal(9, 8), "offset": np.array([3], np.int64)}
    node = helper.make_node(
        "RotaryEmbedding", ["x", "offset", "cos", "sin"], ["y"],
        domain=MICROSOFT, num_heads=HEADS, name="rope",
    )  # fmt: skip
    graph = ir.from_proto(one_node(node, feeds, constants))
    with pytest.raises(UnsupportedModelError, match="'rope' counts its positions itself"):
        LowerRotaryPass()(graph)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", NORMS)
def test_normalisations_give_the_same_numbers(kind: str, bias: bool, dtype: Any) -> None:
    """The sum for the next residual as well; the rows are far from the epsilon, and near it."""
    skips = kind.startswith("Skip")
    feeds = {"x": normal(B, S, WIDTH, dtype=dtype) * np.array([1e-3, 3], dtype)[:, None, None]}
    constants = {"weight": normal(WIDTH, dtype=dtype, seed=2)}
    names = ["x", "weight"]
    if skips:
        feeds["skip"] = normal(B, S, WIDTH, dtype=dtype, seed=3) * dtype(1e-3)
        names = ["x", "skip", "weight"]
        if kind == "SkipLayerNormalization":
            constants["beta"] = normal(WIDTH, dtype=dtype, seed=4)
            names.append("beta")
        if bias:
            constants["bias"] = normal(WIDTH, dtype=dtype, seed=5)
            names.append("bias")
    extra = {"axis": -1, "stash_type": 1} if not skips else {}
    node = helper.make_node(
        kind, names, ["y", "", "", "sum"] if skips else ["y"],
        domain=MICROSOFT if skips else "", epsilon=1e-6, **extra,
    )  # fmt: skip
    model = one_node(node, feeds, constants)
    results = zip(run(model, feeds), run(lowered(model, LowerNormsPass()), feeds), strict=True)
    for expected, actual in results:
        assert_close(actual, expected, LOGITS[np.dtype(dtype).name], kind)


def planned(fixture: str, groups: tuple[tuple[int, ...], ...], **given: Any) -> ir.Model:
    """A fixture with the paper's merge of the given groups."""
    model = io.load_model(FIXTURES / fixture)
    normalise(model)
    members = [Group(group, "slerp" if len(group) > 1 else "exact", **given) for group in groups]
    plan = Plan("paper", tuple(members), 256, 16, 4, 16)
    ApplyPlanPass(plan, "row")(model)
    return model


def test_states_become_linear_chains() -> None:
    """Groups of neighbours, of layers apart, and of one layer; every node returns what it reads."""
    model = planned("onnx-llama3-gqa-optimum-fp16", ((0, 2, 3), (1,)))
    inputs = [value.name for value in model.graph.inputs]
    outputs = [value.name for value in model.graph.outputs]
    ThreadStatesPass()(model)
    assert [value.name for value in model.graph.inputs] == inputs
    assert [value.name for value in model.graph.outputs] == outputs
    nodes = attention_nodes(model)
    for node in nodes:
        states = state_values(node)
        assert len(node.outputs) == 1 + len(states)
        for value, result in zip(states, node.outputs[1:], strict=True):
            assert (value.dtype, value.shape) == (result.dtype, result.shape)
            assert len(value.uses()) == 1 and value.dtype != ir.DataType.UINT8
    group = [nodes[layer] for layer in (0, 2, 3)]
    for before, after in itertools.pairwise(group):
        assert [value.producer() for value in state_values(after)] == [before] * len(
            state_values(after)
        )
    assert all(value.is_graph_input() for value in state_values(group[0]))
    assert all(value.is_graph_output() for value in group[-1].outputs[1:])


def test_nodes_say_which_plugin_they_want() -> None:
    """One of them takes the kernels into the engine, which holds them once then."""
    model = planned("onnx-llama3-gqa-optimum-fp16", ((0, 1), (2, 3)))
    lower_tensorrt(model)
    found = [{n: a.value for n, a in node.attributes.items()} for node in attention_nodes(model)]
    assert {each["plugin_namespace"] for each in found} == {schemas.DOMAIN}
    assert {each["plugin_version"] for each in found} == {"1"}
    assert [each["carries_kernels"] for each in found] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    "fixture", ["genai-qwen3-cpu-fp32", "genai-llama2-mha-cpu-fp32", "onnx-phi3-optimum-fp32"]
)
def test_a_lowered_model_has_standard_operators_and_the_plugin(fixture: str) -> None:
    """Without empty names, which the parser refuses."""
    model = planned(fixture, ((0, 1), (2,), (3,)))
    lower_tensorrt(model)
    kinds = {(node.domain, node.op_type) for node in model.graph}
    assert {domain for domain, _ in kinds} == {"", schemas.DOMAIN}
    assert not {name for _, name in kinds} & {
        "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"
    }  # fmt: skip
    assert set(model.opset_imports) == {"", schemas.DOMAIN}
    for node in attention_nodes(model):
        assert None not in node.inputs and all(value.name for value in node.outputs)


def test_quantised_weights_are_refused_by_name() -> None:
    model = io.load_model(FIXTURES / "genai-llama3-gqa-h16-cpu-int4")
    normalise(model)
    with pytest.raises(UnsupportedModelError, match=r"quantised weights \(MatMulNBits.*fp16"):
        check_parsable(model)


def test_other_operators_are_listed() -> None:
    feeds = {"x": normal(B, S, WIDTH)}
    model = one_node(helper.make_node("FastGelu", ["x"], ["y"], domain=MICROSOFT), feeds, {})
    with pytest.raises(UnsupportedModelError, match=r"does not read com\.microsoft::FastGelu"):
        check_parsable(ir.from_proto(model))
