"""What a model makes keys and values from: the projections of every layer, and its RoPE.

They are found by running the graph of an exact export on the rows of the identity, whatever nodes
compute them: packed or 4-bit projections are the same as plain ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from minicache.exporter.calibration.exact_layers import ExactLayer, find_exact_layers, full_layers
from minicache.exporter.calibration.output_metric import LINEAR
from minicache.exporter.calibration.rope_probe import Rope, probe_rope
from minicache.exporter.graph import describe
from minicache.exporter.probe import evaluate
from minicache.runtime.errors import UnsupportedModelError
from minicache.runtime.manifest import Manifest

Array = npt.NDArray[Any]

PASSED = frozenset({"Reshape", "Transpose", "Cast", "Identity", "Add", "Split", "Slice"})
# Inputs that may hold a norm's weight; a norm of single nodes ends with a product.
NORM_WEIGHT = {
    "Mul": (0, 1),
    "LayerNormalization": (1,),
    "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
    "SkipSimplifiedLayerNormalization": (2,),
}
NONLINEAR = 1e-2  # relative; fp16 projections are linear to 1e-3


@dataclass(frozen=True)
class Projection:
    """How one layer makes its keys and values of its input X (after the norm): X W + bias.

    Attributes:
        key: fp32 ``[E, Hk * D]``, before RoPE.
        value: likewise.
        key_bias: fp32 ``[Hk * D]``.
        value_bias: likewise.
        gain: weight of the norm that made X, fp32 ``[E]``; ones where there is none to be found.
    """

    key: Array
    value: Array
    key_bias: Array
    value_bias: Array
    gain: Array

    def without_gain(self) -> Projection:
        """The same of X before the norm's weight: the weight is part of the projections."""
        key, value = (self.gain[:, None] * weight for weight in (self.key, self.value))
        return replace(self, key=key, value=value, gain=np.ones_like(self.gain))


def load_graph(folder: Path) -> tuple[ir.Model, list[ExactLayer]]:
    """The graph of an exact export and its layers of full attention.

    Raises:
        PackageError: the folder is not an export.
        UnsupportedModelError: it is not in exact mode, or all of its layers have windows.
    """
    model = ir.load(folder / Manifest.load(folder).model)
    return model, full_layers(find_exact_layers(model))


def read_ropes(folder: Path, positions: int) -> tuple[Rope, ...]:
    """RoPE of every layer of full attention.

    Args:
        folder: of an exact export.
        positions: as many as are in use.

    Raises:
        UnsupportedModelError: a layer's keys depend on the position in another way.
    """
    model, layers = load_graph(folder)
    ropes = probe_rope(model, positions)
    found = tuple(ropes[layer.layer] for layer in layers)
    named = zip(layers, found, strict=True)
    unknown = [layer.layer for layer, rope in named if rope.kind == "unknown"]
    if unknown:
        raise UnsupportedModelError(
            f"keys of layers {unknown} depend on the position, but not by one rotation; leave out "
            "the methods that need keys before RoPE"
        )
    return found


def read_projections(folder: Path) -> tuple[Projection, ...]:
    """Projections of every layer of full attention.

    Raises:
        UnsupportedModelError: keys or values are no linear function of the layer's input, as with
            a norm of the keys.
    """
    model, layers = load_graph(folder)
    return tuple(_projection(model, layer) for layer in layers)


def _projection(model: ir.Model, layer: ExactLayer) -> Projection:
    linear = _linear(layer)
    source = linear.inputs[0]
    assert source is not None
    size = _input_width(linear)
    # Row 0 is the zero input; the last one shows whether keys and values are linear in it.
    rows = np.concatenate([np.zeros((1, size)), np.eye(size), np.full((1, size), 0.5)])
    inputs = {value.name: value for value in model.graph.inputs}
    feeds: dict[ir.Value, np.ndarray] = {
        source: rows.astype((source.dtype or ir.DataType.FLOAT).numpy())[:, None],
        # Position 0, where RoPE does nothing.
        inputs["input_ids"]: np.zeros((len(rows), 1), np.int64),
        inputs["past_lengths"]: np.zeros(len(rows), np.int32),
        inputs["total_lengths"]: np.ones(len(rows), np.int32),
    }
    key, value = evaluate(model, [layer.operand(1), layer.operand(2)], feeds)
    key_weight, key_bias = _affine(key, f"keys of layer {layer.layer}")
    value_weight, value_bias = _affine(value, f"values of layer {layer.layer}")
    return Projection(key_weight, value_weight, key_bias, value_bias, _gain(source, size))


def _affine(response: Array, name: str) -> tuple[Array, Array]:
    """Weight and bias of what was answered to ``_projection``'s rows."""
    found = np.asarray(response, np.float32).reshape(len(response), -1)
    bias, weight = found[0], found[1:-1] - found[0]
    error = np.linalg.norm(found[-1] - bias - 0.5 * weight.sum(axis=0))
    if error > NONLINEAR * np.linalg.norm(weight):
        raise UnsupportedModelError(
            f"{name} are no linear function of the layer's input (are keys normalised?); leave out "
            "the methods that need the projections"
        )
    return weight, bias


def _linear(layer: ExactLayer) -> ir.Node:
    """The linear node that makes the values."""
    value: ir.Value | None = layer.operand(2)
    node = None
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in LINEAR:
            return node
        if node.op_type not in PASSED:
            break
        computed = (one for one in node.inputs if one is not None and one.const_value is None)
        value = next(computed, None)
    found = "a graph input" if node is None else describe(node)
    raise UnsupportedModelError(
        f"values of layer {layer.layer} come from {found}, which is no linear projection; leave "
        "out the methods that need the projections"
    )


def _input_width(linear: ir.Node) -> int:
    if "K" in linear.attributes:  # of packed weights
        return linear.attributes["K"].as_int()
    weight = linear.inputs[1]
    assert weight is not None and weight.shape is not None
    transposed = linear.attributes.get_int("transB", 0)
    return weight.shape.numpy()[1 if transposed else 0]


def _gain(source: ir.Value, size: int) -> Array:
    """Weight of the norm whose output is ``source``."""
    node = source.producer()
    places = NORM_WEIGHT.get(node.op_type, ()) if node is not None else ()
    for place in places:
        value = node.inputs[place] if node is not None and place < len(node.inputs) else None
        if value is not None and value.const_value is not None:
            weight = np.asarray(value.const_value.numpy(), np.float32).reshape(-1)
            if weight.size == size:
                return weight
    return np.ones(size, np.float32)
