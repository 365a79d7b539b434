"""What operators demand of a node: inputs that must be there, and the types of attributes.

onnx knows the operators of ai.onnx; of com.microsoft's, those that we look into are listed here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

# fmt: off
_INTEGERS = (
    "num_heads", "kv_num_heads", "do_rotary", "rotary_interleaved", "local_window_size",
    "smooth_softmax", "qk_output", "causal", "unidirectional", "sliding_window_cache",
    "kv_cache_bit_width", "K", "N", "bits", "block_size", "accuracy_level", "interleaved",
    "rotary_embedding_dim", "is_packed_batching",
)
# fmt: on
_CONTRIB_ATTRIBUTES = {
    **dict.fromkeys(_INTEGERS, ir.AttributeType.INT),
    **dict.fromkeys(("scale", "softcap", "epsilon", "mask_filter_value"), ir.AttributeType.FLOAT),
    **dict.fromkeys(("k_quant_type", "v_quant_type"), ir.AttributeType.STRING),
}
_CONTRIB_INPUTS = {
    "GroupQueryAttention": (0, 5, 6),
    "MultiHeadAttention": (0,),
    "MatMulNBits": (0, 1, 2),
    "FusedMatMul": (0, 1),
    "RotaryEmbedding": (0, 1, 2, 3),
    "SkipSimplifiedLayerNormalization": (0, 1, 2),
}


@dataclass(frozen=True)
class Operator:
    """Demands of one operator.

    Attributes:
        attributes: types of its attributes, as far as they are known.
        inputs: indices of inputs that every node has.
        repeated: index from which on an input repeats, and none may be absent; None: nowhere.
    """

    attributes: Mapping[str, ir.AttributeType] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()
    repeated: int | None = None


@functools.cache
def find_operator(domain: str, op_type: str, version: int) -> Operator:
    """The demands of an operator; none of one that is not known.

    Args:
        domain: of the operator, "" or "ai.onnx" for the standard one.
        op_type: its name.
        version: of the domain's operators that the model imports.
    """
    if domain == "com.microsoft":
        return Operator(_CONTRIB_ATTRIBUTES, _CONTRIB_INPUTS.get(op_type, ()))
    if domain not in ("", "ai.onnx"):
        return Operator()
    try:
        schema = onnx.defs.get_schema(op_type, version, "")
    except Exception:  # of an operator or opset that this onnx does not have; its type is no API
        return Operator()
    kinds = {name: int(a.type) for name, a in schema.attributes.items()}  # type: ignore[call-overload]
    options = [value.option for value in schema.inputs]
    option = onnx.defs.OpSchema.FormalParameterOption
    return Operator(
        {name: ir.AttributeType(kind) for name, kind in kinds.items()},
        tuple(i for i, one in enumerate(options) if one == option.Single),
        next((i for i, one in enumerate(options) if one == option.Variadic), None),
    )
