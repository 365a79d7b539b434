"""What ONNX asks of a graph beyond its bytes, and what every walk over it relies on.

Nodes stand after what they read, none reads its own result, and attributes have the type that their
operator says. Files that were damaged or made by hand break these rules.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir

from minicache.exporter.graph import describe
from minicache.runtime.errors import ModelFileError

# Of the com.microsoft operators that we look into; onnx itself knows those of ai.onnx.
# fmt: off
_INTEGERS = (
    "num_heads", "kv_num_heads", "do_rotary", "rotary_interleaved", "local_window_size",
    "smooth_softmax", "qk_output", "causal", "unidirectional", "sliding_window_cache",
    "kv_cache_bit_width", "K", "N", "bits", "block_size", "accuracy_level", "interleaved",
    "rotary_embedding_dim", "is_packed_batching",
)
# fmt: on
_HEADS = frozenset(("num_heads", "kv_num_heads", "q_num_heads"))
_MOST_HEADS = 65536
_CONTRIB = {
    **dict.fromkeys(_INTEGERS, ir.AttributeType.INT),
    **dict.fromkeys(("scale", "softcap", "epsilon", "mask_filter_value"), ir.AttributeType.FLOAT),
    **dict.fromkeys(("k_quant_type", "v_quant_type"), ir.AttributeType.STRING),
}


def make_sound(model: ir.Model, file: Path) -> None:
    """Sorts the nodes, and refuses a graph that breaks the rules.

    Args:
        model: a model as it was read; afterwards every node stands after what it reads.
        file: for messages.

    Raises:
        ModelFileError: nodes read each other in a circle, an attribute has a wrong type, or there
            are two inputs of one name.
    """
    names = Counter(value.name for value in model.graph.inputs)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ModelFileError(
            f"{str(file)!r} is not a valid ONNX model: it has the input {twice!r} twice; copy or "
            "export it again"
        )
    for node in model.graph.all_nodes():
        _check_attributes(node, model.opset_imports.get(node.domain, 1), file)
    try:
        model.graph.sort()
    except ValueError as error:
        ring = _in_circle(model.graph)
        raise ModelFileError(
            f"{str(file)!r} is not a valid ONNX model: {describe(ring) if ring else 'a node'} "
            "needs its own result; copy or export it again"
        ) from error


def _check_attributes(node: ir.Node, version: int, file: Path) -> None:
    known = _CONTRIB if node.domain == "com.microsoft" else _known(node.op_type, version)
    for name, attribute in node.attributes.items():
        wanted = known.get(name) if node.domain in ("", "ai.onnx", "com.microsoft") else None
        if wanted is not None and attribute.type != wanted:
            raise ModelFileError(
                f"{str(file)!r} is not a valid ONNX model: the attribute {name!r} of "
                f"{describe(node)} has type {attribute.type.name}, not {wanted.name}; copy or "
                "export it again"
            )
        heads = name in _HEADS and node.op_type.endswith("Attention")
        if heads and wanted == ir.AttributeType.INT and not 0 < attribute.as_int() <= _MOST_HEADS:
            raise ModelFileError(
                f"{str(file)!r} is not a valid ONNX model: {describe(node)} has {name} "
                f"{attribute.as_int()}, which is no number of heads; copy or export it again"
            )


@functools.cache
def _known(op_type: str, version: int) -> dict[str, ir.AttributeType]:
    """The types of an ai.onnx operator's attributes; empty for one that onnx does not know."""
    try:
        schema = onnx.defs.get_schema(op_type, version, "")
    except Exception:  # of an operator or opset that this onnx does not have; its type is no API
        return {}
    kinds = {name: int(a.type) for name, a in schema.attributes.items()}  # type: ignore[call-overload]
    return {name: ir.AttributeType(kind) for name, kind in kinds.items()}


def _in_circle(graph: ir.Graph) -> ir.Node | None:
    """A node that depends on itself; None where only subgraphs close the circle."""
    left, before = dict.fromkeys(graph), -1
    while len(left) != before:
        before = len(left)
        for node in list(left):
            if not any(source in left for source in node.predecessors()):
                del left[node]
    seen: set[ir.Node] = set()
    at = next(iter(left), None)
    while at is not None and at not in seen:
        seen.add(at)
        at = next((source for source in at.predecessors() if source in left), None)
    return at
