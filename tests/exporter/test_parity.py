"""The heart of the exporter: the normalised graph computes what the original computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from minicache.exporter.io import load_model, save_model
from minicache.exporter.normalise import normalise
from minicache.exporter.parity import check_parity
from minicache.exporter.parity_report import ParityReport
from minicache.runtime.errors import ParityError
from tests.exporter.graphs import EXPORTS, MORE_EXPORTS, SHARED, Fixture, decomposed_model


def prove(source: Path, folder: Path, **options: object) -> ParityReport:
    result = normalise(load_model(source))
    save_model(result.model, folder)
    return check_parity(source, folder, result.dtype, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("fixture", EXPORTS, ids=lambda f: f.name)
def test_parity_of_real_exports(fixture: Fixture, tmp_path: Path) -> None:
    report = prove(fixture.path, tmp_path)
    assert report.max_relative_difference <= report.tolerance
    assert report.top1_agreement > 0.95
    names = ["batch 1"]
    for row in range(3):
        names += [f"ragged row {row}", f"padded row {row}"]
    assert [case["name"] for case in report.to_dict()["cases"]] == names


@pytest.mark.slow
@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("name", MORE_EXPORTS)
def test_parity_of_more_producers(name: str, tmp_path: Path) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip(f"the shared fixture {name} is not on this machine")
    report = prove(SHARED / name, tmp_path)
    assert report.max_relative_difference <= report.tolerance


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_parity_of_a_model_without_position_inputs(mask: str, tmp_path: Path) -> None:
    source = save_model(decomposed_model(mask), tmp_path / "source")
    prove(source, tmp_path / "out")


def with_mask(model: ir.Model) -> ir.Model:
    """The model with an ``attention_mask`` input that nothing reads."""
    mask = ir.Value(name="attention_mask", type=ir.TensorType(ir.DataType.INT64))
    mask.shape = ir.Shape(["batch", "total"])
    model.graph.inputs.append(mask)
    return model


@pytest.mark.usefixtures("ort_library")
def test_an_original_that_ignores_padding_is_told(tmp_path: Path) -> None:
    source = save_model(with_mask(decomposed_model()), tmp_path / "source")
    report = prove(source, tmp_path / "out")
    assert [case.name for case in report.cases if "padded" in case.name] == []
    (note,) = report.notes
    assert "when row 1 is padded to a batch; the export gives those of the row alone" in note


@pytest.mark.usefixtures("ort_library")
def test_one_row_stays_one_row(tmp_path: Path) -> None:
    model = decomposed_model()
    for value in model.graph.inputs:
        dims = list(value.shape or ())
        value.shape = ir.Shape([1, *dims[1:]])
    report = prove(save_model(model, tmp_path / "source"), tmp_path / "out")
    assert [case.name for case in report.cases] == ["batch 1"]
    assert report.notes == ["the original takes one row at a time, and so does the export"]


@pytest.mark.usefixtures("ort_library")
def test_inputs_of_32_bits(tmp_path: Path) -> None:
    model = load_model(EXPORTS[0].path)
    for value in model.graph.inputs:
        if value.dtype == ir.DataType.INT64:
            value.type = ir.TensorType(ir.DataType.INT32)
            uses = list(value.uses())
            wide = ir.node("Cast", [value], {"to": ir.DataType.INT64.value})
            model.graph.insert_before(next(iter(model.graph)), wide)
            for use in uses:
                use.node.replace_input_with(use.idx, wide.outputs[0])
    prove(save_model(model, tmp_path / "source"), tmp_path / "out")


@pytest.mark.usefixtures("ort_library")
def test_inputs_that_are_only_handed_through(tmp_path: Path) -> None:
    model = decomposed_model()
    for name in ("window_size", "unread"):
        given = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        model.graph.inputs.append(given)
    back = ir.node("Identity", [model.graph.inputs[-2]])
    back.outputs[0].name = "window_out"
    back.outputs[0].type, back.outputs[0].shape = given.type, given.shape
    model.graph.append(back)
    model.graph.outputs.append(back.outputs[0])
    prove(save_model(model, tmp_path / "source"), tmp_path / "out")


@pytest.mark.usefixtures("ort_library")
def test_given_tokens_are_used(tmp_path: Path) -> None:
    report = prove(EXPORTS[0].path, tmp_path, tokens=np.arange(10))
    assert report.cases[0].tokens == 10


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize(("attribute", "wrong"), [("scale", 0.2), ("softcap", 1.0)])
def test_a_wrong_rewrite_is_caught(attribute: str, wrong: float, tmp_path: Path) -> None:
    result = normalise(load_model(EXPORTS[0].path))
    file = save_model(result.model, tmp_path)
    proto = onnx.load(file)
    node = next(node for node in proto.graph.node if node.op_type == "MiniCacheAttention")
    kept = [item for item in node.attribute if item.name != attribute]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(attribute, wrong)])
    onnx.save(proto, file)
    with pytest.raises(ParityError, match="batch 1: largest logit difference"):
        check_parity(EXPORTS[0].path, tmp_path, "fp32")
