"""Exports for CUDA on a machine without one: layout, codes, kernels that are named, refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from minicache.exporter import ExportOptions, cli, export_model, kernels, schemas
from minicache.exporter.kernels import kernel_keys
from minicache.exporter.pipeline import ExportResult
from minicache.exporter.plan import Group, Plan
from minicache.exporter.plan_file import write_plan
from minicache.exporter.targets import TARGETS
from minicache.plugins.triton.variant import parse_key
from minicache.runtime import Session
from minicache.runtime.errors import MissingDependencyError, UnsupportedModelError
from minicache.runtime.manifest import Manifest
from tests.exporter.subspace_workplace import CAPACITY, SINKS, SLACK, WINDOW, Workplace

pytestmark = pytest.mark.usefixtures("ort_library")

FP16 = "onnx-llama3-gqa-optimum-fp16"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace.make(tmp_path_factory.mktemp("cuda"), FP16)


@pytest.fixture(scope="module")
def exported(workplace: Workplace, ort_library: Path) -> ExportResult:
    """By a plan: one code for both kv heads and two layers, as a head of 8 numbers is too small."""
    groups = tuple(
        Group((layer, layer + 1), "subspace", code_heads=1, key_bits_per_element=6.0,
              value_bits_per_element=4.6)
        for layer in (0, 2)
    )  # fmt: skip
    plan = workplace.root / "mine.json"
    write_plan(Plan("subspace", groups, CAPACITY, WINDOW, SINKS, SLACK), plan)
    options = {"target": "ort-cuda", "no_kernels": True}
    return workplace.export("out", plan=plan, verify_documents=1, **options)


def node_attributes(folder: Path) -> list[dict[str, Any]]:
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    return [
        {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        for node in graph.node
        if node.op_type == schemas.OP_TYPE
    ]


def test_a_folder_for_cuda_is_proved_by_the_cpu_kernels(exported: ExportResult) -> None:
    """Codes in rows, each segment of 16 bytes or a multiple; the same graph runs on a CPU."""
    assert exported.manifest.target == "ort-cuda" == Manifest.load(exported.folder).target
    assert exported.evaluation is not None
    assert any("kernels of ort-cpu" in note for note in exported.report["notes"])
    assert not (exported.folder / "kernels").exists()
    for node in node_attributes(exported.folder):
        assert node["code_layout"] == b"row"
        for bits in (node["key_bits"], node["value_bits"]):
            for width, count in zip(bits[0::2], bits[1::2], strict=True):
                assert width * count // 8 % 16 == 0
    with Session(exported.folder, providers=["CPUExecutionProvider"]) as session:
        assert np.isfinite(session.forward([[1, 2, 3]])).all()


def test_the_kernels_of_a_folder_are_named(exported: ExportResult) -> None:
    """Those of decoding and of prefill, in the model's types, and no others' modes."""
    variants = [parse_key(key) for key in kernel_keys(exported.folder, exported.manifest)]
    names = {variant.kernel for variant in variants}
    assert names == {
        "project", "attend_codes", "attend_exact", "finish",
        "gather", "project_joint", "quantise_joint", "store",
    }  # fmt: skip
    assert all(variant.hinted for variant in variants)
    assert all(dict(variant.types).get("T", "fp16") == "fp16" for variant in variants)
    rows = {dict(v.constants)["BLOCK_M"] for v in variants if v.kernel == "attend_codes"}
    assert 16 in rows and len(rows) > 1
    assert {dict(v.constants)["DOT"] for v in variants if v.kernel == "project_joint"} == {0, 1}


def test_other_modes_name_their_kernels(workplace: Workplace) -> None:
    options = {"target": "ort-cuda", "no_kernels": True}
    exact = workplace.export("exact", mode="exact", **options)
    names = {parse_key(key).kernel for key in kernel_keys(exact.folder, exact.manifest)}
    assert names == {"attend_exact", "finish", "store"}
    paper = workplace.export("paper", mode="paper", retention="budget:0.1", **options)
    names = {parse_key(key).kernel for key in kernel_keys(paper.folder, paper.manifest)}
    assert {"active", "retain", "retain_store", "mark", "encode"} <= names


def test_without_the_compiler_nothing_is_begun(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minicache.plugins.triton.compile.TRITON_VERSION", "0.0")
    monkeypatch.setattr("minicache.exporter.io.load_model", lambda _: sys.exit("began to work"))
    with pytest.raises(MissingDependencyError, match=r"\[gpu-build\].*--no-kernels") as failure:
        workplace.export("none", target="ort-cuda")
    assert "\n" not in str(failure.value)


def test_models_of_other_types_are_refused(tmp_path: Path) -> None:
    fixture = Path(__file__).parent.parent / "fixtures" / FP16.replace("fp16", "fp32")
    options = ExportOptions(mode="exact", target="ort-cuda", no_kernels=True, quiet=True)
    with pytest.raises(UnsupportedModelError, match="the model is fp32, ort-cuda runs fp16"):
        export_model(fixture, tmp_path / "out", options)
    assert TARGETS["ort-cuda"].dtypes == ("fp16",)


def test_kernels_are_compiled_into_a_folder(
    exported: ExportResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command hands the folder's variants to the compiler; the pack lies in the folder."""
    asked: list[Any] = []

    def build(variants: Any, architectures: Any, **_: Any) -> list[Any]:
        asked.append((variants, architectures))
        return []

    monkeypatch.setattr("minicache.plugins.triton.build.build_kernels", build)
    assert cli.main(["kernels", str(exported.folder), "--arch", "80", "90", "--quiet"]) == 0
    pack = exported.folder / "kernels"
    assert capsys.readouterr().out.strip() == str(pack)
    assert (pack / "kernels.bin").is_file()
    ((variants, architectures),) = asked
    assert architectures == (80, 90)
    assert [v.key for v in variants] == kernel_keys(exported.folder, exported.manifest)
    assert cli.main(["kernels", str(exported.folder), "--arch", "1"]) == 2
    assert "--arch 1 is not one of" in capsys.readouterr().err


def test_folders_for_cpus_have_no_kernels(
    workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = workplace.export("cpu", mode="exact").folder
    assert cli.main(["kernels", str(folder)]) == 2
    assert "'ort-cpu', which has no GPU kernels" in capsys.readouterr().err


def test_new_tokens_cover_every_choice() -> None:
    """Each number of new tokens up to 17 is met, and one of many."""
    assert set(range(1, 18)) < set(kernels.NEW_TOKENS) and max(kernels.NEW_TOKENS) > 64
