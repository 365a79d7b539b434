"""What the plugin answers while a network is built: outputs, types, shapes, formats, workspace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from minicache.exporter import schemas
from tests.plugins.trt.plugin_process import PluginProcess
from tests.plugins.trt.trt_node import (
    ALL_NODES,
    TrtNode,
    node_of,
    profile_words,
    write_fake_pack,
)

TYPES = ("float32", "float16", "bfloat16", "int8", "int32", "int64", "bool", "uint8", "fp8",
         "int4", "fp4")  # fmt: skip
ACCEPTED = {
    "T": {"float16", "bfloat16"},
    "T|fp16": {"float16", "bfloat16"},
    "fp32|fp16": {"float32", "float16"},
    "int32": {"int32"},
    "int8": {"int8"},
    "fp16": {"float16"},
    "fp32": {"float32"},
}


def create(plugin: PluginProcess, node: TrtNode, name: str = "a") -> None:
    """Makes the plugin of a node."""
    plugin.do(f"create {name} layer build {node.fields()}")


def make_pack(folder: Path, node: TrtNode) -> Path:
    """The kernels that a node's calls of up to 40 tokens launch."""
    calls = [node.tensors(batch, tokens) for batch in (1, 2) for tokens in (1, 4, 40)]
    return write_fake_pack(folder / "kernels", node.keys(*calls))


def schema_types(node: TrtNode) -> dict[str, str]:
    """The schema's type of each input."""
    listed = {tensor.name: tensor.dtype for tensor in schemas.INPUTS}
    listed |= {f"past_{state.name}": state.dtype for state in schemas.STATES}
    return {name: listed.get(name, "T") for name in node.inputs}


@pytest.mark.parametrize("name", ALL_NODES)
def test_outputs_are_attention_and_the_states_at_their_places(
    plugin_tools: Path, tmp_path: Path, name: str
) -> None:
    """Number, aliased inputs, types and shapes follow the schema, on readers as on writers."""
    node = node_of(name)
    with PluginProcess(plugin_tools, make_pack(tmp_path, node)) as plugin:
        create(plugin, node)
        places = [-1] + [node.inputs.index(state) for state in node.states]
        assert [f"present_{state[5:]}" for state in node.states] == node.outputs[1:]
        assert plugin.do("aliases a") == " ".join(map(str, places))
        tensors = node.tensors()
        types = [tensors[name].dtype for name in node.inputs]
        expected = [tensors[name].dtype for name in ("attention", *node.states)]
        count = len(node.outputs)
        assert plugin.do(f"types a {count} {' '.join(types)}") == " ".join(expected)
        ranks = [len(tensors[name].shape) for name in node.inputs]
        dims = [",".join(f"{place}.{i}" for i in range(ranks[place])) for place in (0, *places[1:])]
        assert plugin.do(f"shapes a {count} {' '.join(map(str, ranks))}") == " ".join(dims)


