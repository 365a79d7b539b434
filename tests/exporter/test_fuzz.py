"""Damaged and hostile models: an error of our own family, or a graph that is proved.

``benchmarks/fuzz_models.py`` runs many more of these cases; ``--one SEED`` repeats one of them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from minicache.exporter import probe
from minicache.exporter.find_attention import find_attention
from minicache.exporter.io import load_model
from minicache.runtime.errors import (
    LONGEST,
    MiniCacheError,
    ModelFileError,
    UnsupportedModelError,
)
from tests.exporter import mutate_external, mutate_structure
from tests.exporter.fuzz_case import CRASH, HANG, UNTYPED, Found, check_sentence, isolated
from tests.exporter.mutations import CATALOGUE, Case, case_of, find_fixtures, make_case

ROOT = Path(__file__).parent.parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
SCRIPT = ROOT / "benchmarks" / "fuzz_models.py"
# One of every form, F4 twice; those that take least time.
SMALL = (
    "genai-llama2-mha-cpu-fp32",
    "genai-qwen3-cpu-fp32",
    "onnx-llama2-mha-optimum-fp32",
    "onnx-llama3-gqa-dynamo-opset23",
    "mob-llama3-gqa-default",
)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_every_mutation_ends_in_a_proof_or_a_sentence(tmp_path: Path, part: int) -> None:
    """Each part has every mutation once: the process of the tests runs ONNX Runtime already."""
    for name in SMALL:
        (tmp_path / name).symlink_to(FIXTURES / name)
    first, cases = part * len(CATALOGUE), len(CATALOGUE)
    command = [sys.executable, SCRIPT, "--cases", str(cases), "--seed", str(first)]
    command += ["--folder", tmp_path, "--log", tmp_path / "log", "--limit", "30"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    kinds = [outcome["kind"] for outcome in outcomes]
    assert len(kinds) == cases and {"rewritten", "refused"} == set(kinds)
    # Mutations that change nothing of what is computed.
    harmless = {"reorder_inputs_and_outputs", "shuffle_nodes", "odd_metadata", "rename_all_caches"}
    for outcome in outcomes:
        if len(outcome["names"]) == 1 and outcome["names"][0] in harmless:
            assert outcome["kind"] == "rewritten", outcome


def test_a_defect_is_an_exit_code() -> None:
    script = (
        "import sys; from tests.exporter import fuzz_case\n"
        "def fail(*_): raise KeyError('seen')\n"
        "fuzz_case.export_model = fail\n"
        "from benchmarks.fuzz_models import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "--one", "2", "--folder", str(FIXTURES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and json.loads(done.stdout)["error"] == "KeyError", done.stderr


def _crash() -> Found:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def _hang() -> Found:
    while True:
        pass


def _fail() -> Found:
    raise KeyError("head_dim")


@pytest.mark.parametrize(
    ("work", "kind", "error"),
    [(_crash, CRASH, "SIGSEGV"), (_hang, HANG, "SIGXCPU"), (_fail, UNTYPED, "KeyError")],
)
def test_what_goes_wrong_is_seen(tmp_path: Path, work: object, kind: str, error: str) -> None:
    found, _ = isolated(work, tmp_path, 1)  # type: ignore[arg-type]
    assert found[:2] == (kind, error)


@pytest.mark.parametrize("name", CATALOGUE)
def test_mutations_change_the_folder_in_the_same_way_again(tmp_path: Path, name: str) -> None:
    found = set()
    for seed in range(6):
        case = Case(seed, SMALL[seed % 3], (name,))
        contents = []
        for _ in range(2):
            folder = make_case(case, FIXTURES, tmp_path)
            contents.append(_described(folder))
            shutil.rmtree(folder)
        assert contents[0] == contents[1]
        found.add(contents[0] != _described(FIXTURES / case.fixture))
        if True in found:
            return
    raise AssertionError(f"{name} changes nothing")


def _described(folder: Path) -> list[tuple[str, bytes]]:
    files = sorted(folder.rglob("*"))
    return [(str(p.relative_to(folder)), p.read_bytes() if p.is_file() else b"") for p in files]


def test_seeds_stand_for_cases() -> None:
    fixtures = find_fixtures(FIXTURES)
    cases = [case_of(seed, fixtures) for seed in range(2 * len(CATALOGUE))]
    assert cases == [case_of(seed, fixtures) for seed in range(len(cases))]
    assert {case.names[0] for case in cases} == set(CATALOGUE)
    assert any(len(case.names) > 1 for case in cases)


@pytest.mark.parametrize("place", mutate_external.OUTSIDE[:6])
@pytest.mark.parametrize("hidden", range(4))
def test_no_tensor_of_any_kind_leads_outside(tmp_path: Path, place: str, hidden: int) -> None:
    """Constants, also in subgraphs and functions: ONNX Runtime would read those, not only we."""
    case = Case(0, SMALL[0], ())
    folder = make_case(case, FIXTURES, tmp_path)
    mutate_external.hide_location(folder, place, hidden)
    with pytest.raises(ModelFileError, match="in another file"):
        load_model(folder)


def test_a_head_size_of_nothing_is_read_from_the_new_keys(tmp_path: Path) -> None:
    """A dimension below 1 states no size; GenAI leaves it open, too."""
    model = onnx.load(FIXTURES / SMALL[2] / "model.onnx")
    for value in (*model.graph.input, *model.graph.output):
        if "key_values" in value.name or "present" in value.name:
            value.type.tensor_type.shape.dim[3].dim_value = 0
    onnx.save(model, tmp_path / "model.onnx")
    assert find_attention(load_model(tmp_path)).sites[0].head_dim == 16


@pytest.mark.parametrize(
    ("axis", "number"), [(1, 0), (1, -1), (1, 2**30), (1, 2**62), (3, 17), (3, 2**30)]
)
def test_sizes_beyond_reason_are_told(tmp_path: Path, axis: int, number: int) -> None:
    """Before anything of that size is asked for: F1 takes heads and head size from its inputs."""
    model = onnx.load(FIXTURES / SMALL[2] / "model.onnx")
    for value in (*model.graph.input, *model.graph.output):
        if "key_values" in value.name or "present" in value.name:
            value.type.tensor_type.shape.dim[axis].dim_value = number
    onnx.save(model, tmp_path / "model.onnx")
    told = r"fixed number of heads|numbers per token|no multiple"
    with pytest.raises(UnsupportedModelError, match=told):
        find_attention(load_model(tmp_path))


def test_stated_sizes_that_no_tensor_has_are_forgotten(tmp_path: Path) -> None:
    """The shape inference of onnx aborts the process over a ``Slice`` of -5 rows."""
    model = onnx.load(FIXTURES / SMALL[2] / "model.onnx")
    node = next(node for node in model.graph.node if node.op_type == "Slice")
    odd = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [-5, 3, 2**62])
    model.graph.value_info.append(odd)
    onnx.save(model, tmp_path / "model.onnx")
    loaded = load_model(tmp_path)
    (value,) = [v for n in loaded.graph for v in n.outputs if v.name == node.output[0]]
    assert value.shape is not None
    assert [size if isinstance(size, int) else None for size in value.shape] == [None, 3, None]


def test_endless_loops_are_ended() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    mutate_structure.loop_over(model, "x", mutate_structure.LONG_LOOP)
    loaded = ir.from_proto(model)
    feeds = {loaded.graph.inputs[0]: np.zeros(2, np.float32)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "SECONDS", 1.0)
        with pytest.raises(UnsupportedModelError, match="it runs for more than 1 s"):
            probe.evaluate(loaded, loaded.graph.outputs, feeds)


def test_sentences_quote_hostile_names_in_one_line() -> None:
    error = MiniCacheError("node 'a\nb\x1b[31m\u202e" + "x" * 5000 + "' is odd; export it again")
    text = str(error)
    assert len(text) < LONGEST + 20 and check_sentence(text) == ""
    assert text.startswith("node 'a\\nb\\x1b[31m") and text.endswith("is odd; export it again")


HOSTILE = "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}"
WATCH = """
import pathlib, sys
seen = []
def hook(event, arguments):
    said = repr(arguments)
    if "MARKER" in said or (event == "ctypes.dlopen" and "model" in said):
        seen.append((event, said[:200]))
    elif event in ("os.system", "subprocess.Popen", "pickle.find_class", "os.exec"):
        seen.append((event, said[:200]))
