"""The shape of a normalised graph: new inputs, no leftovers, nodes as the schema says."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from minicache.exporter import schemas
from minicache.exporter.io import load_model, save_model
from minicache.exporter.normalise import normalise
from minicache.runtime.errors import UnsupportedModelError
from tests.exporter.graphs import EXPORTS, FIXTURES, Fixture, decomposed_model

CONTROL = ["input_ids", "past_lengths", "total_lengths", "logit_positions"]


@pytest.mark.parametrize("fixture", EXPORTS, ids=lambda f: f.name)
def test_inputs_and_outputs(fixture: Fixture) -> None:
    model = normalise(load_model(fixture.path)).model
    names = [
        f"minicache.{layer}.exact_{kind}"
        for layer in range(fixture.layers)
        for kind in ("key", "value")
    ]
    assert [v.name for v in model.graph.inputs] == CONTROL + [f"past_{name}" for name in names]
    assert [v.name for v in model.graph.outputs] == ["logits", *(f"present_{n}" for n in names)]
    _, kv_heads, size = fixture.heads
    slots = fixture.window + 64 if fixture.window else "capacity"
    for value in model.graph.inputs[4:]:
        shape = [d if isinstance(d, int) else d.value for d in value.shape.dims]  # type: ignore[union-attr]
        assert shape == ["batch", 1, kv_heads, slots, size]


def test_logits_of_any_name_get_ours() -> None:
    """It is the name that sessions ask for."""
    model = decomposed_model("causal")
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    logits.name = "any_scores"
    assert normalise(model).model.graph.outputs[0].name == "logits"


@pytest.mark.parametrize("fixture", EXPORTS, ids=lambda f: f.name)
def test_nodes_follow_the_schema(fixture: Fixture) -> None:
    result = normalise(load_model(fixture.path))
    assert [layer.node.name for layer in result.layers] == [
        f"minicache_attention_{layer}" for layer in range(fixture.layers)
    ]
    for layer in result.layers:
        given = {name: attribute.value for name, attribute in layer.node.attributes.items()}
        attributes = schemas.attributes_with_defaults(given)
        assert attributes["mode"] == "exact"
        assert attributes["local_window_size"] == layer.local_window == fixture.window
        assert len(layer.node.inputs) == len(schemas.input_names(attributes))
        assert len(layer.node.outputs) == len(schemas.output_names(attributes))
        assert all(v is not None and v.name and v.dtype is not None for v in layer.node.inputs)
    assert len({layer.kind for layer in result.layers}) == 1


@pytest.mark.parametrize("fixture", EXPORTS, ids=lambda f: f.name)
def test_old_attention_is_gone_and_the_checker_passes(fixture: Fixture, tmp_path: Path) -> None:
    source = load_model(fixture.path)
    before = source.ir_version, dict(source.opset_imports)
    model = normalise(source).model
    operators = {node.op_type for node in model.graph}
    assert not operators & {"Softmax", "GroupQueryAttention", "IsNaN"}
    assert (model.ir_version, {**before[1], **model.opset_imports}) == (
        before[0],
        dict(model.opset_imports),
    )
    file = save_model(model, tmp_path)
    proto = onnx.load(file, load_external_data=False)
    for node in proto.graph.node:
        if node.op_type == "SimplifiedLayerNormalization":
            node.domain = (
                "com.microsoft"  # ONNX Runtime registers it where the checker does not look
            )
    onnx.save(proto, file)
    onnx.checker.check_model(file)


def test_mask_and_positions_share_one_subgraph() -> None:
    model = normalise(load_model(EXPORTS[0].path)).model
    assert sum(node.op_type == "Range" for node in model.graph) == 1


def test_values_go_in_without_a_second_transpose() -> None:
    result = normalise(load_model(EXPORTS[0].path))
    for layer in result.layers:
        projection = layer.node.inputs[2].producer()  # type: ignore[union-attr]
        assert projection is not None
        assert projection.op_type == "MatMul"


def test_hidden_states_are_gathered_before_the_head() -> None:
    model = normalise(load_model(EXPORTS[0].path)).model
    (gather,) = (node for node in model.graph if node.op_type == "GatherND")
    head = gather.outputs[0].uses()[0].node
    assert head.op_type == "MatMul"
    assert head.outputs[0].name == "logits"


def test_logits_are_gathered_where_no_head_is_found() -> None:
    model = decomposed_model()
    head = model.graph.outputs[0].producer()
    assert head is not None
    head.op_type, head.name = "Einsum", "odd_head"
    head.attributes["equation"] = ir.AttrString("equation", "bsh,hv->bsv")
    result = normalise(model)
    assert result.model.graph.outputs[0].producer().op_type == "GatherND"  # type: ignore[union-attr]
    assert any("LM head was not found" in note for note in result.notes)


def test_what_still_needs_an_old_input_is_named() -> None:
    model = decomposed_model()
    logits = model.graph.outputs[0]
    head = logits.producer()
    assert head is not None
    total = ir.node("ReduceSum", [model.graph.inputs[1]], {"keepdims": 0}, name="sum_of_past")
    added = ir.node("Add", [head.outputs[0], total.outputs[0]], name="add_sum")
    model.graph.extend([total, added])
    logits.name = "plain_logits"
    added.outputs[0].name, added.outputs[0].type = "logits", logits.type
    added.outputs[0].shape = logits.shape
    model.graph.outputs[0] = added.outputs[0]
    with pytest.raises(UnsupportedModelError, match=r"sum_of_past.*past\.0\.key"):
        normalise(model)


def test_sliding_windows_are_noted() -> None:
    result = normalise(load_model(FIXTURES / "onnx-mistral-sw-optimum-fp32"))
    assert result.notes == ["layers 0, 1, 2, 3: sliding window 32"]
