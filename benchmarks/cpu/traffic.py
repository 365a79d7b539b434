"""Bytes that a decode step must move from memory, per layer, however good the kernel is."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cpu.formats import Format
from benchmarks.cpu.our_layers import coded_spans, node_attributes
from benchmarks.cpu.step_shape import StepShape
from minicache.exporter import schemas

TABLE_BYTES = 2  # of an element, as exports for CPUs hold decoders and encoders


@dataclass(frozen=True)
class Traffic:
    """Bytes of one layer, averaged over the layers of a group.

    Attributes:
        cache: codes, magnitudes, deltas and exact vectors that attention reads.
        tables: decoders, and the encoders' share of a layer.
    """

    cache: float
    tables: float

    @property
    def total(self) -> float:
        """Both."""
        return self.cache + self.tables


def visible(form: Format, shape: StepShape) -> list[int]:
    """Tokens that the newest one of each row attends to, itself among them."""
    window = int(form.attributes.get("local_window_size", 0)) or max(shape.totals)
    return [min(total, window) for total in shape.totals]


def our_traffic(form: Format, shape: StepShape) -> Traffic:
    """Of our operator."""
    a = node_attributes(form, shape)
    element = 2 if form.coded else form.model_dtype.itemsize
    vectors = sum(visible(form, shape)) - shape.batch * shape.new_tokens
    codes = 0
    if form.coded:
        codes = sum(end - begin for begin, end in coded_spans(a, shape))
        vectors -= codes
    per_code = sum(schemas.code_bytes(a[f"{kind}_bits"]) for kind in ("key", "value")) + 4
    if delta := schemas.delta_code(a):
        per_code += 2 * (schemas.code_bytes(delta) + 2)  # and a ratio, of keys and of values
    cache = 2 * vectors * shape.kv_heads * shape.head_size * element
    if form.coded:
        cache += codes * a["code_heads"] * per_code
    tables = 0.0
    if form.attributes.get("has_decoder"):
        components = sum(sum(a[f"{kind}_bits"][1::2]) for kind in ("key", "value"))
        elements = components * shape.kv_heads * shape.head_size
        # Encoders of a group have as many as its decoders, and one node in G reads them.
        tables = float(2 * elements * TABLE_BYTES)
    return Traffic(cache, tables)


def plain_traffic(shape: StepShape, bytes_per_element: float) -> Traffic:
    """Of attention that keeps every token alike."""
    elements = 2 * sum(shape.pasts) * shape.kv_heads * shape.head_size
    return Traffic(elements * bytes_per_element, 0.0)
