"""What several test files share: test data, poisoned state, comparison of arrays.

Shape letters as in ``minicache.exporter.schemas``: B batch, S new tokens, H / Hk heads, D head
size, C capacity, G layers of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference import new_state

Array = np.ndarray


def make_attributes(**given: Any) -> dict[str, Any]:
    """Complete attributes of a small node: 2 heads on 1 kv head of size 16, unless ``given``.

    ``key_bits`` and ``value_bits`` may be given as a width, for one segment of the head size.
    """
    size = given.setdefault("head_size", 16)
    values = {"num_heads": 2, "kv_num_heads": 1, **given}
    if values.get("mode") == "slerp":
        values = {"group_size": 2, "key_bits": 8, "value_bits": 8, **values}
    for name in ("key_bits", "value_bits"):
        if isinstance(values.get(name), int):
            values[name] = (values[name], size)
    floats = {a.name for a in schemas.ATTRIBUTES if a.kind == "float"}
    # A graph holds fp32 attributes: the reference gets the same values as a kernel.
    values = {k: float(np.float32(v)) if k in floats else v for k, v in values.items()}
    return schemas.attributes_with_defaults(values)


def poison(state: dict[str, Array]) -> dict[str, Array]:
    """Fills state memory with NaN and 0x7f, as an allocator may leave it; changes it in place.

    Reading a slot that no token lies in then shows as NaN or as garbage. What an empty cache must
    hold (free slots of the side buffer, no evicted tokens) stays.
    """
    for name, array in state.items():
        if name not in ("retained_position", "evicted"):
            array[...] = 0x7F if array.dtype == np.int8 else np.nan
    return state


def poisoned_state(
    attributes: dict[str, Any],
    batch: int,
    capacity: int,
    retained: int = 0,
    dtype: Any = np.float16,
    segments: int = 1,
) -> dict[str, Array]:
    """An empty state whose memory is poisoned."""
    return poison(new_state(attributes, batch, capacity, retained, dtype, segments))


@dataclass
class Call:
    """The inputs of one call of a group: G queries, keys and values, and the lengths."""

    queries: list[Array]
    keys: list[Array]
    values: list[Array]
    past: Array
    total: Array
    bias: Array | None = None
    sink: Array | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """In the order of ``run_group``."""
        lengths = self.past, self.total, self.bias, self.sink
        return self.queries, self.keys, self.values, *lengths


@dataclass
class Text:
    """Queries, keys and values of a whole sequence per batch row, to be cut into calls.

    Attributes:
        query: ``[G, B, T, H, D]``.
        key: ``[G, B, T, Hk, D]``.
        value: likewise.
        bias: ``[B or 1, H, T, T]`` or None; indexed by position of query and key.
        sink: ``[H]`` or None.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None = None
    sink: Array | None = None

    def call(
        self, past: Sequence[int], new: Sequence[int], slots: int | None = None, capacity: int = 0
    ) -> Call:
        """Cuts ``new`` tokens from ``past`` on out of every row; padding on the right is NaN."""
        slots = max(new) if slots is None else slots
        rows = list(enumerate(zip(past, new, strict=True)))

        def cut(array_GBThD: Array) -> list[Array]:
            layers, batch, _, heads, size = array_GBThD.shape
            out = np.full((layers, batch, slots, heads * size), np.nan, array_GBThD.dtype)
            for row, (start, count) in rows:
                part = array_GBThD[:, row, start : start + count]
                out[:, row, :count] = part.reshape(layers, count, heads * size)
            return list(out)

        bias = None
        if self.bias is not None:
            shape = len(self.bias), self.bias.shape[1], slots, capacity
            bias = np.full(shape, np.nan, self.bias.dtype)
            for row, (start, count) in rows[: len(self.bias)]:
                known = self.bias[row, :, start : start + count, : min(start + count, capacity)]
                bias[row, :, :count, : known.shape[-1]] = known
        lengths = np.array(past, np.int32), np.array(np.add(past, new), np.int32)
        return Call(
            cut(self.query), cut(self.key), cut(self.value), *lengths, bias=bias, sink=self.sink
        )


def make_text(
    attributes: dict[str, Any],
    tokens: int,
    *,
    batch: int = 1,
    dtype: Any = np.float32,
    seed: int = 0,
    noise: float = 0.5,
) -> Text:
    """Random text whose layers resemble each other: most tokens a little, some hardly at all.

    Layer g of a token is a common vector plus noise of the token's own strength (up to 4 x
    ``noise``), times a length of its own; heads follow the attributes' permutations.
    """
    rng = np.random.default_rng(seed)
    group, heads, kv_heads = (attributes[n] for n in ("group_size", "num_heads", "kv_num_heads"))
    size = attributes["head_size"]
    query = rng.standard_normal((group, batch, tokens, heads, size)) * 2
    strength = noise * rng.choice([0.3, 1.0, 4.0], (batch, tokens, 1, 1), p=[0.5, 0.35, 0.15])
    made = []
    for kind in ("key", "value"):
        common = rng.standard_normal((1, batch, tokens, kv_heads, size))
        own = rng.standard_normal((group, batch, tokens, kv_heads, size))
        lengths = rng.uniform(0.5, 2.0, (group, batch, tokens, kv_heads, 1))
        by_code_head = lengths * (common + strength[None] * own)
        layers = np.empty_like(by_code_head)
        order = attributes[f"{kind}_head_permutation"] or list(range(kv_heads)) * group
        for g, h in np.ndindex(group, kv_heads):
            layers[g, :, :, order[g * kv_heads + h]] = by_code_head[g, :, :, h]
        made.append(layers)
    text = Text(query.astype(dtype), made[0].astype(dtype), made[1].astype(dtype))
    if attributes["has_bias"]:
        text.bias = rng.standard_normal((batch, heads, tokens, tokens)).astype(dtype)
    if attributes["has_sink"]:
        text.sink = rng.standard_normal(heads).astype(dtype)
    return text


def chunks(total: int, *sizes: int) -> Iterator[tuple[int, int]]:
    """(past, new) of calls of the given sizes, then of single tokens, up to ``total``."""
    past = 0
    for size in sizes:
        yield past, size
        past += size
    while past < total:
        yield past, 1
        past += 1


def assert_close(actual: Array, expected: Array, tolerance: float, what: str = "") -> None:
    """Compares relative to the largest magnitude of ``expected``; NaN anywhere fails.

    The message says where the worst element is and how large the error is.
    """
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    if expected.size == 0:
        return
    error = np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64))
    error = np.where(np.isfinite(error), error, np.inf)
    limit = tolerance * max(float(np.abs(np.asarray(expected, np.float64)).max()), 1e-30)
    worst = np.unravel_index(np.argmax(error), error.shape)
    message = f"{what} at {tuple(map(int, worst))}: {actual[worst]}, expected {expected[worst]}"
    count = int((error > limit).sum())
    assert count == 0, f"{message}; {count} of {error.size} elements are off by more than {limit:g}"
