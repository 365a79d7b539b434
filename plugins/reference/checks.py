"""Refusals of the operator: contradictions among attributes, shapes and lengths."""

from __future__ import annotations

from collections.abc import Mapping

from minicache.exporter import schemas
from minicache.plugins.reference.check_delta import check_delta
from minicache.plugins.reference.eviction import slot_map
from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.state import Attributes, Span, State
from minicache.runtime.errors import CapacityError

# Of the constant inputs; those of the others follow the model.
TABLE_TYPES = {
    f"{kind}_{part}": ("float32",) if part == "step" else ("float32", "float16")
    for kind in ("key", "value")
    for part in ("decoder", "encoder", "step", "delta_basis")
} | {"rope_frequencies": ("float32",)}


def check_attributes(attributes: Attributes) -> None:
    """Refuses attributes that contradict each other.

    Raises:
        ValueError: the contradiction, with the values found.
    """
    heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
    if heads % kv_heads:
        raise ValueError(f"num_heads {heads} is no multiple of kv_num_heads {kv_heads}")
    group, slot = attributes["group_size"], attributes["group_slot"]
    if not 0 <= slot < group:
        raise ValueError(f"group_slot {slot} is not within 0..{group - 1}")
    _check_eviction(attributes)
    check_delta(attributes)
    if attributes["mode"] == "exact":
        if group != 1:
            raise ValueError(f"exact mode has groups of one layer, not group_size {group}")
        if attributes["has_decoder"]:
            raise ValueError("exact mode has no codes to restore: has_decoder is 1, not 0")
        return
    if attributes["mode"] == "slerp":
        _check_slerp(attributes)
    else:
        _check_subspace(attributes)
    if attributes["segment_length"] < 0:
        raise ValueError(f"segment_length is {attributes['segment_length']}, which is negative")
    if attributes["ring_slots"] < max(attributes["window"], 1):
        raise ValueError(
            f"ring_slots {attributes['ring_slots']} is below window {attributes['window']}"
        )
    for kind in ("key", "value"):
        order = attributes[f"{kind}_head_permutation"]
        wanted = sorted(list(range(kv_heads)) * group)
        split = [sorted(order[g * kv_heads : (g + 1) * kv_heads]) for g in range(group)]
        if order and (len(order) != len(wanted) or any(s != list(range(kv_heads)) for s in split)):
            raise ValueError(
                f"{kind}_head_permutation {order} is not {group} permutations of {kv_heads} heads"
            )


def _check_eviction(attributes: Attributes) -> None:
    evicts, observes = attributes["evicts"], attributes["observes"]
    if evicts not in (0, 1):
        raise ValueError(f"evicts is {evicts}, not 0 or 1")
    if observes < -1:
        raise ValueError(f"observes is {observes}; it counts queries, 0 is off, -1 means all")
    if observes and not evicts:
        raise ValueError(f"observes is {observes}, but evicts is 0: nothing reads attention_mass")
    for name in ("has_bias", "local_window_size"):
        if evicts and attributes[name]:
            raise ValueError(
                f"evicts is 1 and {name} {attributes[name]}: what depends on positions cannot evict"
            )


def _check_slerp(attributes: Attributes) -> None:
    kv_heads, size = attributes["kv_num_heads"], attributes["head_size"]
    if attributes["code_heads"] != kv_heads:
        raise ValueError(
            f"slerp codes each head apart: code_heads {attributes['code_heads']}, not {kv_heads}"
        )
    for kind in ("key", "value"):
        bits = attributes[f"{kind}_bits"]
        if len(bits) != 2 or bits[0] not in (16, 8, 4) or bits[1] != size:
            raise ValueError(f"{kind}_bits is {bits}; slerp takes [16, 8 or 4, head_size {size}]")


def _check_subspace(attributes: Attributes) -> None:
    code_heads, kv_heads = attributes["code_heads"], attributes["kv_num_heads"]
    if not attributes["has_decoder"]:
        raise ValueError("subspace restores through a decoder: has_decoder is 0, not 1")
    if attributes["retention"] != "none":
        raise ValueError(f"subspace retains no tokens: retention is {attributes['retention']!r}")
    if code_heads < 1 or kv_heads % code_heads:
        raise ValueError(f"code_heads {code_heads} is no divisor of kv_num_heads {kv_heads}")
    for kind in ("key", "value"):
        bits = attributes[f"{kind}_bits"]
        widths, counts = bits[0::2], bits[1::2]
        falling = list(widths) == sorted(set(widths), reverse=True)
        fits = set(widths) <= {8, 4, 2} and all(n > 0 and n % 8 == 0 for n in counts)
        if not bits or len(widths) != len(counts) or not falling or not fits:
            raise ValueError(
                f"{kind}_bits is {bits}; subspace takes [bits, count, ...] of 8, then 4, then 2 "
                "bits, each count a multiple of 8"
            )


