"""What goes wrong in a build ends in one sentence of ours, whatever TensorRT says or does."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from minicache.exporter import cli
from minicache.exporter.engine import installed, process
from minicache.exporter.engine.builder import BuildOptions, build_engine
from minicache.exporter.engine.explain import explain
from minicache.exporter.engine.phases import Phases
from minicache.exporter.engine.request import BuildAnswer, BuildRequest
from minicache.exporter.schemas import OP_TYPE
from minicache.runtime.errors import (
    EngineError,
    MiniCacheError,
    MissingDependencyError,
    PackageError,
    PlanError,
    UnsupportedModelError,
)
from tests.exporter.engines import export_for_tensorrt, half_workplace, require_tensorrt

pytestmark = pytest.mark.usefixtures("ort_library")

Refused = Callable[..., str]
NAMES = "plugin MiniCacheAttention, version 1, namespace com.minicache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, ort_library: Path) -> Path:
    """An exported folder that builds; tests leave it as it is."""
    require_tensorrt()
    place = half_workplace(tmp_path_factory.mktemp("engines"), "genai-qwen2-cpu-fp32")
    return export_for_tensorrt(place, "exact").folder


@pytest.fixture
def refused(folder: Path, tmp_path: Path) -> Refused:
    """Builds a copy of the folder, changed, and returns the sentence of the expected error."""

    def build(
        kind: type[MiniCacheError],
        change: Callable[[onnx.ModelProto], None] = lambda _: None,
        **options: object,
    ) -> str:
        for path in folder.rglob("*"):
            if path.is_file() and not path.name.startswith("engine"):
                copy = tmp_path / path.relative_to(folder)
                copy.parent.mkdir(exist_ok=True)
                copy.write_bytes(path.read_bytes())
        model = onnx.load(tmp_path / "model.onnx")
        change(model)
        onnx.save(model, tmp_path / "model.onnx")
        with pytest.raises(kind) as failure:
            build_engine(tmp_path, BuildOptions(quiet=True, **options))  # type: ignore[arg-type]
        assert not (tmp_path / "engine.plan").exists() and not (tmp_path / "engine.json").exists()
        assert not list(tmp_path.glob(".*partial*"))
        text = str(failure.value)
        assert "\n" not in text
        return text

    return build


def attention(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == OP_TYPE]


def test_without_work_in_place_no_engine_is_built(refused: Refused) -> None:
    text = refused(EngineError, aliased=False)
    assert "without plugins that work in place" in text and "aliasedPluginIO1003" in text


@pytest.mark.parametrize("name", ["plugin_namespace", "plugin_version"])
def test_a_graph_that_asks_for_another_plugin(refused: Refused, name: str) -> None:
    def change(model: onnx.ModelProto) -> None:
        for node in attention(model):
            node.domain = "com.other"
            for attribute in node.attribute:
                if attribute.name == name:
                    attribute.s = b"other"

    text = refused(EngineError, change)
    asked = {"plugin_namespace": "version 1, namespace other", "plugin_version": "version other"}
    assert f"knows no plugin MiniCacheAttention, {asked[name]}" in text
    assert "libminicache_trt.so" in text and NAMES in text


def test_states_of_a_type_that_no_kernel_takes(refused: Refused) -> None:
    def change(model: onnx.ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output):
            if value.name.endswith("minicache.0.exact_key"):
                value.type.tensor_type.elem_type = TensorProto.FLOAT

    text = refused(EngineError, change)
    assert "'minicache_attention_0': input 'past_exact_key' has type float" in text
    assert text.endswith("; export the model in fp16 with --target tensorrt")


def test_types_that_only_tensorrt_speaks_of(folder: Path) -> None:
    """As a plugin of another version may leave it to TensorRT to say so."""
    said = "could not find any supported formats consistent with input/output data types"
    model = str(folder / "model.onnx")
    request = BuildRequest("tensorrt_rtx", model, "library", [], [], "engine", "cache", "log")
    answer = BuildAnswer("build", [f"Error 9: minicache_attention_2: {said}"], "1.7")
    error = explain(request, answer, "", Path("log"))
    assert isinstance(error, UnsupportedModelError)
    assert "does not take the types of minicache_attention_2 (float16, int32)" in str(error)


def test_a_chain_that_forks_is_no_engine(refused: Refused) -> None:
    """TensorRT would copy one of the two; without a GPU to copy on it fails, in our words."""

    def change(model: onnx.ModelProto) -> None:
        first, second = attention(model)[:2]
        second.input[5:7] = first.input[5:7]

    text = refused(EngineError, change)
    assert "TensorRT-RTX" in text and "please report it" in text
    assert Path(text.partition("its log is '")[2].partition("'")[0]).is_file()


def test_a_kernel_that_the_pack_lacks_is_named(refused: Refused) -> None:
    def change(model: onnx.ModelProto) -> None:
        for node in attention(model):
            node.attribute.append(helper.make_attribute("softcap", 30.0))

    assert "has no kernel 'attend_exact|" in refused(EngineError, change)


def test_a_missing_library_is_named_with_the_plugin(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINICACHE_TRT_LIBRARY", "/nowhere/libminicache_trt.so")
    text = refused(MissingDependencyError)
    assert "'/nowhere/libminicache_trt.so', which is not a file" in text and NAMES in text
    broken = tmp_path / "libminicache_trt.so"
    broken.write_bytes(b"no library")
    monkeypatch.setenv("MINICACHE_TRT_LIBRARY", str(broken))
    text = refused(MissingDependencyError)
    assert f"cannot load {str(broken)!r}" in text and NAMES in text


def test_unknown_capabilities_are_refused(refused: Refused) -> None:
    text = refused(PlanError, capabilities=("8.7",))
    assert "8.7 is not one of 8.0, 8.6, 8.9" in text


def pretend_worker(folder: Path, code: str) -> Path:
    """A program in Python's place that begins a build, says so, and then does something else."""
    program = folder / "stand-in"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys, time\n"
        "log = json.load(open(sys.argv[-1]))['log']\n"
        "open(log, 'w').write('VERBOSE many words\\nWARNING careful now\\n')\n"
        "print(json.dumps({'phase': 'Optimizing graph', 'inside': None, 'of': 3}), flush=True)\n"
        f"{code}\n"
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"os.kill(os.getpid(), {signal.SIGSEGV})", "crashed with SIGSEGV"),
        (f"os.kill(os.getpid(), {signal.SIGKILL})", "was killed, as happens"),
        ("raise SystemExit(3)", "ended with exit code 3"),
    ],
)
def test_a_crash_is_told_in_words(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, words: str
) -> None:
    """With the phase in which it happened, and what TensorRT said last."""
    stand_in = pretend_worker(tmp_path, code)
    monkeypatch.setattr(process.sys, "executable", str(stand_in))
    text = refused(EngineError)
    assert f"TensorRT-RTX {words}" in text
    assert "while optimizing graph; its last words: WARNING careful now; its log is" in text