from minicache.exporter import ExportOptions, export_model, inspect
sys.addaudithook(hook)
source, output = map(pathlib.Path, sys.argv[1:])
print(inspect.inspect_model(source))
export_model(source, output, ExportOptions(mode="exact", quiet=True))
print("SEEN", seen)
"""


def test_nothing_that_a_model_says_is_executed(tmp_path: Path) -> None:
    """Texts of metadata, configuration and chat template are never compiled, unpickled or run."""
    folder = Path(shutil.copytree(FIXTURES / SMALL[0], tmp_path / "model"))
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    code = "__import__('os').system('touch MARKER')"
    for owner in (model, model.graph, model.graph.node[0]):
        owner.metadata_props.add(key="custom_op_library", value=str(folder / "MARKER.so"))
        owner.metadata_props.add(key=code, value=code)
    model.doc_string = model.graph.doc_string = code
    onnx.save(model, folder / "model.onnx")
    (folder / "MARKER.so").write_bytes(b"\x7fELF")
    (folder / "chat_template.jinja").write_text(HOSTILE)
    config = {"chat_template": HOSTILE, "auto_map": {"AutoModel": "MARKER.Model"}}
    config["model_type"] = code
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_text(json.dumps(config))
    (folder / "MARKER.py").write_text("raise SystemExit('executed')")
    (folder / "tokenizer.model").write_bytes(b"cos\nsystem\n(S'touch MARKER'\ntR.")
    command = [sys.executable, "-c", WATCH, str(folder), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = [line for line in done.stdout.splitlines() if line.startswith("SEEN")]
    assert seen == ["SEEN []"], seen
    assert not list(tmp_path.rglob("MARKER"))
