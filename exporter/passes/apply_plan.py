"""Turns exact attention nodes into the groups of a plan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from minicache.exporter import schemas
from minicache.exporter.build import Inserter
from minicache.exporter.calibration.group_tables import GroupTables
from minicache.exporter.calibration.half_tables import as_halves
from minicache.exporter.plan import Group, Plan, node_attributes
from minicache.exporter.state_io import StateIo
from minicache.runtime.errors import PlanError
from minicache.runtime.eviction.parse import parse_policy
from minicache.runtime.manifest import StateTensor


def attention_nodes(model: ir.Model) -> list[ir.Node]:
    """The ``MiniCacheAttention`` nodes in graph order, which is layer order."""
    return [
        node
        for node in model.graph
        if node.domain == schemas.DOMAIN and node.op_type == schemas.OP_TYPE
    ]


def attributes_of(node: ir.Node) -> dict[str, object]:
    """All attributes of an attention node, defaults filled in."""
    return schemas.attributes_with_defaults(
        {name: attr.value for name, attr in node.attributes.items()}
    )


class ApplyPlanPass(ir.passes.InPlacePass):
    """Rewrites every attention node for its group and lays the groups' state as graph I/O.

    Args:
        plan: covers every layer of the model.
        code_layout: the target's.
        tables: of groups that a calibration made tables for, by their first layer.
        half_tables: whether tables of halves become fp16 in models of any type.

    Attributes:
        state: the state buffers in graph order, known after the pass has run.
        retained_fractions: symbol to fraction of the capacity, for the manifest.
        retained_extra: symbol to slots beyond it, likewise.
        segment_lengths: of the groups that evict, L of their segments; 0: one segment.
    """

    def __init__(
        self,
        plan: Plan,
        code_layout: str,
        tables: Mapping[int, GroupTables] | None = None,
        half_tables: bool = False,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.code_layout = code_layout
        self.tables = tables or {}
        self.half_tables = half_tables
        self.state: list[StateTensor] = []
        self.retained_fractions: dict[str, float] = {}
        self.retained_extra: dict[str, int] = {}
        self.segment_lengths: dict[int, int] = {}

    def requires(self, model: ir.Model) -> None:
        """Every node is exact, and the plan covers them all."""
        nodes = attention_nodes(model)
        planned = sum(len(group.layers) for group in self.plan.groups)
        if len(nodes) != planned:
            raise PlanError(f"the plan covers {planned} layers, the model has {len(nodes)}")
        for node in nodes:
            if attributes_of(node)["mode"] != "exact":
                raise PlanError(f"{node.name} is merged already; apply plans to an exact model")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces nodes and state, group by group."""
        nodes = attention_nodes(model)
        # The last two inputs and outputs of an exact node are its own buffers; they go.
        dropped = {value for node in nodes for value in node.inputs[-2:]}
        returned = {value for node in nodes for value in node.outputs[1:]}
        for value in [v for v in model.graph.inputs if v in dropped]:
            model.graph.inputs.remove(value)
        for value in [v for v in model.graph.outputs if v in returned]:
            model.graph.outputs.remove(value)
        for index, group in enumerate(self.plan.groups):
            self._rewrite(model, index, group, [nodes[layer] for layer in group.layers])
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Arity of every node as the schema says; every state is a graph input and an output."""
        for node in attention_nodes(model):
            attributes = attributes_of(node)
            if None in node.inputs:
                raise AssertionError(f"{node.name} has an empty input")
            if len(node.inputs) != len(schemas.input_names(attributes)):
                raise AssertionError(f"{node.name} has {len(node.inputs)} inputs")
            if len(node.outputs) != len(schemas.output_names(attributes)):
                raise AssertionError(f"{node.name} has {len(node.outputs)} outputs")
        inputs = {value.name for value in model.graph.inputs}
        outputs = {value.name for value in model.graph.outputs}
        for tensor in self.state:
            if tensor.past not in inputs or tensor.present not in outputs:
                raise AssertionError(f"state {tensor.past} is not graph I/O")

    def _rewrite(self, model: ir.Model, index: int, group: Group, nodes: list[ir.Node]) -> None:
        head_dim = int(nodes[0].attributes["head_size"].as_int())
        calibrated = group.mode == "subspace" or group.align or group.delta_rank > 0
        tables = self.tables[group.layers[0]] if calibrated else None
        changes = node_attributes(self.plan, group, self.code_layout, head_dim)
        if tables is not None:
            changes |= tables.attributes()
        if group.mode == "exact" and (window := _local_window(nodes[0])):
            changes["ring_slots"] = window + self.plan.slack
        elif self.plan.evict:
            changes |= {"evicts": 1, "observes": parse_policy(self.plan.evict).observes}
        for slot, node in enumerate(nodes):
            values = {**changes, "group_slot": slot} if group.mode != "exact" else changes
            for name, value in values.items():
                node.attributes[name] = _attribute(name, value)
        writer = attributes_of(nodes[-1])
        # Sharing one full-precision ring in fp16 halves it; exact layers keep the model's type.
        query = nodes[0].inputs[0]
        assert query is not None and query.dtype is not None
        exact_dtype = query.dtype if group.mode == "exact" else ir.DataType.FLOAT16
        length = schemas.segment_length(writer)
        segments = -(-self.plan.max_sequence_length // length) if length else 1
        io = StateIo(index, writer, exact_dtype, segments)
        if writer["evicts"]:
            self.segment_lengths[index] = length
        if group.retention.policy != "none" and group.mode != "exact":
            self.retained_fractions[io.retained_symbol] = group.retention.capacity
            self.retained_extra[io.retained_symbol] = schemas.retained_extra(writer)
        pasts = io.pasts()
        # Read before any node is removed: removal takes a node's inputs away.
        earlier = [value for other in nodes[:-1] for value in other.inputs[1:3]]
        for slot, node in enumerate(nodes):
            plain = list(node.inputs[:-2])
            if tables is not None:
                inserter = Inserter(model.graph, node, f"group{index}")
                plain += self._constants(inserter, tables, slot, query.dtype)
            if slot == len(nodes) - 1:
                self._replace(model, node, [*plain, *pasts, *earlier], 1 + len(pasts))
            else:
                self._replace(model, node, [*plain, *pasts], 1)
        written = attention_nodes(model)[group.layers[-1]]
        io.name_presents(written.outputs[1:])
        model.graph.inputs.extend(pasts)
        model.graph.outputs.extend(written.outputs[1:])
        self.state.extend(io.tensors())

    def _constants(
        self, inserter: Inserter, tables: GroupTables, slot: int, dtype: ir.DataType
    ) -> list[ir.Value | None]:
        """The constant inputs of one slot's node; decoders in the model's precision."""
        values: list[ir.Value | None] = []
        precision = np.float32 if dtype == ir.DataType.FLOAT else np.float16
        for name, array in tables.arrays(slot, precision).items():
            own = f".{slot}" if name.endswith("decoder") else ""
            if self.half_tables and name.endswith("coder"):
                array = as_halves(array)
            values.append(inserter.constant(f"{inserter.scope}/{name}{own}", array))
        return values

    @staticmethod
    def _replace(
        model: ir.Model, node: ir.Node, inputs: list[ir.Value | None], outputs: int
    ) -> None:
        new = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            attributes=list(node.attributes.values()),
            num_outputs=outputs,
            name=node.name,
        )
        attention = new.outputs[0]
        attention.shape, attention.type = node.outputs[0].shape, node.outputs[0].type
        name = node.outputs[0].name
        model.graph.insert_before(node, new)
        node.outputs[0].replace_all_uses_with(attention)
        model.graph.remove(node, safe=True)
        attention.name = name


def _local_window(node: ir.Node) -> int:
    attribute = node.attributes.get("local_window_size")
    return int(attribute.as_int()) if attribute else 0


def _attribute(name: str, value: object) -> ir.Attr:
    if isinstance(value, tuple):
        return ir.AttrInt64s(name, [int(item) for item in value])
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, float):
        return ir.AttrFloat32(name, float(np.float32(value)))
    assert isinstance(value, int)
    return ir.AttrInt64(name, value)
