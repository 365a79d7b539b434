"""How much an error in a value vector matters: O = W W^T of the output projection that reads it.

An error e in a value of kv head h reaches the residual stream as p * W_q^T e through each query
head q that reads h, so that its squared length there is e^T (sum_q W_q W_q^T) e. W is found
numerically: the linear node behind the attention is run on the identity, whatever its kind and
storage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from minicache.exporter.calibration.exact_layers import ExactLayer
from minicache.exporter.graph import data_uses, describe
from minicache.exporter.probe import evaluate
from minicache.runtime.errors import UnsupportedModelError

Array = npt.NDArray[Any]

LINEAR = frozenset({"MatMul", "Gemm", "MatMulNBits", "FusedMatMul", "MatMulBnb4"})
_PASSED = frozenset({"Reshape", "Cast", "Identity"})


def output_metric(model: ir.Model, layer: ExactLayer) -> tuple[Array, str]:
    """The value metric of one layer.

    Args:
        model: as ``normalise`` makes it, or loaded from an exact export's folder; unchanged.
        layer: one of its layers.

    Returns:
        ``[Hk, D, D]`` fp64, and a note for the report: empty, or why it is the identity.
    """
    heads, size = layer.num_kv_heads, layer.head_dim
    found = _linear(layer.node.outputs[0])
    if isinstance(found, str):
        return _identity(heads, size, layer, found)
    try:
        weight = _weight(model, found, layer.num_heads * size)
    except UnsupportedModelError as error:
        return _identity(heads, size, layer, str(error))
    if not np.isfinite(weight).all():
        return _identity(heads, size, layer, f"the weight of {describe(found)} is not finite")
    # [Hk, query heads per kv head, D, E]
    slices = weight.astype(np.float64).reshape(heads, layer.num_heads // heads, size, -1)
    return np.einsum("hgij->hij", slices @ np.swapaxes(slices, -1, -2)), ""


def _identity(heads: int, size: int, layer: ExactLayer, reason: str) -> tuple[Array, str]:
    note = f"layer {layer.layer}: values are weighted evenly, {reason}"
    return np.tile(np.eye(size), (heads, 1, 1)), note


def _linear(value: ir.Value) -> ir.Node | str:
    """The one linear node that reads the attention output, or what was found instead."""
    while True:
        uses = data_uses(value)
        if len(uses) != 1:
            return f"its output is read by {len(uses)} nodes, not by one projection"
        node, index = uses[0]
        if node.op_type in LINEAR and index == 0:
            return node
        if node.op_type not in _PASSED or index != 0:
            return f"its output goes into {describe(node)}, which is no linear projection"
        value = node.outputs[0]


def _weight(model: ir.Model, node: ir.Node, width: int) -> Array:
    """The effective weight ``[H * D, E]``; a bias cancels out."""
    source = node.inputs[0]
    assert source is not None
    kind = (source.dtype or ir.DataType.FLOAT).numpy()
    # Row 0 is the zero input. 4-bit kernels that round activations are exact on single ones.
    rows = np.concatenate([np.zeros((1, width)), np.eye(width)]).astype(kind)
    fed = rows if node.op_type == "Gemm" else rows[None]
    (result,) = evaluate(model, [node.outputs[0]], {source: fed})
    response = np.asarray(result, np.float32).reshape(width + 1, -1)
    weight: Array = response[1:] - response[:1]
    return weight
