"""Tables of a small ``subspace`` group, and a text run through it by the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicache.plugins.reference import run_group
from tests.helpers import Text, make_attributes, poisoned_state

Array = np.ndarray
State = dict[str, Array]
Tables = list[dict[str, Array]]
TOKENS = 40
CAPACITY = 48
SMALL = {"window": 5, "sinks": 3, "ring_slots": 11, "segment_length": 8}
# The largest value of the grid, in standard deviations of a component, per width.
CLIP = {8: 6.0, 4: 3.5, 2: 2.2}


def subspace_attributes(**given: Any) -> dict[str, Any]:
    """Complete attributes of a small ``subspace`` node: 8 components of 8, 4 and 2 bits each."""
    bits = {"key_bits": (8, 8, 4, 8, 2, 8), "value_bits": (8, 8, 4, 8, 2, 8)}
    return make_attributes(**{"mode": "subspace", "has_decoder": 1, **bits, **given})


def make_tables(
    attributes: dict[str, Any], *, dtype: Any = np.float32, seed: int = 0, rotary: int | None = None
) -> Tables:
    """Encoders with orthonormal rows (or columns, where they are fewer), and their decoders.

    An unquantised code restores its joint vector, or projects it where it has more components.

    Args:
        attributes: of any node of the group.
        dtype: of encoders and decoders.
        seed: of the random numbers.
        rotary: components that RoPE turns; all of the head size unless given.

    Returns:
        Per layer the constant inputs of its node.
    """
    rng = np.random.default_rng(seed)
    group, heads, size = (attributes[n] for n in ("group_size", "kv_num_heads", "head_size"))
    code_heads = attributes["code_heads"]
    slots = heads // code_heads
    tables: Tables = [{} for _ in range(group)]
    for kind in ("key", "value"):
        bits = attributes[f"{kind}_bits"]
        count = sum(bits[1::2])
        joint = group * slots * size
        tall = rng.standard_normal((code_heads, max(count, joint), min(count, joint)))
        columns = np.linalg.qr(tall)[0]
        encoder = columns if count > joint else columns.swapaxes(1, 2)
        widths = list(zip(bits[0::2], bits[1::2], strict=True))
        clips = [[2 * CLIP[width] / 2**width] * n for width, n in widths]
        spread = rng.uniform(0.7, 1.3, (code_heads, count))
        step = (np.concatenate(clips) * spread / np.sqrt(count)).astype(np.float32)
        blocks = encoder.swapaxes(1, 2).reshape(code_heads, group, slots, size, count)
        order = attributes[f"{kind}_head_permutation"] or list(range(heads)) * group
        for g in range(group):
            decoder = np.zeros((heads, count, size))
            for s in range(heads):
                hc = s * code_heads // heads
                folded = blocks[hc, g, s - hc * slots] * step[hc]
                decoder[order[g * heads + s]] = folded.T
            tables[g][f"{kind}_decoder"] = decoder.astype(dtype)
        tables[-1] |= {f"{kind}_encoder": encoder.astype(dtype), f"{kind}_step": step}
    if attributes["segment_length"]:
        pairs = (size if rotary is None else rotary) // 2
        rates = (100.0 ** (-np.arange(pairs) / pairs)).astype(np.float32)
        tables = [{**table, "rope_frequencies": rates} for table in tables]
    return tables


def run_subspace(
    attributes: dict[str, Any],
    tables: Tables,
    text: Text,
    calls: list[tuple[int, int]],
    state: State | None = None,
) -> tuple[Array, State]:
    """Attention ``[G, T, H, D]`` (NaN where not run) and state of a batch of one, exact in fp64."""
    group, _, tokens, heads, size = text.query.shape
    if state is None:
        state = poisoned_state(attributes, 1, CAPACITY, dtype=np.float64)
    out = np.full((group, tokens, heads, size), np.nan)
    for past, new in calls:
        call = text.call([past], [new], capacity=CAPACITY)
        attention, state = run_group(attributes, state, *call.arguments, tables=tables)
        out[:, past : past + new] = np.stack(attention)[:, 0].reshape(group, new, heads, size)
    return out, state
