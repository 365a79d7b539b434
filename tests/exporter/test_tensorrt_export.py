"""``--target tensorrt``: what lies in the folder, the script for trtexec, refusals, the command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import onnx
import pytest

from minicache.exporter import ExportOptions, cli, export_model, pipeline, schemas
from minicache.exporter.kernels import kernel_keys
from minicache.exporter.pipeline import ExportResult
from minicache.runtime.engine_file import EngineFile
from minicache.runtime.engine_profile import engine_profiles
from minicache.runtime.errors import UnsupportedModelError
from minicache.runtime.manifest import Manifest
from tests.exporter.engines import export_for_tensorrt, half_workplace, require_tensorrt
from tests.exporter.half import FIXTURES
from tests.exporter.subspace_workplace import CAPACITY, Workplace

pytestmark = pytest.mark.usefixtures("ort_library")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return half_workplace(tmp_path_factory.mktemp("tensorrt"), "genai-qwen2-cpu-fp32")


@pytest.fixture(scope="module")
def exported(workplace: Workplace, ort_library: Path) -> ExportResult:
    return export_for_tensorrt(workplace, "paper")


def test_a_folder_holds_what_an_engine_is_built_of(exported: ExportResult) -> None:
    """The graph is proved in ONNX Runtime first, and says so; lowered, only TensorRT reads it."""
    assert exported.manifest.target == "tensorrt" == Manifest.load(exported.folder).target
    assert exported.parity.tolerance > 0
    assert any("kernels of ort-cpu" in note for note in exported.report["notes"])
    assert "now build the engine: minicache build-engine paper" in exported.report["notes"]
    names = {path.name for path in exported.folder.iterdir()}
    assert {"model.onnx", "minicache.json", "report.html", "build_engine.sh", "kernels"} <= names
    graph = onnx.load(exported.folder / "model.onnx", load_external_data=False).graph
    assert {node.domain for node in graph.node} == {"", schemas.DOMAIN}
    nodes = [node for node in graph.node if node.op_type == schemas.OP_TYPE]
    states = [state.past for state in exported.manifest.state]
    inputs = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    assert states == [name for name in inputs if name.startswith("past_minicache.")]
    assert onnx.TensorProto.INT8 in inputs.values()
    assert {inputs[f"{name}_lengths"] for name in ("past", "total")} == {onnx.TensorProto.INT32}
    for node in nodes:
        assert "" not in (*node.input, *node.output)
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        assert given["code_layout"] == b"row"


def test_the_kernels_are_those_of_onnx_runtime(
    workplace: Workplace, exported: ExportResult
) -> None:
    """Readers hand states on here, which changes nothing of what is launched."""
    other = workplace.export(
        "cuda", target="ort-cuda", mode="paper", no_kernels=True, start_layer=0,
        retention="budget:0.1",
    )  # fmt: skip
    keys = kernel_keys(exported.folder, exported.manifest)
    assert keys == kernel_keys(other.folder, other.manifest)


def test_the_script_asks_trtexec_for_both_profiles(exported: ExportResult, tmp_path: Path) -> None:
    """With the shapes of ``minicache build-engine``, for as many rows as asked."""
    stand_in = tmp_path / "trtexec"
    stand_in.write_text('#!/bin/sh\necho "$MINICACHE_KERNELS"\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    library = tmp_path / "libminicache_trt.so"
    library.touch()
    done = subprocess.run(
        [exported.folder / "build_engine.sh", os.path.relpath(library), "--verbose"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "BATCH": "4"},
        capture_output=True,
        text=True,
        check=True,
    )
    kernels, *words = done.stdout.splitlines()
    assert kernels == str(exported.folder / "kernels")
    assert words[:2] == ["--onnx=model.onnx", "--saveEngine=engine.plan"]
    assert f"--dynamicPlugins={library}" in words and words[-1] == "--verbose"
    assert "--preview=+aliasedPluginIO1003" in words and "--stronglyTyped" in words
    start = words.index("--profile=0")
    for index, profile in enumerate(engine_profiles(exported.manifest, batch=4)):
        assert words[start] == f"--profile={index}"
        shapes = profile.shapes(exported.manifest)
        for place, kind in enumerate(("min", "opt", "max")):
            flag, _, sizes = words[start + 1 + place].partition("=")
            assert flag == f"--{kind}Shapes"
            found = dict(each.split(":") for each in sizes.split(","))
            expected = {n: "x".join(map(str, given[place])) for n, given in shapes.items()}
            assert found == expected
        start += 4


def test_the_script_says_what_it_needs(exported: ExportResult) -> None:
    done = subprocess.run(
        [exported.folder / "build_engine.sh"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "give the path of libminicache_trt.so" in done.stderr


@pytest.mark.parametrize(
    ("fixture", "words"),
    [
        ("genai-llama3-gqa-h16-cpu-int4", r"quantised weights \(MatMulNBits"),
        ("onnx-llama3-gqa-optimum-fp32", "the model is fp32, tensorrt runs fp16"),
    ],
)
def test_what_tensorrt_cannot_run_is_told_before_the_long_work(
    fixture: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "check_parity", None)
    options = ExportOptions(mode="exact", target="tensorrt", no_kernels=True, quiet=True)
    with pytest.raises(UnsupportedModelError, match=words):
        export_model(FIXTURES / fixture, tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_the_command_builds_and_says_what_it_built(
    exported: ExportResult, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each phase in a line where there is no terminal; one line about the engine."""
    require_tensorrt()
    folder = exported.folder
    assert cli.main(["build-engine", str(folder), "--compute-capability", "8.6", "12.0"]) == 0
    output = capsys.readouterr()
    file = EngineFile.load(folder)
    assert file.capabilities == ("8.6", "12.0") and file.profiles[0].capacity == CAPACITY
    assert output.out.startswith(f"{folder / 'engine.plan'}: ") and output.out.count("\n") == 1
    assert f"TensorRT-RTX {file.version}, compute capability 8.6, 12.0, built in" in output.out
    assert "optimizing graph: done in" in output.err
