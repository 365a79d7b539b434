"""Attributes and kernels of the plugin: from a graph, into an engine, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minicache.exporter import schemas
from tests.plugins.trt.plugin_process import PluginProcess
from tests.plugins.trt.trt_node import ALL_NODES, TrtNode, node_of, write_fake_pack

# nvinfer1::PluginFieldType
FIELD_TYPES = {"int": 5, "ints": 5, "float": 1, "string": 6}
PARSER_ONLY = {"plugin_namespace", "plugin_version"}  # TensorRT's parser keeps these to itself
SMALL = TrtNode({"num_heads": 4, "kv_num_heads": 2, "head_size": 32})
BARE = "num_heads=i:4 kv_num_heads=i:2 head_size=i:32"


def fields_of(text: str) -> dict[str, str]:
    """What the driver's ``fields`` answers, by name."""
    return dict(word.split("=", 1) for word in text.split())


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A folder of kernels."""
    return write_fake_pack(tmp_path / "kernels", SMALL.keys(SMALL.tensors()))


def test_the_creator_knows_the_attributes_of_the_schema(plugin_tools: Path) -> None:
    """By name and type; its own name, version and namespace are those of the operator."""
    with PluginProcess(plugin_tools) as plugin:
        name, version, namespace, *fields = plugin.do("creator").split()
        assert (name, version, namespace) == (
            schemas.OP_TYPE,
            str(schemas.VERSION),
            schemas.DOMAIN,
        )
        expected = {
            attribute.name: FIELD_TYPES[attribute.kind]
            for attribute in (*schemas.ATTRIBUTES, *schemas.PLUGIN_ATTRIBUTES)
            if attribute.name not in PARSER_ONLY
        }
        found = {field.split(":")[0]: int(field.split(":")[1]) for field in fields}
        assert found == expected
        assert len(fields) == len(expected)


def test_absent_attributes_have_the_defaults_of_the_schema(plugin_tools: Path, pack: Path) -> None:
    """A node with the required attributes alone."""
    with PluginProcess(plugin_tools, pack) as plugin:
        plugin.do(f"create a layer build {BARE}")
        found = fields_of(plugin.do("fields a"))
    for attribute in schemas.ATTRIBUTES:
        if attribute.default is None:
            continue
        kind, _, value = found.get(attribute.name, "l:").partition(":")
        if attribute.kind == "float":
            assert np.float32(value) == np.float32(attribute.default), attribute.name
        elif attribute.kind == "ints":
            assert value == ",".join(map(str, attribute.default)), attribute.name
        else:
            assert value == str(attribute.default), attribute.name
            assert kind == ("s" if attribute.kind == "string" else "l"), attribute.name


@pytest.mark.parametrize("name", ALL_NODES)
def test_what_an_engine_holds_makes_the_same_plugin(
    plugin_tools: Path, pack: Path, name: str
) -> None:
    """Every attribute of every mode, through the engine and through a clone."""
    node = node_of(name)
    with PluginProcess(plugin_tools, pack) as plugin:
        plugin.do(f"create a layer build {node.fields(carries_kernels=1)}")
        plugin.do("revive a b")
        plugin.do("clone b c")
        plugin.do("attach a d")
        original = plugin.do("fields a")
        for other in "bcd":
            assert plugin.do(f"fields {other}") == original
            assert plugin.do(f"describe {other}") == plugin.do("describe a")
            assert plugin.do(f"aliases {other}") == plugin.do("aliases a")
        found = fields_of(original)
        for attribute in schemas.ATTRIBUTES:
            value = node.attributes[attribute.name]
            if attribute.kind == "ints":
                text = ",".join(map(str, value))
                assert found.get(attribute.name, "l:") == f"l:{text}", attribute.name
            elif attribute.kind == "float":
                assert np.float32(found[attribute.name][2:]) == np.float32(value), attribute.name
            else:
                assert found[attribute.name][2:] == str(value), attribute.name


def test_one_node_of_an_engine_carries_the_kernels(plugin_tools: Path, pack: Path) -> None:
    """The others have their digest; both are found without the environment variable."""
    size = (pack / "kernels.bin").stat().st_size
    with PluginProcess(plugin_tools, pack) as plugin:
        plugin.do(f"create first layer0 build {BARE} carries_kernels=i:1")
        plugin.do(f"create second layer1 build {BARE}")
        first, second = (fields_of(plugin.do(f"fields {name}")) for name in ("first", "second"))
    assert first["kernels"] == f"bytes:{size}"
    assert first["carries_kernels"] == "l:1"
    assert "kernels" not in second
    assert first["kernels_digest"] == second["kernels_digest"] != "s:"


def test_another_pack_has_another_digest(plugin_tools: Path, pack: Path, tmp_path: Path) -> None:
    """Engines with different kernels do not take each other's."""
    other = write_fake_pack(tmp_path / "other", SMALL.keys(SMALL.tensors(tokens=40)))
    digests = set()
    for folder in (pack, other, other / "kernels.bin"):  # a file may be named as well
        with PluginProcess(plugin_tools, folder) as plugin:
            plugin.do(f"create a layer build {BARE}")
            digests.add(fields_of(plugin.do("fields a"))["kernels_digest"])
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("kv_num_heads=i:2 head_size=i:32", "num_heads is 0, not positive"),
        (f"{BARE} mode=s:fast", "mode is 'fast', not one of exact, slerp, subspace"),
        (f"{BARE} mode=i:1", "field 'mode' is no text (field type 5, 1 entries)"),
        (f"{BARE} window=f:4", "field 'window' is no integer (field type 1, 1 entries)"),
        (f"{BARE} window=i:4,5", "field 'window' is no integer (field type 5, 2 entries)"),
        (f"{BARE} scale=d:0.5", "field 'scale' is no float"),
        (f"{BARE} key_bits=s:8", "field 'key_bits' is no list of integers"),
        (
            f"{BARE} mode=s:slerp group_size=i:2 key_bits=i:8,32 value_bits=i:8,32 "
            "code_layout=s:tile",
            "the CUDA kernels read 'row'",
        ),
    ],
)
def test_fields_that_make_no_node_are_refused(
    plugin_tools: Path, pack: Path, fields: str, words: str
) -> None:
    """One sentence, with the layer's name; TensorRT gets no plugin."""
    with PluginProcess(plugin_tools, pack) as plugin:
        sentence = plugin.refuse(f"create a layer7 build {fields}")
    assert sentence.startswith("MiniCacheAttention 'layer7': ")
    assert words in sentence