def test_an_interrupted_build_leaves_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    code = f"open({str(note)!r}, 'w').write(str(os.getpid())); print('{{}}', flush=True)"
    stand_in = pretend_worker(tmp_path, f"{code}; time.sleep(600)")
    monkeypatch.setattr(process.sys, "executable", str(stand_in))

    def interrupt(_: Phases, content: dict[str, object]) -> None:
        if not content:
            raise KeyboardInterrupt

    monkeypatch.setattr(Phases, "take", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_engine(folder, BuildOptions(quiet=True))
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
    assert not list(folder.glob(".*partial*"))


def test_folders_that_no_engine_is_built_of(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = (folder / "minicache.json").read_text()
    (tmp_path / "minicache.json").write_text(manifest)
    (tmp_path / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    with pytest.raises(PackageError, match=r"no kernels/kernels\.bin; .*: minicache kernels"):
        build_engine(tmp_path)
    (tmp_path / "minicache.json").write_text(manifest.replace('"tensorrt"', '"ort-cuda"'))
    with pytest.raises(PackageError, match=r"exported for 'ort-cuda'; .* --target tensorrt"):
        build_engine(tmp_path)
    for name in ("max_batch_size", "chunk"):
        with pytest.raises(PlanError, match=f"--{name.replace('_', '-')} is 0; give at least 1"):
            build_engine(folder, BuildOptions(**{name: 0}))  # type: ignore[arg-type]


def test_without_tensorrt_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda _: None)
    assert cli.main(["build-engine", str(folder)]) == 2
    assert "minicache-onnx[tensorrt]" in capsys.readouterr().err
    assert cli.main(["build-engine", str(folder), "--rtx"]) == 2
    line = capsys.readouterr().err
    assert "TensorRT-RTX is not installed" in line and "minicache-onnx[tensorrt-rtx]" in line
    assert os.linesep not in line.rstrip()