@pytest.mark.parametrize("name", ALL_NODES)
def test_formats_are_those_of_the_schema(plugin_tools: Path, tmp_path: Path, name: str) -> None:
    """Every type at every place, in linear layout alone; outputs have the type of their input."""
    node = node_of(name)
    wanted, tensors = schema_types(node), node.tensors()
    places = [*node.inputs, "attention", *node.states]
    same = {"past_exact_value": "past_exact_key", "past_retained_key": "past_exact_key",
            "past_retained_value": "past_exact_key", "attention": "query"}  # fmt: skip
    with PluginProcess(plugin_tools, make_pack(tmp_path, node)) as plugin:
        create(plugin, node)

        def supports(place: int, dtype: str, layout: str = "") -> bool:
            # What comes behind the place that is asked for is not known yet: nonsense.
            words = [f"{tensors[name].dtype}:1" for name in places[:place]]
            words += [f"{dtype}{layout}:1"] + ["bool:1"] * (len(places) - place - 1)
            line = f"supports a {len(node.inputs)} {place} {' '.join(words)}"
            return plugin.do(line) == "yes"

        for place, name in enumerate(places):
            accepted = {tensors[name].dtype}
            follows = place > 0 and (name in same or wanted.get(name) == "T")
            if place < len(node.inputs) and not follows:
                accepted = ACCEPTED[wanted[name]]
            for dtype in TYPES:
                assert supports(place, dtype) == (dtype in accepted), (name, dtype)
            assert not supports(place, tensors[name].dtype, "/chw32"), name


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ({"query": "float32", "key": "float32", "value": "float32"},
         "the model is of type float, the CUDA kernels take float16 and bfloat16"),
        ({"key": "bfloat16"}, "'key' has type bfloat16, wanted that of query, float16"),
        ({"past_lengths": "int64"}, "'past_lengths' has type of another kind, wanted int32"),
        ({"past_key_code": "uint8"}, "'past_key_code' has type of another kind, wanted int8"),
        ({"past_exact_key": "float32"}, "'past_exact_key' has type float, the CUDA kernels take"),
        ({"past_exact_value": "bfloat16"}, "'past_exact_value' have different types"),
        ({"past_retained_key": "bfloat16"}, "'past_retained_key' has type bfloat16, the CUDA"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_told_when_the_network_is_made(
    plugin_tools: Path, tmp_path: Path, types: dict[str, str], words: str
) -> None:
    """Before TensorRT says that it finds no supported format."""
    node = node_of("budget, slot 0")
    tensors = node.tensors()
    given = " ".join(types.get(name, tensors[name].dtype) for name in node.inputs)
    with PluginProcess(plugin_tools, make_pack(tmp_path, node)) as plugin:
        create(plugin, node)
        sentence = plugin.refuse(f"types a {len(node.outputs)} {given}")
    assert sentence.startswith("MiniCacheAttention 'layer': ")
    assert words in sentence


def test_a_wrong_number_of_inputs_or_outputs_is_told(plugin_tools: Path, tmp_path: Path) -> None:
    """With the names that the attributes ask for."""
    node = node_of("exact, slot 0")
    with PluginProcess(plugin_tools, make_pack(tmp_path, node)) as plugin:
        create(plugin, node)
        names = ", ".join(node.inputs)
        sentence = plugin.refuse("shapes a 3 3 3 3 1 1 5")
        assert f"the node has 6 inputs, its attributes ask for 7: {names}" in sentence
        sentence = plugin.refuse("shapes a 1 3 3 3 1 1 5 5")
        assert "has 1 outputs, on TensorRT it returns the attention and 2 states" in sentence


@pytest.mark.parametrize("name", ALL_NODES)
def test_a_profile_is_taken_without_a_driver(plugin_tools: Path, tmp_path: Path, name: str) -> None:
    """Where the pack has the kernels; where it lacks one, the build says so and not the device."""
    node = node_of(name)
    small, large = node.tensors(1, 1, 16), node.tensors(2, 40)
    keys, outputs = node.keys(small, large), len(node.outputs)
    few = f"configure a {outputs} {profile_words(node, small, small, large)}"
    many = f"configure a {outputs} {profile_words(node, small, large, large)}"
    with PluginProcess(plugin_tools, write_fake_pack(tmp_path / "all", keys)) as plugin:
        create(plugin, node)
        plugin.do(few)
        plugin.do(many)
    for line, only in ((few, keys - node.keys(small)), (many, keys - node.keys(large))):
        lacking = min(only)
        part = write_fake_pack(tmp_path / lacking[:20].replace("|", "-"), keys - {lacking})
        with PluginProcess(plugin_tools, part) as plugin:
            create(plugin, node)
            assert f"has no kernel '{lacking}'; export the model again" in plugin.refuse(line)


def test_a_profile_of_wrong_shapes_is_refused(plugin_tools: Path, tmp_path: Path) -> None:
    """With the tensor, the shape it has and the one it should have."""
    node = node_of("subspace, slot 1")
    calls = [node.tensors(), node.tensors(), node.tensors()]
    line = f"configure a {len(node.outputs)} {profile_words(node, *calls)}"
    for right, wrong, words in (
        ("float16:1x1x64", "float16:1x1x60", "wanted [1, 1, 64]"),
        ("int8:1x2x32", "int8:1x2x24", "wanted [1, 2, 24, 1]"),
    ):
        assert right in line
        with PluginProcess(plugin_tools, make_pack(tmp_path, node)) as plugin:
            create(plugin, node)
            sentence = plugin.refuse(line.replace(right, wrong))
        assert "MiniCacheAttention 'layer': input" in sentence
        assert words in sentence


@pytest.mark.parametrize("name", ALL_NODES)
def test_the_workspace_is_enough_for_every_smaller_call(
    plugin_tools: Path, tmp_path: Path, name: str
) -> None:
    """Also for calls that need more than the largest, being cut into more splits."""
    node = node_of(name)
    most = (3, 70, 2048)
    dice = random.Random(name)
    tokens = (1, 1, 2, 5, 16, 17, 33, 69, 70)
    calls = [
        (dice.randint(1, 3), dice.choice(tokens), 16 * dice.randint(1, 128)) for _ in range(25)
    ]
    calls += [(1, 1, 2048), (3, 1, 2048), (1, 70, 2048), most]
    check_workspace(PluginProcess(plugin_tools, make_pack(tmp_path, node)), node, most, calls)


@pytest.mark.parametrize("smaller", [(53, 1, 2048), (54, 1, 2032)])
def test_the_workspace_is_enough_for_calls_that_are_split_more(
    plugin_tools: Path, tmp_path: Path, smaller: tuple[int, int, int]
) -> None:
    """A row less, and a third split is worth while."""
    node, most = node_of("exact, slot 0"), (54, 1, 2048)
    needs = [node.plan(node.tensors(*call)).scratch for call in ((53, 1, 2048), most)]
    assert needs[0] > needs[1]
    calls = [smaller, most]
    check_workspace(PluginProcess(plugin_tools, make_pack(tmp_path, node)), node, most, calls)


def test_the_workspace_is_enough_for_calls_that_are_cut(plugin_tools: Path, tmp_path: Path) -> None:
    """Scratch for a chunk of new tokens depends on the capacity in steps."""
    node = node_of("subspace, slot 1")
    most = (64, 256, 4096)
    calls = [(64, 256, 4096 - 16 * step) for step in range(0, 60, 3)]
    check_workspace(PluginProcess(plugin_tools, make_pack(tmp_path, node)), node, most, calls)


def check_workspace(
    plugin: PluginProcess,
    node: TrtNode,
    most: tuple[int, int, int],
    calls: Sequence[tuple[int, int, int]],
) -> None:
    """Compares what the plugin asks for with what smaller calls need; it should not waste much."""
    needs = {call: node.plan(node.tensors(*call)).scratch for call in calls}
    with plugin:
        create(plugin, node)
        given = int(plugin.do(f"workspace a {profile_words(node, node.tensors(*most))}"))
    assert all(need + 256 <= given for need in needs.values()), (given, needs)
    assert given <= 2 * max(needs.values()) + 4096, "far more than any of these calls needs"
