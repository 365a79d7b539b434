"""Every form is found with its facts; everything else is refused with a sentence that helps."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from minicache.exporter.find_attention import find_attention
from minicache.exporter.io import load_model, read_facts
from minicache.runtime.errors import UnsupportedModelError
from tests.exporter.form_graphs import GRAPHS
from tests.exporter.graphs import (
    EXPORTS,
    FIXTURES,
    REFUSED_EXPORTS,
    SHARED,
    Fixture,
    decomposed_model,
    make_model,
    single_node_model,
    value,
)


@pytest.mark.parametrize("fixture", EXPORTS, ids=lambda f: f.name)
def test_sites_of_real_exports(fixture: Fixture) -> None:
    found = find_attention(load_model(fixture.path), read_facts(fixture.path))
    assert (found.form, found.dtype, found.vocab_size) == (fixture.form, fixture.dtype, 512)
    assert [site.layer for site in found.sites] == list(range(fixture.layers))
    for site in found.sites:
        assert (site.num_heads, site.num_kv_heads, site.head_dim) == fixture.heads
        assert site.scale == pytest.approx(fixture.heads[2] ** -0.5, rel=1e-3)
        assert site.local_window == fixture.window
        assert site.softcap == 0
        assert site.rope_key
        assert (site.rope is not None) == (fixture.form == "F4")


@pytest.mark.parametrize("name", REFUSED_EXPORTS)
def test_unsupported_exports_are_refused(name: str) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip(f"the shared fixture {name} is not on this machine")
    with pytest.raises(UnsupportedModelError, match=REFUSED_EXPORTS[name]):
        find_attention(load_model(SHARED / name))


@pytest.mark.parametrize(
    ("op_type", "domain", "words"),
    [
        ("Attention", "com.microsoft", "fused com.microsoft Attention.*without attention fusion"),
        ("DecoderMaskedMultiHeadAttention", "com.microsoft", "without attention fusion"),
        ("TensorScatter", "", "static cache"),
        ("PagedAttention", "com.microsoft", "PagedAttention.*use_paged_attention"),
    ],
)
def test_known_operators_are_refused(op_type: str, domain: str, words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"the_node.*{words}"):
        find_attention(single_node_model(op_type, domain))


def test_static_cache_of_scatter() -> None:
    import onnx

    nodes = [
        onnx.helper.make_node("Cast", ["input_ids"], ["logits"], to=1),
        onnx.helper.make_node(
            "ScatterND", ["cache", "where", "new"], ["present"], name="write_cache"
        ),
    ]
    shape = [1, 2, 64, 4]
    inputs = [value("cache", shape), value("where", [1, 4], onnx.TensorProto.INT64)]
    inputs.append(value("new", [1]))
    with pytest.raises(UnsupportedModelError, match=r"write_cache.*static cache"):
        find_attention(make_model(nodes, inputs, [value("present", shape)]))


def test_no_cache_gives_the_optimum_command() -> None:
    with pytest.raises(UnsupportedModelError, match="text-generation-with-past"):
        find_attention(single_node_model("Softmax", past=False))


def test_old_opset() -> None:
    with pytest.raises(UnsupportedModelError, match="opset 11"):
        find_attention(single_node_model("Softmax", opset=11))


def test_encoder_decoder() -> None:
    model = decomposed_model()
    model.graph.inputs.append(ir.Value(name="encoder_hidden_states"))
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        find_attention(model)


@pytest.mark.parametrize(
    ("name", "axis", "words"),
    [
        ("input_ids", 0, "batches of exactly 8 rows"),
        ("input_ids", 1, "'input_ids' is made for exactly 8 tokens per call"),
        ("past.0.key", 2, "'past.0.key' is made for exactly 8 cached tokens"),
    ],
)
def test_fixed_sizes(name: str, axis: int, words: str) -> None:
    model = decomposed_model()
    value = next(value for value in model.graph.inputs if value.name == name)
    dims = list(value.shape or ())
    dims[axis] = 8
    value.shape = ir.Shape(dims)
    with pytest.raises(UnsupportedModelError, match=f"{words}; export the model with dynamic axes"):
        find_attention(model)


def test_a_cache_of_other_heads_than_its_attention() -> None:
    model = GRAPHS["Attention of three dimensions"].model()
    value = next(value for value in model.graph.inputs if value.name == "past.0.key")
    value.shape = ir.Shape(["batch", 1, "past", 4])
    with pytest.raises(
        UnsupportedModelError, match=r"'past\.0\.key' has 1 heads of 4, but .* 2 of 4"
    ):
        find_attention(model)


def test_no_input_ids() -> None:
    model = decomposed_model()
    model.graph.inputs[0].name = "inputs_embeds"
    with pytest.raises(UnsupportedModelError, match="inputs_embeds"):
        find_attention(model)


def test_hand_made_layer() -> None:
    (site,) = find_attention(decomposed_model()).sites
    assert (site.num_heads, site.num_kv_heads, site.head_dim) == (2, 2, 4)
    assert (site.scale, site.local_window, site.rope_key) == (0.5, 0, "")


def test_what_stands_in_the_way_is_named() -> None:
    model = decomposed_model()
    softmax = next(node for node in model.graph if node.op_type == "Softmax")
    odd = ir.node("Sigmoid", [softmax.inputs[0]], name="odd_one")
    model.graph.insert_before(softmax, odd)
    softmax.replace_input_with(0, odd.outputs[0])
    with pytest.raises(UnsupportedModelError, match="Sigmoid 'odd_one' stands between"):
        find_attention(model)


def _group_query(**attributes: object) -> ir.Model:
    model = load_model(FIXTURES / "genai-llama2-mha-cpu-fp32")
    node = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
    for name, content in attributes.items():
        node.attributes[name] = ir.convenience.convert_attribute(name, content)  # type: ignore[arg-type]
    return model


def test_a_quantised_cache_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="k_quant_type 'PER_TENSOR'"):
        find_attention(_group_query(k_quant_type="PER_TENSOR"))


def test_smooth_softmax_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="smooth_softmax 1"):
        find_attention(_group_query(smooth_softmax=1))


def test_window_and_softcap_of_group_query() -> None:
    site = find_attention(_group_query(local_window_size=8, softcap=30.0)).sites[0]
    assert (site.local_window, site.softcap) == (8, 30.0)
