"""Graph forms that are recognised only to be refused, each with the command that helps."""

from __future__ import annotations

import re

import onnx_ir as ir

from minicache.exporter.graph import describe
from minicache.exporter.schemas import DOMAIN
from minicache.runtime.errors import UnsupportedModelError

EXPORT = "`optimum-cli export onnx --model MODEL --task text-generation-with-past OUTPUT`"
BUILDER = "`python -m onnxruntime_genai.models.builder -m MODEL -o OUTPUT -p fp16 -e cpu`"

# Names that the rewritten graph has of its own.
_OURS = re.compile(
    r"(past_lengths|total_lengths|logit_positions|minicache/.*|(past|present)_minicache\..*)"
)
# (domain, operator) -> (form, what it is, what to do)
_OPERATORS: dict[tuple[str, str], tuple[str, str, str]] = {
    ("com.microsoft", "Attention"): (
        "F5",
        "a fused com.microsoft Attention, which keeps all of the cache in one tensor",
        f"export without attention fusion, e.g. {EXPORT}",
    ),
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): (
        "F5",
        "com.microsoft DecoderMaskedMultiHeadAttention, made for shared GPU buffers",
        f"export without attention fusion, e.g. {EXPORT}",
    ),
    ("", "TensorScatter"): (
        "F6",
        "a static cache written by TensorScatter",
        f"export with a growing cache, e.g. {EXPORT}",
    ),
    ("com.microsoft", "PagedAttention"): (
        "F7",
        "PagedAttention with a block pool",
        f"build without use_paged_attention, e.g. {BUILDER}",
    ),
}


def refuse_known(model: ir.Model) -> None:
    """Raises for a graph whose attention is of a known, unsupported form.

    Raises:
        UnsupportedModelError: names the form, a node, and the command that gives a supported one.
    """
    for node in model.graph:
        if node.op_type == "If" and any(
            "present" in (value.name or "") for value in node.outputs if value.is_graph_output()
        ):
            raise UnsupportedModelError(
                f"{describe(node)} switches between two decoders (merged model, F8); use "
                f"decoder_with_past_model.onnx's source and export again: {EXPORT}"
            )
    # TensorScatter comes before the Attention that reads it: the static cache is the better hint.
    found = {(node.domain, node.op_type): node for node in model.graph}
    order = sorted(_OPERATORS, key=lambda key: _OPERATORS[key][0], reverse=True)
    for key in order:
        if key in found:
            form, what, remedy = _OPERATORS[key]
            raise UnsupportedModelError(f"{describe(found[key])} is {what} ({form}); {remedy}")
    for value in model.graph.outputs:
        writer = _writer(value)
        if writer is not None and writer.op_type in ("ScatterND", "ScatterElements"):
            raise UnsupportedModelError(
                f"{describe(writer)} writes a static cache (F6) to {value.name!r}; "
                f"export with a growing cache, e.g. {EXPORT}"
            )


def _writer(value: ir.Value) -> ir.Node | None:
    node = value.producer()
    while node is not None and node.op_type in ("Transpose", "Reshape", "Identity", "Cast"):
        source = node.inputs[0]
        node = None if source is None else source.producer()
    return node


def refuse_inputs(model: ir.Model) -> None:
    """Raises for graphs that are not a decoder with input tokens.

    Raises:
        UnsupportedModelError: our own export, an encoder-decoder model, no ``input_ids``, or a
            name that we need.
    """
    names = [value.name or "" for value in model.graph.inputs]
    if any(node.domain == DOMAIN for node in model.graph):
        raise UnsupportedModelError(
            "The graph is already an export of minicache; give the original model it was made from"
        )
    if any(name.startswith("encoder_") or ".encoder." in name for name in names):
        raise UnsupportedModelError(
            f"The graph reads {next(n for n in names if 'encoder' in n)!r}: it is the decoder of "
            "an encoder-decoder model; only decoder-only language models are supported"
        )
    if "input_ids" not in names:
        raise UnsupportedModelError(
            f"The graph has no input 'input_ids' but {', '.join(map(repr, names[:3]))}; "
            f"export a text model from tokens, e.g. {EXPORT}"
        )
    names += [value.name or "" for node in model.graph for value in node.outputs]
    ours = next(filter(_OURS.fullmatch, (*names, *model.graph.initializers)), None)
    if ours is not None:
        raise UnsupportedModelError(
            f"The graph has a value of the name {ours!r}, which the rewritten graph uses for "
            "itself; export it with another name"
        )


def refuse_no_cache(model: ir.Model) -> UnsupportedModelError:
    """The error for a graph in which no cache was found."""
    pasts = [value.name for value in model.graph.inputs if len(value.shape or ()) == 4]
    if not pasts:
        return UnsupportedModelError(
            "The graph has no past key/value inputs: it was exported without a cache; "
            f"export it again with {EXPORT}"
        )
    return UnsupportedModelError(
        f"The graph has cache inputs ({pasts[0]!r}, ...), but none enters a Concat(axis=2) that is "
        "returned (F1, F2, F5), an ai.onnx Attention (F3), a MultiHeadAttention (F5) or a "
        f"GroupQueryAttention (F4); export it again with {EXPORT}"
    )
