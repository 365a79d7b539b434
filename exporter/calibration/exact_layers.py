"""The attention layers of an exact export, as the calibration reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from minicache.exporter import schemas
from minicache.exporter.graph import attribute
from minicache.runtime.errors import UnsupportedModelError

_GROUP = re.compile(r"past_minicache\.(\d+)\.exact_key$")


@dataclass(frozen=True)
class ExactLayer:
    """One ``MiniCacheAttention`` node in exact mode.

    Attributes:
        layer: layer index.
        node: the node; its first inputs are query, key and value ``[B, S, heads * D]``.
        num_heads: query heads H.
        num_kv_heads: kv heads Hk.
        head_dim: head size D.
        local_window: sliding window; 0 when off.
    """

    layer: int
    node: ir.Node
    num_heads: int
    num_kv_heads: int
    head_dim: int
    local_window: int

    def operand(self, index: int) -> ir.Value:
        """Query (0), key (1) or value (2) as the node reads it."""
        value = self.node.inputs[index]
        assert value is not None
        return value


def find_exact_layers(model: ir.Model) -> list[ExactLayer]:
    """Returns the layers of an exact graph, by layer index.

    Args:
        model: as ``normalise`` makes it, or loaded from an exact export's folder.

    Raises:
        UnsupportedModelError: the graph has no such nodes, or some that code their cache already.
    """
    found: dict[int, ExactLayer] = {}
    for node in model.graph:
        if node.op_type != schemas.OP_TYPE or node.domain != schemas.DOMAIN:
            continue
        mode = node.attributes.get("mode")
        states = [_GROUP.match(value.name or "") for value in node.inputs if value is not None]
        groups = [int(match[1]) for match in states if match]
        if (mode is not None and mode.as_string() != "exact") or len(groups) != 1:
            raise UnsupportedModelError(
                f"{node.name!r} stores codes already; calibrate on an exact export "
                "(minicache-export --mode exact)"
            )
        found[groups[0]] = ExactLayer(
            layer=groups[0],
            node=node,
            num_heads=int(attribute(node, "num_heads", 0)),
            num_kv_heads=int(attribute(node, "kv_num_heads", 0)),
            head_dim=int(attribute(node, "head_size", 0)),
            local_window=int(attribute(node, "local_window_size", 0)),
        )
    if not found or sorted(found) != list(range(len(found))):
        raise UnsupportedModelError(
            f"the graph holds {len(found)} {schemas.OP_TYPE} nodes for layers {sorted(found)}; "
            "calibrate on an exact export (minicache-export --mode exact)"
        )
    return [found[layer] for layer in sorted(found)]


def full_layers(layers: Sequence[ExactLayer]) -> list[ExactLayer]:
    """Those that attend to everything before them: codes are for their caches only.

    Raises:
        UnsupportedModelError: there are none.
    """
    full = [layer for layer in layers if not layer.local_window]
    if not full:
        raise UnsupportedModelError(
            "every layer of the model attends to a sliding window, which bounds its cache already: "
            "there is nothing to calibrate; use minicache-export --mode exact"
        )
    return full
