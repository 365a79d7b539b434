"""Refusals of the operator: contradictions among attributes, shapes and lengths."""

from __future__ import annotations

from collections.abc import Mapping

from minicache.exporter import schemas
from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.state import Attributes, State
from minicache.runtime.errors import CapacityError


def check_attributes(attributes: Attributes) -> None:
    """Refuses attributes that contradict each other.

    Raises:
        NotImplementedError: ``subspace`` mode or ``has_decoder``.
        ValueError: the contradiction, with the values found.
    """
    if attributes["mode"] == "subspace":
        raise NotImplementedError("the NumPy reference does not compute subspace mode yet")
    if attributes["has_decoder"]:
        raise NotImplementedError(
            "the NumPy reference does not compute aligned codes (has_decoder) yet"
        )
    heads, kv_heads, size = (attributes[n] for n in ("num_heads", "kv_num_heads", "head_size"))
    if heads % kv_heads:
        raise ValueError(f"num_heads {heads} is no multiple of kv_num_heads {kv_heads}")
    group, slot = attributes["group_size"], attributes["group_slot"]
    if not 0 <= slot < group:
        raise ValueError(f"group_slot {slot} is not within 0..{group - 1}")
    if attributes["mode"] == "exact":
        if group != 1:
            raise ValueError(f"exact mode has groups of one layer, not group_size {group}")
        return
    if attributes["code_heads"] != kv_heads:
        raise ValueError(
            f"slerp codes each head apart: code_heads {attributes['code_heads']}, not {kv_heads}"
        )
    if attributes["ring_slots"] < max(attributes["window"], 1):
        raise ValueError(
            f"ring_slots {attributes['ring_slots']} is below window {attributes['window']}"
        )
    for kind in ("key", "value"):
        bits = attributes[f"{kind}_bits"]
        if len(bits) != 2 or bits[0] not in (16, 8, 4) or bits[1] != size:
            raise ValueError(f"{kind}_bits is {bits}; slerp takes [16, 8 or 4, head_size {size}]")
        order = attributes[f"{kind}_head_permutation"]
        wanted = sorted(list(range(kv_heads)) * group)
        split = [sorted(order[g * kv_heads : (g + 1) * kv_heads]) for g in range(group)]
        if order and (len(order) != len(wanted) or any(s != list(range(kv_heads)) for s in split)):
            raise ValueError(
                f"{kind}_head_permutation {order} is not {group} permutations of {kv_heads} heads"
            )


def check_shapes(attributes: Attributes, inputs: Mapping[str, Array], state: State) -> None:
    """Refuses inputs whose shapes contradict the schema table.

    Raises:
        ValueError: name, shape found and shape wanted.
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
    coded = "key_code" in state
    capacity = state["key_code" if coded else "exact_key"].shape[2 if coded else 3]
    if coded and capacity % schemas.CAPACITY_MULTIPLE:
        raise ValueError(f"the capacity {capacity} is no multiple of {schemas.CAPACITY_MULTIPLE}")
    retained = state["retained_position"].shape[1] if "retained_position" in state else 0
    for name in state:
        wanted[f"past_{name}"] = schemas.state_shape(name, attributes, batch, capacity, retained)
    for name, shape in wanted.items():
        if inputs[name].shape != shape:
            raise ValueError(f"{name} has the shape {inputs[name].shape}, not {shape}")


def check_lengths(attributes: Attributes, inputs: Mapping[str, Array], state: State) -> None:
    """Refuses lengths that do not fit the call or the cache.

    Raises:
        CapacityError: a total length beyond the capacity.
        ValueError: past < 0, total < past, or more new tokens than the call has.
    """
    capacity, slots = _capacity(attributes, inputs, state), inputs["query"].shape[1]
    pairs = zip(inputs["past_lengths"], inputs["total_lengths"], strict=True)
    for row, (past, total) in enumerate(pairs):
        where = f"batch row {row}: past_lengths {past}, total_lengths {total}"
        if past < 0 or total < past:
            raise ValueError(f"{where}: lengths must satisfy 0 <= past <= total")
        if total - past > slots:
            raise ValueError(f"{where}: {total - past} new tokens, but the call has {slots}")
        if capacity is not None and total > capacity:
            raise CapacityError(
                f"{where}: the cache holds {capacity} tokens; export with a larger maximum length"
            )


def _capacity(attributes: Attributes, inputs: Mapping[str, Array], state: State) -> int | None:
    """Tokens that the cache can hold; None where old tokens may be overwritten."""
    if attributes["mode"] != "exact":
        return int(state["key_code"].shape[2])
    slots, window = int(state["exact_key"].shape[3]), attributes["local_window_size"]
    if window and slots >= window:
        return int(inputs["attention_bias"].shape[3]) if "attention_bias" in inputs else None
    return slots
