"""Lowers an exported graph to what TensorRT reads: standard operators and our plugin."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from minicache.exporter.graph import describe
from minicache.exporter.normalise import run_passes
from minicache.exporter.passes.lower_norms import NORMS, LowerNormsPass
from minicache.exporter.passes.lower_rotary import LowerRotaryPass
from minicache.exporter.passes.thread_states import ThreadStatesPass
from minicache.exporter.schemas import DOMAIN
from minicache.runtime.errors import UnsupportedModelError

_STANDARD = ("", "ai.onnx", DOMAIN)
_QUANTISED = ("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "QMoE")


def check_parsable(model: ir.Model) -> None:
    """Refuses what cannot be lowered; worth asking before any long work.

    Args:
        model: normalised: attention is ``MiniCacheAttention`` already.

    Raises:
        UnsupportedModelError: names the operators, and what to do.
    """
    left = [node for node in _foreign(model) if node.op_type not in {*NORMS, "RotaryEmbedding"}]
    for node in left:
        if node.op_type in _QUANTISED:
            raise UnsupportedModelError(
                f"the model has quantised weights ({node.op_type}, e.g. {node.name!r}), which "
                "TensorRT's parser does not read; export the model in fp16, without quantisation"
            )
    if left:
        names = ", ".join(sorted({f"{node.domain}::{node.op_type}" for node in left}))
        raise UnsupportedModelError(
            f"TensorRT's parser does not read {names} (e.g. {describe(left[0])}); export the model "
            "in fp16 with standard operators, e.g. by optimum-cli export onnx"
        )


def lower_tensorrt(model: ir.Model) -> None:
    """Lowers a graph in place; its nodes have the states of a plan.

    Raises:
        UnsupportedModelError: as ``check_parsable``, or a node of unknown shape.
    """
    check_parsable(model)
    run_passes(model, [LowerRotaryPass(), LowerNormsPass(), ThreadStatesPass()])
    common_passes.RemoveUnusedNodesPass()(model)
    common_passes.TopologicalSortPass()(model)
    used = {node.domain for node in model.graph}
    for domain in [name for name in model.opset_imports if name not in {"", *used}]:
        del model.opset_imports[domain]


def _foreign(model: ir.Model) -> Iterable[ir.Node]:
    """Nodes that are neither standard operators nor ours, those of subgraphs as well."""
    fused = set(NORMS)  # one of them lives in the standard domain, but is in no standard
    for node in model.graph.all_nodes():
        if node.domain not in _STANDARD or node.op_type in fused:
            yield node
