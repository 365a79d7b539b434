"""The plugin in TensorRT-RTX, which builds engines without a GPU: a group of every mode."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from minicache.exporter import schemas
from minicache.exporter.engine.installed import RTX, worker_environment
from tests.plugins.gpu.walk_modes import MODES
from tests.plugins.trt.group_graph import GroupGraph
from tests.plugins.trt.trt_node import nodes_of, write_fake_pack

WORKER = Path(__file__).parent / "rtx_worker.py"
FIELD_TYPES = {"int": "INT32", "ints": "INT32", "float": "FLOAT32", "string": "CHAR"}
# Batch, new tokens, capacity: least, usual and most of decoding and of prefilling.
DECODE = ((1, 1, 32), (1, 1, 64), (2, 1, 256))
PREFILL = ((1, 1, 32), (1, 24, 64), (2, 24, 256))

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(RTX) is None, reason="TensorRT-RTX is not installed"
)


@dataclass
class Built:
    """What the worker answered, and what it wrote.

    Attributes:
        library: facts about the library.
        answer: to the request.
        errors: standard error of the process.
        engine: file of the engine.
    """

    library: dict[str, Any]
    answer: dict[str, Any]
    errors: str
    engine: Path


def build(
    library: Path,
    folder: Path,
    graph: GroupGraph,
    pack: Path,
    *profiles: tuple[tuple[int, int, int], ...],
    aliased: bool = True,
) -> Built:
    """Builds a graph in a process of its own."""
    onnx.save(graph.model, folder / "model.onnx")
    engine = folder / "engine.plan"
    request = {"model": str(folder / "model.onnx"), "engine": str(engine), "aliased": aliased}
    shapes = [graph.profile(*calls) for calls in profiles]
    (scratch := folder / "links").mkdir()
    done = subprocess.run(
        [sys.executable, WORKER, library],
        input=json.dumps({**request, "profiles": shapes}),
        env=worker_environment(RTX, pack, scratch),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = map(json.loads, done.stdout.splitlines())
    return Built(first, second, done.stderr, engine)


def make_pack(folder: Path, mode: str) -> Path:
    """The kernels of a mode's calls."""
    keys = set()
    for node in nodes_of(mode):
        keys |= node.keys(*(node.tensors(*call) for call in (*DECODE, *PREFILL)))
    return write_fake_pack(folder / "kernels", keys)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_builds_without_copies(trt_library: Path, tmp_path: Path, mode: str) -> None:
    """As many plugin layers as nodes, states in place, and the kernels once for each profile."""
    nodes, pack = nodes_of(mode), make_pack(tmp_path, mode)
    built = build(trt_library, tmp_path, GroupGraph(nodes), pack, DECODE, PREFILL)
    log = built.answer["log"]
    assert built.answer.get("built"), [*built.answer.get("errors", ()), built.errors, *log[-5:]]
    assert not [line for line in log if "nserting cop" in line]
    assert not [line for line in log if line.startswith(("ERROR", "INTERNAL_ERROR"))]
    layers = re.findall(r"Layer\(PluginV3\): (layer\.\d)( \[profile 1\])?,", "\n".join(log))
    expected = [(f"layer.{slot}", of) for of in ("", " [profile 1]") for slot in range(len(nodes))]
    assert sorted(layers) == sorted(expected)
    engine, kernels = built.engine.read_bytes(), (pack / "kernels.bin").read_bytes()
    assert engine.count(kernels) == 2
    assert engine.count(b"kernels_digest") == 2 * len(nodes)
    assert built.errors == ""


def test_the_creator_is_found_by_its_three_names(trt_library: Path, tmp_path: Path) -> None:
    """With the schema's attributes as fields, and a plugin is made without any network."""
    graph, pack = GroupGraph(nodes_of("exact")), make_pack(tmp_path, "exact")
    found = build(trt_library, tmp_path, graph, pack, DECODE).library
    assert found["loaded"]
    assert found["creator"] == [schemas.OP_TYPE, str(schemas.VERSION), schemas.DOMAIN]
    assert not found["elsewhere"], "it should be in its own namespace only"
    skipped = ("plugin_namespace", "plugin_version")
    assert found["fields"] == {
        attribute.name: FIELD_TYPES[attribute.kind]
        for attribute in (*schemas.ATTRIBUTES, *schemas.PLUGIN_ATTRIBUTES)
        if attribute.name not in skipped
    }
    assert len(found["capabilities"]) == 2


def test_without_aliasing_tensorrt_refuses(trt_library: Path, tmp_path: Path) -> None:
    """The builder has to ask for the preview feature."""
    graph, pack = GroupGraph(nodes_of("exact")), make_pack(tmp_path, "exact")
    built = build(trt_library, tmp_path, graph, pack, DECODE, aliased=False)
    assert not built.answer["built"]
    assert any("kALIASED_PLUGIN_IO_10_03 not enabled" in line for line in built.answer["log"])


def test_another_version_is_not_found(trt_library: Path, tmp_path: Path) -> None:
    """TensorRT's words, which the exporter's builder explains."""
    graph, pack = GroupGraph(nodes_of("exact"), plugin_version="2"), make_pack(tmp_path, "exact")
    built = build(trt_library, tmp_path, graph, pack, DECODE)
    assert not built.answer["parsed"]
    assert any("Plugin not found" in line for line in built.answer["errors"])


def test_a_lacking_kernel_ends_the_build(trt_library: Path, tmp_path: Path) -> None:
    """Our sentence, on standard error, names the kernel."""
    nodes, graph = nodes_of("exact"), GroupGraph(nodes_of("exact"))
    keys = sorted(nodes[0].keys(*(nodes[0].tensors(*call) for call in (*DECODE, *PREFILL))))
    pack = write_fake_pack(tmp_path / "part", keys[1:])
    built = build(trt_library, tmp_path, graph, pack, DECODE, PREFILL)
    assert not built.answer["built"]
    assert f"MiniCacheAttention 'layer.0': kernel pack '{pack}/kernels.bin'" in built.errors
    assert f"has no kernel '{keys[0]}'" in built.errors
