"""Graph inputs and outputs of one group's state, by the schema table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from minicache.exporter import schemas
from minicache.runtime.manifest import BATCH, CAPACITY, StateTensor

_FIXED_DTYPES = {"int8": ir.DataType.INT8, "int32": ir.DataType.INT32, "fp32": ir.DataType.FLOAT}
_FIXED_DTYPES["fp16"] = ir.DataType.FLOAT16
# Stand-ins for symbols while `schemas.state_shape` does arithmetic; no real dimension is as large.
_BATCH, _CAPACITY, _RETAINED = 2_000_003, 16_000_064, 3_000_017


class StateIo:
    """Names, types and shapes of the state of group ``index``.

    Args:
        index: group number g of ``past_minicache.{g}.NAME``.
        attributes: complete attributes of the group's writer.
        exact_dtype: element type of ``exact_*`` and ``retained_*``.
        segments: n of the longest text, where the group evicts.
    """

    def __init__(
        self,
        index: int,
        attributes: Mapping[str, Any],
        exact_dtype: ir.DataType,
        segments: int = 1,
    ) -> None:
        self.index = index
        self.attributes = attributes
        self.exact_dtype = exact_dtype
        self.segments = segments
        self.retained_symbol = f"retained_{index}"

    def _dtype(self, name: str) -> ir.DataType:
        text = next(state.dtype for state in schemas.STATES if state.name == name)
        return self.exact_dtype if text == "T|fp16" else _FIXED_DTYPES[text]

    def _shape(self, name: str) -> tuple[int | str, ...]:
        symbols = {_BATCH: BATCH, _CAPACITY: CAPACITY, _RETAINED: self.retained_symbol}
        shape = schemas.state_shape(
            name, self.attributes, _BATCH, _CAPACITY, _RETAINED, self.segments
        )
        return tuple(symbols.get(size, size) for size in shape)

    def _names(self) -> list[str]:
        return schemas.state_names(self.attributes)

    def pasts(self) -> list[ir.Value]:
        """New graph-input values, in schema order."""
        values = []
        for name in self._names():
            value = ir.Value(
                name=f"past_minicache.{self.index}.{name}",
                type=ir.TensorType(self._dtype(name)),
                shape=ir.Shape(self._shape(name)),
            )
            values.append(value)
        return values

    def name_presents(self, outputs: Sequence[ir.Value]) -> None:
        """Gives the writer's state outputs their names, types and shapes."""
        for name, value in zip(self._names(), outputs, strict=True):
            value.name = f"present_minicache.{self.index}.{name}"
            value.type = ir.TensorType(self._dtype(name))
            value.shape = ir.Shape(self._shape(name))

    def tensors(self) -> list[StateTensor]:
        """The manifest's entries."""
        return [
            StateTensor(
                name=name,
                group=self.index,
                past=f"past_minicache.{self.index}.{name}",
                present=f"present_minicache.{self.index}.{name}",
                dtype=str(self._dtype(name).numpy()),
                shape=self._shape(name),
            )
            for name in self._names()
        ]
