"""The manifest that an export of a geometry would have: its state, and nothing that runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx_ir as ir

from minicache.exporter import schemas
from minicache.exporter.calibration.moments import affordable_span
from minicache.exporter.estimation.geometry import Geometry, LayerGeometry
from minicache.exporter.options import ExportOptions
from minicache.exporter.plan import Group, Plan, node_attributes
from minicache.exporter.planner.structure import Structure
from minicache.exporter.state_io import StateIo
from minicache.runtime.errors import PlanError
from minicache.runtime.manifest import Manifest

ELEMENT_BITS = 16  # of the fp16 cache that ratios are stated against
MAGNITUDE_BYTES = 2  # fp16, one per token, code head and kind
TYPES = {
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}


def hypothetical_manifest(
    geometry: Geometry, options: ExportOptions, max_sequence_length: int
) -> Manifest:
    """The manifest of ``geometry`` exported with ``options``.

    In ``subspace`` mode every full layer gets the same bits, where a real plan gives more to the
    layers that need them: the sums are the same up to padding.

    Args:
        geometry: of the model.
        options: ``mode`` and what belongs to it; ``subspace`` needs a ``ratio``.
        max_sequence_length: largest capacity C.

    Raises:
        PlanError: options that contradict each other or the model.
    """
    plan = options.make_plan(list(geometry.layers), max_sequence_length)
    if options.mode == "subspace":
        plan = _subspace_plan(plan, geometry, options)
    manifest = Manifest(
        model="",
        target="ort-cpu",
        mode=options.mode,
        dtype=geometry.dtype,
        num_layers=len(geometry.layers),
        num_heads=geometry.num_heads,
        num_kv_heads=geometry.layers[0].num_kv_heads,
        head_dim=geometry.layers[0].head_dim,
        vocab_size=1,
        max_sequence_length=max_sequence_length,
        rewind_slack=plan.slack,
        window=plan.window,
        op_version=schemas.VERSION,
        plan=plan.to_dict(),
    )
    fractions: dict[str, float] = {}
    extra: dict[str, int] = {}
    state = []
    for index, group in enumerate(plan.groups):
        attributes = _writer(geometry, plan, group)
        coded = group.mode != "exact"
        io = StateIo(index, attributes, ir.DataType.FLOAT16 if coded else TYPES[geometry.dtype])
        if coded and group.retention.policy != "none" and group.mode == "slerp":
            fractions[io.retained_symbol] = group.retention.capacity
            extra[io.retained_symbol] = schemas.retained_extra(attributes)
        state += io.tensors()
    return dataclasses.replace(
        manifest, state=tuple(state), retained_fractions=fractions, retained_extra=extra
    )


def _subspace_plan(plan: Plan, geometry: Geometry, options: ExportOptions) -> Plan:
    if options.ratio is None:
        raise PlanError("an estimate of subspace mode needs --ratio: a search needs the weights")
    full = [number for number, layer in enumerate(geometry.layers) if not layer.local_window]
    members = [geometry.layers[number] for number in full]
    widths = [layer.num_kv_heads * layer.head_dim for layer in members]
    size = affordable_span(widths, options.max_group_size)
    bits = ELEMENT_BITS / options.ratio
    groups = [
        Group(
            layers=tuple(full[place] for place in places),
            mode="subspace",
            code_heads=members[places[0]].num_kv_heads,
            key_bits_per_element=bits,
            value_bits_per_element=bits,
        )
        for places in Structure(size).groups(members)
    ]
    groups += [group for group in plan.groups if group.layers[0] not in full]
    return dataclasses.replace(plan, groups=tuple(sorted(groups, key=lambda one: one.layers)))


def _writer(geometry: Geometry, plan: Plan, group: Group) -> dict[str, Any]:
    """Complete attributes of the node that writes a group's state."""
    layer = geometry.layers[group.layers[0]]
    attributes: dict[str, Any] = {
        "num_heads": geometry.num_heads,
        "kv_num_heads": layer.num_kv_heads,
        "head_size": layer.head_dim,
        **node_attributes(plan, group, "tile", layer.head_dim),
    }
    if group.mode == "exact" and layer.local_window:
        attributes["local_window_size"] = layer.local_window
        attributes["ring_slots"] = layer.local_window + plan.slack
    if group.mode == "subspace":
        keys, values = _code_bytes(group, layer)
        attributes |= {
            "mode": "subspace",
            "group_size": len(group.layers),
            "code_heads": group.code_heads,
            "key_bits": (8, keys),
            "value_bits": (8, values),
        }
    if group.mode != "exact":
        attributes["group_slot"] = len(group.layers) - 1
    return schemas.attributes_with_defaults(attributes)


def _code_bytes(group: Group, layer: LayerGeometry) -> tuple[int, int]:
    """Bytes of a key and a value code: both within their bits, magnitudes included.

    Codes are padded; as a search does, keys take what values leave.
    """
    unit = schemas.SEGMENT_ALIGNMENT
    bits = group.key_bits_per_element + group.value_bits_per_element
    heads = layer.num_kv_heads // group.code_heads
    both = int(bits * len(group.layers) * heads * layer.head_dim / 8) - 2 * MAGNITUDE_BYTES
    units = max(2, both // unit)
    return -(-units // 2) * unit, units // 2 * unit
