"""What an original graph wants to be fed: tokens, its cache, and what it merely hands through."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from minicache.exporter.sites import ModelDescription
from minicache.runtime.errors import UnsupportedModelError

TOKENS = ("input_ids", "attention_mask", "position_ids")
# ONNX Runtime's names of the types that these are fed in.
INTEGERS: Mapping[str, type[np.generic]] = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def check_inputs(types: Mapping[str, str], known: Collection[str]) -> None:
    """Refuses inputs without a known meaning.

    Args:
        types: ONNX Runtime's type of every input.
        known: inputs that are no tokens but can be fed all the same.

    Raises:
        UnsupportedModelError: names the first one.
    """
    for name, kind in types.items():
        if name in TOKENS and kind not in INTEGERS:
            raise UnsupportedModelError(
                f"The input {name!r} has the type {kind}, not one of whole numbers; export the "
                "model for text generation from token ids"
            )
        if name not in TOKENS and name not in known:
            raise UnsupportedModelError(
                f"The model has the input {name!r}, whose meaning is not known; "
                "export it for text generation without it"
            )


def idle_inputs(model: ir.Model) -> dict[str, npt.NDArray[Any]]:
    """Zeros for every input that reaches nothing but outputs; unknown dimensions are 1.

    Transformers' exporter returns the size of a sliding window as it was given, once per layer.
    Such inputs mean nothing to the rewritten graph, which leaves them out.
    """
    found = {}
    for value in model.graph.inputs:
        idle = all(
            use.node.op_type == "Identity" and use.node.outputs[0].is_graph_output()
            for use in value.uses()
        )
        if idle and value.dtype is not None and value.shape is not None:
            shape = [dim if isinstance(dim, int) else 1 for dim in value.shape]
            found[value.name or ""] = np.zeros(shape, value.dtype.numpy())
    return found


def ring_inputs(description: ModelDescription) -> set[str]:
    """Cache inputs that GroupQueryAttention uses as a ring of its window (GenAI's Gemma)."""
    names: set[str] = set()
    for site in description.sites:
        node = site.output.producer()
        found = node.attributes.get("sliding_window_cache") if node is not None else None
        if found is not None and found.as_int():
            names |= {site.past_key.name or "", site.past_value.name or ""}
    return names
