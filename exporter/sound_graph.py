"""What ONNX asks of a graph beyond its bytes, and what every walk over it relies on.

Nodes stand after what they read, none reads its own result, inputs and attributes are those that
their operator demands, weights as large as their shape. Files that were damaged or made by hand
break these rules.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir

from minicache.exporter.graph import describe
from minicache.exporter.operators import Operator, find_operator
from minicache.runtime.errors import ModelFileError

_HEADS = frozenset(("num_heads", "kv_num_heads", "q_num_heads"))
_MOST_HEADS = 65536
_LARGEST_SIZE = 2**31 - 1


def make_sound(model: ir.Model, file: Path) -> None:
    """Sorts the nodes, forgets sizes that none has, and refuses a graph that breaks the rules.

    Args:
        model: a model as it was read; afterwards every node stands after what it reads.
        file: for messages.

    Raises:
        ModelFileError: nodes read each other in a circle, lack an input or have an attribute of a
            wrong type, a weight is not as large as its shape, or two inputs have one name.
    """
    names = Counter(value.name for value in model.graph.inputs)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ModelFileError(
            f"{str(file)!r} is not a valid ONNX model: it has the input {twice!r} twice; copy or "
            "export it again"
        )
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                _check_size(value.const_value, f"the weight {value.name!r}", file)
    for node in model.graph.all_nodes():
        operator = find_operator(node.domain, node.op_type, model.opset_imports.get(node.domain, 1))
        _check_operands(node, operator, file)
        _check_attributes(node, operator, file)
        for value in node.outputs:
            _forget_sizes(value)
    for value in (*model.graph.inputs, *model.graph.outputs):
        _forget_sizes(value)
    try:
        model.graph.sort()
    except ValueError as error:
        ring = _in_circle(model.graph)
        raise ModelFileError(
            f"{str(file)!r} is not a valid ONNX model: {describe(ring) if ring else 'a node'} "
            "needs its own result; copy or export it again"
        ) from error


def _check_size(tensor: ir.TensorProtocol, what: str, file: Path) -> None:
    """Refuses a tensor whose numbers are not as many as its shape says; ``external`` has others."""
    if tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):  # they have no size
        return
    sizes = [size for size in tensor.shape if isinstance(size, int)]
    held = tensor.nbytes
    if isinstance(tensor, ir.TensorProtoTensor):
        proto: onnx.TensorProto = tensor.raw
        fields = (proto.float_data, proto.int32_data, proto.int64_data, proto.double_data)
        if proto.HasField("raw_data"):
            held = len(proto.raw_data)
        elif not any(fields) and not proto.uint64_data:
            held = 0
    if min(sizes, default=0) < 0 or held != tensor.nbytes:
        raise ModelFileError(
            f"{str(file)!r} is not a valid ONNX model: {what} of shape {sizes} "
            f"needs {tensor.nbytes} bytes and has {held}; copy or export it again"
        )


def _check_value(tensor: ir.TensorProtocol, what: str, file: Path) -> None:
    """Refuses the tensor of an attribute that has no type, or not the numbers of its shape."""
    texts = tensor.string_data() if isinstance(tensor, ir.StringTensor) else ()
    is_text = tensor.dtype == ir.DataType.STRING
    if tensor.dtype == ir.DataType.UNDEFINED or (is_text and len(texts) != tensor.size):
        raise ModelFileError(
            f"{str(file)!r} is not a valid ONNX model: {what} has no value; copy or export it again"
        )
    _check_size(tensor, what, file)


def _forget_sizes(value: ir.Value) -> None:
    """Takes stated sizes that no tensor has for unknown, as -1 often means.

    The shape inference of onnx takes them at their word, and may end the process over it.
    """
    if value.shape is None or value.is_initializer():
        return
    odd = [isinstance(size, int) and not 0 <= size <= _LARGEST_SIZE for size in value.shape]
    if any(odd):
        known = zip(odd, value.shape, strict=True)
        value.shape = ir.Shape([None if wrong else size for wrong, size in known])


def _check_operands(node: ir.Node, operator: Operator, file: Path) -> None:
    """Refuses a node without a result, or without an input that every node of its kind has."""
    missing = [i for i in operator.inputs if i >= len(node.inputs) or node.inputs[i] is None]
    if operator.repeated is not None:
        given = node.inputs[operator.repeated :]
        missing += [operator.repeated + i for i, value in enumerate(given) if value is None]
    bare = node.op_type == "Constant" and node.domain == "" and len(node.attributes) != 1
    if missing or bare or not node.outputs:
        what = f"input {missing[0]}" if missing else "its one value" if bare else "a result"
        raise ModelFileError(
            f"{str(file)!r} is not a valid ONNX model: {node.op_type} {node.name!r} lacks {what}; "
            "copy or export it again"
        )


def _check_attributes(node: ir.Node, operator: Operator, file: Path) -> None:
    for name, attribute in node.attributes.items():
        wanted = operator.attributes.get(name)
        untyped = attribute.type == ir.AttributeType.UNDEFINED
        if untyped or (wanted is not None and attribute.type != wanted):
            right = f", not {wanted.name}" if wanted is not None else ""
            raise ModelFileError(
                f"{str(file)!r} is not a valid ONNX model: the attribute {name!r} of "
                f"{describe(node)} has type {attribute.type.name}{right}; copy or export it again"
            )
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            # Not as_tensor(), which asks a tensor without a type for its size.
            _check_value(attribute.value, f"the {name} of {describe(node)}", file)
        heads = name in _HEADS and node.op_type.endswith("Attention")
        if heads and wanted == ir.AttributeType.INT and not 0 < attribute.as_int() <= _MOST_HEADS:
            raise ModelFileError(
                f"{str(file)!r} is not a valid ONNX model: {describe(node)} has {name} "
                f"{attribute.as_int()}, which is no number of heads; copy or export it again"
            )


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
