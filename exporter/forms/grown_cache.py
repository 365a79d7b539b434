"""A cache that the graph itself grows: ``present = Concat(past, new)``, then read by attention.

Forms F1, F2 and F5 have it in common; they differ in what reads the grown cache. Between the two
stand at most ``repeat_kv``, casts and constant factors, which are followed here::

    present = Concat(past, new)     new: [B, Hk, S, D], after RoPE
    reader(..., [Transpose|Cast|Mul(constant)|Unsqueeze/Expand/Reshape](present), ...)
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.forms.rope_key import rope_key
from minicache.exporter.forms.scale import constant_factor
from minicache.exporter.sites import AttentionSite
from minicache.runtime.errors import UnsupportedModelError

_RESHAPING = frozenset({"Unsqueeze", "Expand", "Reshape", "Transpose", "Identity", "Cast"})
_READERS = frozenset({("", "MatMul"), ("", "Attention"), ("com.microsoft", "MultiHeadAttention")})


class Mismatch(Exception):
    """A walk met something that no form has."""

    def refusal(self, pattern: str) -> UnsupportedModelError:
        """The error for a user: what was tried, and what was found instead."""
        return UnsupportedModelError(
            f"Tried the pattern {pattern}, but {self}; export the model again with "
            "`optimum-cli export onnx --task text-generation-with-past`, or report this graph"
        )


@dataclass(frozen=True)
class GrownCache:
    """A grown cache and its reader.

    Attributes:
        past: graph input [B, Hk, P, D].
        new: rows that are appended, [B, Hk, S, D].
        present: graph output [B, Hk, P + S, D].
        reader: the node that reads the grown cache for attention.
        slot: which input of ``reader`` it is.
        factor: constant that it is multiplied by on the way.
        read: the value that ``reader`` reads.
    """

    past: ir.Value
    new: ir.Value
    present: ir.Value
    reader: ir.Node
    slot: int
    factor: float
    read: ir.Value

    @property
    def num_kv_heads(self) -> int:
        """Number of kv heads Hk."""
        return self._fixed(1)

    @property
    def head_dim(self) -> int:
        """Head size D."""
        return self._fixed(3)

    def _fixed(self, axis: int) -> int:
        dim = g.static_dim(self.past, axis) or g.static_dim(self.new, axis)
        if dim is None:
            raise Mismatch(f"{self.past.name!r} has no fixed number of heads or head size")
        return dim


def find_grown_caches(model: ir.Model) -> list[GrownCache]:
    """All grown caches, in the order of the graph inputs.

    Raises:
        Mismatch: a cache is grown, but what reads it is none of the known readers.
    """
    found = []
    for past in model.graph.inputs:
        for node, index in g.data_uses(past):
            axis = g.attribute(node, "axis", 0)
            if node.op_type != "Concat" or index != 0 or axis not in (-2, 2):
                continue
            grown = node.outputs[0]
            present = g.returned(grown)
            if len(node.inputs) == 2 and node.inputs[1] is not None and present is not None:
                reader, slot, factor = _to_reader(past, grown)
                read = reader.inputs[slot]
                assert read is not None
                cache = GrownCache(past, node.inputs[1], present, reader, slot, factor, read)
                found.append(cache)
    return found


def check_sizes(key: GrownCache, value: GrownCache) -> None:
    """Keys and values must have heads of one size and number.

    Raises:
        Mismatch: they differ, as in multi-head latent attention.
    """
    if (key.num_kv_heads, key.head_dim) != (value.num_kv_heads, value.head_dim):
        raise Mismatch(
            f"{key.past.name!r} has {key.num_kv_heads} heads of {key.head_dim} and "
            f"{value.past.name!r} {value.num_kv_heads} of {value.head_dim}, which must be equal "
            "(multi-head latent attention, as of DeepSeek, is not supported)"
        )


def single_use(value: ir.Value, doing: str) -> tuple[ir.Node, int]:
    """The only node that reads a value's numbers.

    Raises:
        Mismatch: there are several, or none.
    """
    uses = [
        (node, index)
        for node, index in g.data_uses(value)
        # An Identity that only returns the cache is no step of the attention.
        if not (node.op_type == "Identity" and node.outputs[0].is_graph_output())
    ]
    if len(uses) != 1:
        names = ", ".join(g.describe(node) for node, _ in uses) or "nothing"
        raise Mismatch(f"{value.name!r} is read by {names} where one node was expected ({doing})")
    return uses[0]


def _to_reader(past: ir.Value, grown: ir.Value) -> tuple[ir.Node, int, float]:
    """Follows a grown cache through repeat_kv and scaling to what reads it."""
    value, factor = grown, 1.0
    while True:
        readers = [node for node, _ in g.data_uses(value) if not node.outputs[0].is_graph_output()]
        if len(readers) > 1:
            raise Mismatch(
                f"{past.name!r} is read by {g.describe(readers[0])} and {g.describe(readers[1])}: "
                "a cache shared by several layers (as of Gemma 3n) is not supported"
            )
        node, index = single_use(value, "repeat_kv and scale before attention")
        if (node.domain, node.op_type) in _READERS:
            return node, index, factor
        step = constant_factor(node, index, g.static_dim(past, 3))
        if step is not None:
            factor *= step
        elif node.op_type not in _RESHAPING or index != 0:
            raise Mismatch(f"{g.describe(node)} stands between {past.name!r} and its attention")
        value = node.outputs[0]


def pair_caches(caches: list[GrownCache], key_slot: int, value_slot: int) -> list[
    tuple[GrownCache, GrownCache]
]:  # fmt: skip
    """Pairs keys and values by the fused node that reads both.

    Raises:
        Mismatch: a node reads only one of them from a cache, or a scaled one.
    """
    pairs = []
    for key in (cache for cache in caches if cache.slot == key_slot):
        values = [c for c in caches if c.reader is key.reader and c.slot == value_slot]
        if len(values) != 1:
            raise Mismatch(f"{g.describe(key.reader)} reads keys, but no values, from a cache")
        if key.factor != 1.0 or values[0].factor != 1.0:
            raise Mismatch(f"{g.describe(key.reader)} reads a cache multiplied by a constant")
        check_sizes(key, values[0])
        pairs.append((key, values[0]))
    paired = {id(cache) for pair in pairs for cache in pair}
    for cache in caches:
        if id(cache) not in paired:
            raise Mismatch(
                f"{cache.past.name!r} enters {g.describe(cache.reader)} as input {cache.slot}, "
                "where neither keys nor values are"
            )
    return pairs


def joined_heads(heads: ir.Value) -> ir.Value:
    """Follows a result [B, H, S, D] to the ``Reshape`` that joins the heads: [B, S, H*D].

    Raises:
        Mismatch: something else is done with it.
    """
    value, transposed = heads, False
    while True:
        node, index = single_use(value, "heads joined by Transpose and Reshape")
        value = node.outputs[0]
        if node.op_type == "Transpose" and g.permutation(node) == (0, 2, 1, 3):
            transposed = True
        elif node.op_type == "Reshape" and transposed:
            return value
        # Where(fully masked row, 0, x) of transformers' exporter: causal rows are never empty.
        elif not (node.op_type == "Where" and index == 2) and (
            node.op_type not in ("Cast", "Identity", "Reshape")
        ):
            raise Mismatch(f"{g.describe(node)} stands where the heads should be joined")


def query_heads(query: ir.Value, output: ir.Value, head_dim: int) -> int:
    """Query heads H: from the query [B, H, S, D], or from the joined output [B, S, H*D].

    Raises:
        Mismatch: neither is known.
    """
    heads = g.static_dim(query, 1) or _split_heads(query)
    if heads:
        return heads
    width = g.weight_rows(output) or g.static_dim(output, 2)
    if not width:
        raise Mismatch(f"the number of query heads of {query.name!r} is not to be found")
    return width // head_dim


def _split_heads(query: ir.Value) -> int:
    """H of ``Transpose(Reshape(x, [B, S, H, D]))``; 0 where it is no constant."""
    node = query.producer()
    if node is None or node.op_type != "Transpose" or g.permutation(node) != (0, 2, 1, 3):
        return 0
    split = node.inputs[0].producer() if node.inputs[0] is not None else None
    if split is None or split.op_type != "Reshape":
        return 0
    target = g.constant_if_small(split.inputs[1])
    return max(0, int(target[2])) if target is not None and target.size == 4 else 0


def site_of(key: GrownCache, value: GrownCache, **facts: object) -> AttentionSite:
    """An ``AttentionSite`` with what the two caches say, and the form's own ``facts``."""
    dtype = key.past.dtype or ir.DataType.FLOAT
    common: dict[str, object] = {
        "layer": -1,
        "past_key": key.past,
        "past_value": value.past,
        "present_key": key.present,
        "present_value": value.present,
        "key": key.new,
        "value": value.new,
        "layout": "BHSD",
        "dtype": dtype,
        "num_kv_heads": key.num_kv_heads,
        "head_dim": key.head_dim,
        "rope_key": rope_key(key.new),
    }
    return AttentionSite(**(common | facts))  # type: ignore[arg-type]
