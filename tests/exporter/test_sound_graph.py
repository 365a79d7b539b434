"""What a graph must be before anything walks over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto

from minicache.exporter.find_attention import find_attention
from minicache.exporter.graph import static_dim
from minicache.exporter.io import load_model
from minicache.runtime.errors import MiniCacheError, ModelFileError

FIXTURES = Path(__file__).parent.parent / "fixtures"
F1, F3 = "onnx-llama2-mha-optimum-fp32", "mob-llama3-gqa-default"


def node_of(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == op_type)


def set_attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    node.ClearField("attribute")
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])


def circle(model: onnx.ModelProto) -> None:
    softmax = node_of(model, "Softmax")
    node_of(model, "Sqrt").input[0] = softmax.output[0]


def wrong_type(model: onnx.ModelProto) -> None:
    set_attribute(node_of(model, "Concat"), "axis", 1.5)


def no_type(model: onnx.ModelProto) -> None:
    node_of(model, "MatMul").attribute.add(name="body", type=AttributeProto.UNDEFINED)


def no_input(model: onnx.ModelProto) -> None:
    del node_of(model, "Reshape").input[1:]


def blank_input(model: onnx.ModelProto) -> None:
    node_of(model, "Concat").input[0] = ""


def no_output(model: onnx.ModelProto) -> None:
    model.graph.node.add(op_type="Anything", domain="com.example")


def bare_constant(model: onnx.ModelProto) -> None:
    node_of(model, "Constant").ClearField("attribute")


def twice(model: onnx.ModelProto) -> None:
    model.graph.input.append(model.graph.input[0])


def short_weight(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if len(t.raw_data) > 64)
    tensor.raw_data = tensor.raw_data[:-8]


def empty_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].CopyFrom(
        TensorProto(name=model.graph.initializer[0].name, data_type=1, dims=[2**30, 2**10])
    )


def negative_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [-2, -2]


def empty_constant(model: onnx.ModelProto) -> None:
    set_attribute(node_of(model, "Constant"), "value", TensorProto(data_type=7, raw_data=b""))


def no_texts(model: onnx.ModelProto) -> None:
    set_attribute(node_of(model, "Constant"), "value", TensorProto(data_type=8, dims=[3]))


def untyped_tensor(model: onnx.ModelProto) -> None:
    node_of(model, "MatMul").attribute.add(name="to", type=AttributeProto.TENSOR)


def no_heads(model: onnx.ModelProto) -> None:
    set_attribute(node_of(model, "Attention"), "kv_num_heads", 0)


def two_places(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for place in ("a.bin", "b.bin"):
        tensor.external_data.add(key="location", value=place)


def odd_offset(model: onnx.ModelProto) -> None:
    two_places(model)
    model.graph.initializer[0].external_data[1].key = "offset"


def sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add(dims=[4])


def our_name(model: onnx.ModelProto) -> None:
    model.graph.input.add(name="past_lengths").type.tensor_type.elem_type = TensorProto.INT32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (circle, "needs its own result"),
        (wrong_type, "'axis' of Concat .* has type FLOAT, not INT"),
        (no_type, "'body' of MatMul .* has type UNDEFINED"),
        (no_input, "Reshape .* lacks input 1"),
        (blank_input, "Concat .* lacks input 0"),
        (no_output, "Anything '' lacks a result"),
        (bare_constant, "Constant .* lacks its one value"),
        (twice, "the input 'input_ids' twice"),
        (short_weight, r"needs \d+ bytes and has \d+"),
        (empty_weight, r"needs 4398046511104 bytes and has 0"),
        (negative_weight, r"of shape \[-2, -2\]"),
        (empty_constant, r"the value of Constant .* of shape \[\] needs 8 bytes and has 0"),
        (no_texts, "the value of Constant .* has no value"),
        (untyped_tensor, "the to of MatMul .* has no value"),
        (no_heads, "has kv_num_heads 0, which is no number of heads"),
        (two_places, "names 2 data files where one is needed"),
        (odd_offset, "entry 'offset' = 'b.bin' of external data, which means nothing"),
        (sparse, "sparse weights are not supported"),
        (our_name, "a value of the name 'past_lengths'"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None], message: str
) -> None:
    name = F3 if change is no_heads else F1
    model = onnx.load(FIXTURES / name / "model.onnx", load_external_data=False)
    change(model)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(MiniCacheError, match=message) as raised:
        find_attention(load_model(tmp_path))
    assert isinstance(raised.value, ModelFileError) or change is our_name


@pytest.mark.parametrize(("symbol", "size"), [("4", 4), ("²", None), ("9" * 30, None)])
def test_symbols_of_digits_are_sizes(symbol: str, size: int | None) -> None:
    """As torch.export writes them; other signs that Python counts as digits are none."""
    value = ir.Value(name="x", shape=ir.Shape([symbol]))
    assert static_dim(value, 0) == size


def test_nodes_in_any_order_are_sorted(tmp_path: Path) -> None:
    """ONNX Runtime takes such graphs; walks in graph order would miss what comes later."""
    model = onnx.load(FIXTURES / F1 / "model.onnx")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    onnx.save(model, tmp_path / "model.onnx")
    seen = set()
    for node in load_model(tmp_path).graph:
        assert all(source in seen for source in node.predecessors())
        seen.add(node)
    assert len(seen) == len(nodes)
