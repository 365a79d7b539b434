"""The same model with quantised weights but unquantised activations, for the parity proof.

``MatMulNBits`` at ``accuracy_level`` 4 rounds activations to 8 bit in blocks. A difference in the
last bit of fp32 then becomes a whole step, so that even the original disagrees with itself between
prefill and decode (3 % of the largest logit on SmolLM2-135M). With the level unset both graphs
compute in their own type, and a rewrite can be proved to the usual tolerance.
"""

from __future__ import annotations

import onnx


def rounds_activations(graph: onnx.GraphProto) -> bool:
    """Whether a graph has a ``MatMulNBits`` that rounds activations to 8 bit."""
    return any(_level(node) == 4 for node in graph.node)


def _level(node: onnx.NodeProto) -> int:
    found = [a.i for a in node.attribute if a.name == "accuracy_level"]
    return found[0] if node.op_type == "MatMulNBits" and found else 0


def unround(graph: onnx.GraphProto) -> None:
    """Unsets the accuracy level of every ``MatMulNBits``."""
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            kept = [a for a in node.attribute if a.name != "accuracy_level"]
            del node.attribute[:]
            node.attribute.extend(kept)
