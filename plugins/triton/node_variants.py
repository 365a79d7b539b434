"""The kernel variants that a node needs: asked of the C++ plan, for calls of a few sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minicache.exporter import schemas
from minicache.plugins.gpu_plan import PlacedTensor, gpu_plan
from minicache.plugins.triton.variant import Variant, parse_key

# New tokens per call: block sizes change with the number of query rows and of tokens
# (plugins/gpu/tuning.h), at 16 of either.
CALLS = (1, 16, 17, 512)
_CAPACITY = 1024
_RETAINED = 32  # slots of the side buffer; how many does not matter


def node_variants(
    attributes: Mapping[str, Any],
    *,
    model_type: str = "float16",
    exact_type: str = "float16",
    table_type: str = "float16",
) -> list[Variant]:
    """Every variant that calls of a node launch, with tensors at aligned addresses.

    Args:
        attributes: of the node, complete (``schemas.attributes_with_defaults``).
        model_type: NumPy's name of the model's type, ``float16`` or ``bfloat16``.
        exact_type: of exact and retained tokens; mode ``exact`` has the model's.
        table_type: of decoders and encoders.

    Raises:
        UnsupportedModelError: the kernels do not cover such a node.
        MissingDependencyError: the native library was not built.
    """
    exact = model_type if attributes["mode"] == "exact" else exact_type
    types = {"T": model_type, "T|fp16": exact, "fp32|fp16": table_type}
    keys: dict[str, None] = {}
    for new_tokens in CALLS:
        tensors = _tensors(attributes, new_tokens, types)
        keys |= dict.fromkeys(launch.key for launch in gpu_plan(attributes, tensors).launches)
    return [parse_key(key) for key in keys]


def _tensors(
    attributes: Mapping[str, Any], new_tokens: int, types: Mapping[str, str]
) -> dict[str, PlacedTensor]:
    """Type and shape of every input, and of the attention, as the schema states them."""
    table = {tensor.name: tensor for tensor in (*schemas.INPUTS, schemas.OUTPUT)}
    table |= {f"past_{state.name}": state for state in schemas.STATES}
    names = {"fp32": "float32", "fp16": "float16", **types}
    placed = {}
    for name in [*schemas.input_names(attributes), schemas.OUTPUT.name]:
        row = table.get(name, table["key"])  # k_0, v_0, ...: like key
        if name.startswith("past_") and name != "past_lengths":
            state = name.removeprefix("past_")
            shape = schemas.state_shape(state, attributes, 1, _CAPACITY, _RETAINED)
        else:
            shape = _shape(row, attributes, new_tokens)
        placed[name] = PlacedTensor(names.get(row.dtype, row.dtype), shape)
    return placed


def _shape(row: schemas.Tensor, attributes: Mapping[str, Any], new_tokens: int) -> tuple[int, ...]:
    """The shape that a row of the table states in letters."""
    size, kv_heads, code_heads = (
        attributes[name] for name in ("head_size", "kv_num_heads", "code_heads")
    )
    bits = attributes["value_bits" if row.name.startswith("value") else "key_bits"]
    letters = {
        "B": 1,
        "B or 1": 1,
        "S": new_tokens,
        "C": _CAPACITY,
        "H": attributes["num_heads"],
        "Hk": kv_heads,
        "Hc": code_heads,
        "D": size,
        "R": sum(bits[1::2]),
        "H*D": attributes["num_heads"] * size,
        "Hk*D": kv_heads * size,
        "D_rot/2": size // 2,
        "G*(Hk/Hc)*D": attributes["group_size"] * (kv_heads // code_heads) * size,
    }
    return tuple(letters[letter] for letter in row.shape.strip("[]").split(", "))
