"""Runtime plugins on the fake CUDA driver: their launches are those of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from minicache.plugins.gpu_plan import PlacedTensor
from tests.plugins.trt.plugin_process import PluginProcess
from tests.plugins.trt.trt_node import (
    ALL_NODES,
    TrtNode,
    launch_line,
    node_of,
    output_words,
    profile_words,
    words_of,
    write_fake_pack,
)

TABLE = 0x11000  # the fake driver's first allocation
WORKSPACE = 0x7F0000
STREAM = 0x51
DECODE, PREFILL = (2, 1), (2, 40)  # batch, new tokens


def make_pack(folder: Path, node: TrtNode) -> Path:
    """The kernels of both calls."""
    calls = [node.tensors(*call) for call in (DECODE, PREFILL)]
    return write_fake_pack(folder / "kernels", node.keys(*calls))


def revive(plugin: PluginProcess, node: TrtNode) -> None:
    """Makes an engine's node ``a`` in context ``x``, on the driver's context 1."""
    plugin.do(f"create built layer build {node.fields(carries_kernels=1)}")
    plugin.do("revive built a")
    plugin.do("drop built")
    plugin.do("context 1")
    plugin.do("attach a x")


def enqueue_line(node: TrtNode, tensors: Mapping[str, PlacedTensor], work: int = WORKSPACE) -> str:
    """A call whose states are bound once."""
    return (
        f"enqueue x {work:x} {STREAM:x} {words_of(tensors, node.inputs)} > "
        f"{output_words(node, tensors, node.states)}"
    )


def planned(
    node: TrtNode, tensors: Mapping[str, PlacedTensor], scratch: int = WORKSPACE
) -> list[str]:
    """What the fake driver should write for a call."""
    plan = node.plan(tensors, table=TABLE, scratch=scratch)
    return [f"ctx1 {launch_line(launch, STREAM)}" for launch in plan.launches]


@pytest.mark.parametrize("name", ALL_NODES)
def test_a_call_launches_what_the_plan_says(plugin_tools: Path, tmp_path: Path, name: str) -> None:
    """Decode and prefill, in order, with every argument; what they need is loaded before."""
    node = node_of(name)
    with PluginProcess(plugin_tools, make_pack(tmp_path, node), tmp_path / "log") as plugin:
        revive(plugin, node)
        assert plugin.driver_calls() == []
        for call in (DECODE, PREFILL, DECODE):
            tensors = node.tensors(*call)
            plugin.do(f"reshape x {words_of(tensors, node.inputs)}")
            ahead = {line.split()[1] for line in plugin.driver_calls()}
            assert ahead <= {"allocate", "copy", "synchronise", "load", "function"}
            for _ in range(2):
                plugin.do(enqueue_line(node, tensors))
                lines = plugin.driver_calls()
                assert lines == planned(node, tensors)
                assert lines


def test_calls_at_other_addresses_are_launched_there(plugin_tools: Path, tmp_path: Path) -> None:
    """Launches are kept from call to call, but not beyond a change."""
    node = node_of("subspace, slot 1")
    with PluginProcess(plugin_tools, make_pack(tmp_path, node), tmp_path / "log") as plugin:
        revive(plugin, node)
        tensors = node.tensors(*DECODE)
        plugin.do(f"reshape x {words_of(tensors, node.inputs)}")
        far = 0x40000000
        for shift, work in ((0, 0), (far, 0), (far, far), (0, far)):
            moved = {
                name: PlacedTensor(part.dtype, part.shape, part.address + shift)
                for name, part in tensors.items()
            }
            plugin.driver_calls()
            plugin.do(enqueue_line(node, moved, WORKSPACE + work))
            assert plugin.driver_calls() == planned(node, moved, WORKSPACE + work)


def test_the_workspace_is_used_from_a_multiple_of_256(plugin_tools: Path, tmp_path: Path) -> None:
    """Whatever TensorRT aligns it to; getWorkspaceSize has room for that."""
    node = node_of("exact, slot 0")
    with PluginProcess(plugin_tools, make_pack(tmp_path, node), tmp_path / "log") as plugin:
        revive(plugin, node)
        tensors = node.tensors(*DECODE)
        plugin.do(f"reshape x {words_of(tensors, node.inputs)}")
        plugin.driver_calls()
        plugin.do(enqueue_line(node, tensors, WORKSPACE + 16))
        assert plugin.driver_calls() == planned(node, tensors, WORKSPACE + 256)


def test_states_bound_apart_are_copied_first(plugin_tools: Path, tmp_path: Path) -> None:
    """A present state with memory of its own is what the kernels then update."""
    node = node_of("exact, slot 0")
    tensors = node.tensors(*DECODE)
    apart = dict(tensors)
    for name in node.states:
        part = tensors[name]
        apart[name] = PlacedTensor(part.dtype, part.shape, part.address + 0x40000000)
    line = enqueue_line(node, tensors).split(" > ")[0]
    line += " > " + output_words(node, apart, node.states)
    size = 2 * 2 * 2 * 32 * 32  # two rows, two heads, 32 tokens of 32 fp16
    copies = [
        f"ctx1 copy {size} from {tensors[name].address:x} to {apart[name].address:x} stream 51"
        for name in node.states
    ]
    with PluginProcess(plugin_tools, make_pack(tmp_path, node), tmp_path / "log") as plugin:
        revive(plugin, node)
        plugin.do(f"reshape x {words_of(tensors, node.inputs)}")
        plugin.driver_calls()
        plugin.do(line)
        assert plugin.driver_calls() == copies + planned(node, apart)


def test_nodes_contexts_and_engines_share_modules(plugin_tools: Path, tmp_path: Path) -> None:
    """Those of equal kernels; modules end with the last plugin, tables with each context."""
    node = node_of("exact, slot 0")
    tensors = node.tensors(*DECODE)
    engine, other = ("0", "1"), "2"
    contexts = ("x0", "y0", "x1", "y1", "x2")
    with PluginProcess(plugin_tools, make_pack(tmp_path, node), tmp_path / "log") as plugin:
        for name in (*engine, other):
            plugin.do(f"create b{name} layer build {node.fields(carries_kernels=int(name != '1'))}")
            plugin.do(f"revive b{name} e{name}")
        for name in (*engine, other):
            plugin.do(f"drop b{name}")
        plugin.do("context 1")
        for name in contexts:
            plugin.do(f"attach e{name[1]} {name}")
            plugin.do(f"reshape {name} {words_of(tensors, node.inputs)}")
        calls = [line.split()[1] for line in plugin.driver_calls()]
        assert calls.count("load") == len(node.keys(tensors))
        assert calls.count("allocate") == len(contexts)
        for name in ("e0", "e1", "e2", *contexts[:-1]):
            plugin.do(f"drop {name}")
        calls = [line.split()[1] for line in plugin.driver_calls()]
        assert calls == ["free"] * (len(contexts) - 1)
        plugin.do(f"drop {contexts[-1]}")
        calls = [line.split()[1] for line in plugin.driver_calls()]
        assert calls == ["free"] + ["unload"] * len(node.keys(tensors))


def test_kernels_that_never_came_are_told(plugin_tools: Path, tmp_path: Path) -> None:
    """A node finds those of its engine also when the carrying node comes after it."""
    node = node_of("exact, slot 0")
    line = f"reshape x {words_of(node.tensors(*DECODE), node.inputs)}"
    with PluginProcess(plugin_tools, make_pack(tmp_path, node), tmp_path / "log") as plugin:
        plugin.do(f"create built layer build {node.fields()}")
        plugin.do(f"create carrier layer build {node.fields(carries_kernels=1)}")
        plugin.do("revive built a")
        plugin.do("clone a x")
        plugin.do("drop built")
        plugin.do("context 1")
        plugin.do("revive carrier late")
        plugin.do("drop carrier")
        plugin.do("drop late")
        sentence = plugin.refuse(line)
        assert "MiniCacheAttention 'revived': the engine does not bring the kernels" in sentence
        assert "no node of it has carries_kernels = 1" in sentence
        assert plugin.driver_calls() == []
        plugin.do(f"create carrier layer build {node.fields(carries_kernels=1)}")
        plugin.do(line)


def test_nothing_touches_the_driver_while_an_engine_is_built(
    plugin_tools: Path, tmp_path: Path
) -> None:
    """There is none: contexts are attached and shapes changed all the same."""
    node = node_of("subspace, slot 1")
    tensors = node.tensors(*DECODE)
    with PluginProcess(plugin_tools, make_pack(tmp_path, node)) as plugin:
        plugin.do(f"create a layer build {node.fields()}")
        plugin.do("attach a x")
        plugin.do(f"configure x {len(node.outputs)} {profile_words(node, tensors)}")
        plugin.do(f"reshape x {words_of(tensors, node.inputs)}")
        plugin.do("fields x")
        sentence = plugin.refuse(enqueue_line(node, tensors))
        assert "libcuda.so.1 was not found" in sentence
        plugin.do("revive a b")
        sentence = plugin.refuse(f"reshape b {words_of(tensors, node.inputs)}")
        assert "libcuda.so.1 was not found" in sentence


def test_a_builder_may_time_the_plugin(plugin_tools: Path, tmp_path: Path) -> None:
    """Where there is a device: the plugin of the build phase launches as well."""
    node = node_of("exact, slot 0")
    tensors = node.tensors(*DECODE)
    with PluginProcess(plugin_tools, make_pack(tmp_path, node), tmp_path / "log") as plugin:
        plugin.do(f"create x layer build {node.fields()}")
        plugin.do(f"reshape x {words_of(tensors, node.inputs)}")
        assert plugin.driver_calls() == []
        plugin.do("context 1")
        plugin.do(enqueue_line(node, tensors))
        lines = [line for line in plugin.driver_calls() if " launch " in line]
        assert lines == planned(node, tensors)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"fail": "cuLaunchKernel:700"}, "cannot be launched (CUDA_ERROR_UNKNOWN"),
        ({"fail": "cuModuleLoadDataEx:209"}, "cannot be loaded (CUDA_ERROR_NO_BINARY_FOR_GPU"),
        ({"fail": "cuMemAlloc_v2:2"}, "does not fit into GPU memory (CUDA_ERROR_OUT_OF_MEMORY"),
        ({"capability": 75}, "the kernels need 8.0 or newer"),
    ],
)
def test_failures_of_the_driver_are_one_sentence(
    plugin_tools: Path, tmp_path: Path, told: dict[str, object], words: str
) -> None:
    """``enqueue`` says no, and does not throw."""
    node = node_of("exact, slot 0")
    pack = make_pack(tmp_path, node)
    with PluginProcess(plugin_tools, pack, tmp_path / "log", **told) as plugin:
        revive(plugin, node)
        sentence = plugin.refuse(enqueue_line(node, node.tensors(*DECODE)))
        assert sentence.startswith("MiniCacheAttention 'revived': ")
        assert words in sentence


def test_a_thread_without_context_is_told(plugin_tools: Path, tmp_path: Path) -> None:
    """As a sentence."""
    node = node_of("exact, slot 0")
    with PluginProcess(plugin_tools, make_pack(tmp_path, node), tmp_path / "log") as plugin:
        revive(plugin, node)
        plugin.do("context 0")
        line = f"reshape x {words_of(node.tensors(*DECODE), node.inputs)}"
        assert "this thread has no current CUDA context" in plugin.refuse(line)