def check_shapes(attributes: Attributes, inputs: Mapping[str, Array], state: State) -> None:
    """Refuses inputs whose shapes contradict the schema table.

    Raises:
        ValueError: name, and the shape or type found and wanted.
    """
    batch, tokens, _ = inputs["query"].shape
    heads, kv_heads, size = (attributes[n] for n in ("num_heads", "kv_num_heads", "head_size"))
    wanted: dict[str, tuple[int, ...]] = {"query": (batch, tokens, heads * size)}
    wanted |= dict.fromkeys(("past_lengths", "total_lengths"), (batch,))
    for name in inputs:
        if name in ("key", "value") or name[:2] in ("k_", "v_"):
            wanted[name] = (batch, tokens, kv_heads * size)
    if "head_sink" in inputs:
        wanted["head_sink"] = (heads,)
    if "attention_bias" in inputs:
        first, _, _, capacity = inputs["attention_bias"].shape
        wanted["attention_bias"] = (batch if first > 1 else 1, heads, tokens, capacity)
    if attributes["mode"] != "exact":
        wanted |= _table_shapes(attributes, inputs)
    coded = "key_code" in state
    capacity = state["key_code" if coded else "exact_key"].shape[2 if coded else 3]
    if coded and capacity % schemas.CAPACITY_MULTIPLE:
        raise ValueError(f"the capacity {capacity} is no multiple of {schemas.CAPACITY_MULTIPLE}")
    retained = state["retained_position"].shape[1] if "retained_position" in state else 0
    segments = 1
    if "evicted" in state and schemas.segment_length(attributes):
        segments = state["evicted"].shape[1] - 1
    for name in state:
        shape = schemas.state_shape(name, attributes, batch, capacity, retained, segments)
        wanted[f"past_{name}"] = shape
    for name, shape in wanted.items():
        if inputs[name].shape != shape:
            raise ValueError(f"{name} has the shape {inputs[name].shape}, not {shape}")
        if name in TABLE_TYPES and inputs[name].dtype.name not in TABLE_TYPES[name]:
            raise ValueError(f"{name} is {inputs[name].dtype.name}, not {TABLE_TYPES[name]}")


def _table_shapes(
    attributes: Attributes, inputs: Mapping[str, Array]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the constant inputs of coded modes, as far as the node has them."""
    kv_heads, size = attributes["kv_num_heads"], attributes["head_size"]
    wanted: dict[str, tuple[int, ...]] = {}
    for kind in ("key", "value"):
        code_heads, components = attributes["code_heads"], sum(attributes[f"{kind}_bits"][1::2])
        joint = attributes["group_size"] * (kv_heads // code_heads) * size
        wanted[f"{kind}_decoder"] = kv_heads, components, size
        wanted[f"{kind}_encoder"] = code_heads, components, joint
        wanted[f"{kind}_step"] = code_heads, components
        wanted[f"{kind}_delta_basis"] = kv_heads, attributes["delta_rank"], size
    if "rope_frequencies" in inputs:
        count = inputs["rope_frequencies"].size
        if not 0 < 2 * count <= size:
            raise ValueError(f"rope_frequencies has {count} pairs, but head_size is {size}")
        wanted["rope_frequencies"] = (count,)
    return {name: shape for name, shape in wanted.items() if name in inputs}


def check_lengths(attributes: Attributes, inputs: Mapping[str, Array], state: State) -> None:
    """Refuses lengths that do not fit the call or the cache.

    Raises:
        CapacityError: a total length beyond the capacity, evicted tokens left out.
        ValueError: past < 0, total < past, more new tokens than the call has, or a table of evicted
            tokens that no policy writes.
    """
    capacity, slots = _capacity(attributes, inputs, state), inputs["query"].shape[1]
    pairs = zip(inputs["past_lengths"], inputs["total_lengths"], strict=True)
    for row, (past, total) in enumerate(pairs):
        where = f"batch row {row}: past_lengths {past}, total_lengths {total}"
        if past < 0 or total < past:
            raise ValueError(f"{where}: lengths must satisfy 0 <= past <= total")
        if total - past > slots:
            raise ValueError(f"{where}: {total - past} new tokens, but the call has {slots}")
        if "evicted" in state:
            _check_evicted(attributes, state, row, past, total, where)
        evicted = int(state["evicted"][row, -1]) if "evicted" in state else 0
        if capacity is not None and total - evicted > capacity:
            raise CapacityError(
                f"{where}: the cache holds {capacity} tokens; export with a larger maximum length"
            )


def _check_evicted(
    attributes: Attributes, state: State, row: int, past: int, total: int, where: str
) -> None:
    length, count = schemas.segment_length(attributes), state["evicted"].shape[1] - 1
    if length and total > count * length:
        raise CapacityError(
            f"{where}: evicted has {count} segments of {length} tokens; export for longer texts"
        )
    slots = slot_map(attributes, state, row)
    coded = attributes["mode"] != "exact"
    end = Span(past, total, slots.sinks, attributes["window"]).c0 if coded else past
    try:
        slots.check(end)
        if "retained_position" in state:
            slots.check_retained(state["retained_position"][row], end)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _capacity(attributes: Attributes, inputs: Mapping[str, Array], state: State) -> int | None:
    """Tokens that the cache can hold; None where old tokens may be overwritten."""
    if attributes["mode"] != "exact":
        return int(state["key_code"].shape[2])
    slots, window = int(state["exact_key"].shape[3]), attributes["local_window_size"]
    if window and slots >= window:
        return int(inputs["attention_bias"].shape[3]) if "attention_bias" in inputs else None
    return slots