def test_texts_may_end_with_a_zero(plugin_tools: Path, pack: Path) -> None:
    """As C has them."""
    with PluginProcess(plugin_tools, pack) as plugin:
        plugin.do(f"create a layer build {BARE} mode=z:exact")
        assert fields_of(plugin.do("fields a"))["mode"] == "s:exact"


def test_kernels_have_to_be_named_while_an_engine_is_built(
    plugin_tools: Path, tmp_path: Path
) -> None:
    """The sentence names the variable; a wrong one is quoted with what is wrong about it."""
    with PluginProcess(plugin_tools) as plugin:
        assert "variable MINICACHE_KERNELS is not set" in plugin.refuse(f"create a l build {BARE}")
    for name, content, words in (
        ("none", None, "cannot be read: No such file or directory"),
        ("text", b"text", "is no kernel pack"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with PluginProcess(plugin_tools, path) as plugin:
            sentence = plugin.refuse(f"create a l build {BARE}")
        assert f"variable MINICACHE_KERNELS names '{path}': kernel pack '{path}'" in sentence
        assert words in sentence


def test_damaged_kernels_of_an_engine_are_refused(plugin_tools: Path, pack: Path) -> None:
    """By their digest, which every node has."""
    with PluginProcess(plugin_tools, pack) as plugin:
        plugin.do(f"create a layer build {BARE} carries_kernels=i:1")
        sentence = plugin.refuse("revive a b damage kernels")
        assert "the kernels in the engine are damaged: their digest is" in sentence
        sentence = plugin.refuse("revive a b without kernels_digest")
        assert "the engine names no kernels" in sentence


def test_without_a_logger_sentences_go_to_standard_error(plugin_tools: Path) -> None:
    """TensorRT need not pass a logger to a library that is loaded by hand."""
    with PluginProcess(plugin_tools) as plugin:
        plugin.do("logger off")
        assert plugin.refuse(f"create a layer build {BARE}") == ""
        assert "MINICACHE_KERNELS is not set" in plugin.close()
