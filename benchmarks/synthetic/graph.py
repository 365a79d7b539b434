"""A graph under construction, whose weights are on disk before the next ones are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[np.float32]
BLOCK = 1 << 22  # weights made at once


class Graph:
    """Nodes and initializers as they are added; weights go to the data file at once.

    Args:
        data: file of the weights, beside the graph's own.

    Attributes:
        nodes: in the order of their computation.
        weights: initializers, all of them external.
    """

    def __init__(self, data: Path) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._file = data.open("wb")
        self._name = data.name

    def __enter__(self) -> Graph:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """A node with one output, which is called after it."""
        output = f"{name}_output_0"
        self.node(op, inputs, [output], name, **attributes)
        return output

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], name: str, **attributes: Any
    ) -> None:
        """A node with outputs of given names."""
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, **attributes))

    def constant(self, name: str, value: Any) -> str:
        """A small constant, as a node."""
        return self.add("Constant", [], name, value=numpy_helper.from_array(np.asarray(value)))

    def matrix(self, name: str, shape: tuple[int, int], deviation: float) -> str:
        """A matrix of normally distributed numbers that depend on its name only."""
        random = np.random.Generator(np.random.Philox(int.from_bytes(name.encode(), "little")))
        return self._write(name, shape, _normal(random, shape[0] * shape[1], deviation))

    def array(self, name: str, value: Array) -> str:
        """An initializer that is given."""
        return self._write(name, value.shape, iter([value]))

    def project(self, x: str, name: str, shape: tuple[int, int], gain: float = 1.0) -> str:
        """A MatMul with a random matrix ``[in, out]`` that multiplies the variance by gain^2."""
        weight = self.matrix(f"onnx::MatMul{name}", shape, gain / shape[0] ** 0.5)
        return self.add("MatMul", [x, weight], f"{name}/MatMul")

    def _write(self, name: str, shape: Sequence[int], blocks: Iterator[Array]) -> str:
        start = self._file.tell()
        for block in blocks:
            block.tofile(self._file)
        where = {"location": self._name, "offset": start, "length": self._file.tell() - start}
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        self.weights.append(tensor)
        return name


def _normal(random: np.random.Generator, count: int, deviation: float) -> Iterator[Array]:
    for start in range(0, count, BLOCK):
        block = random.standard_normal(min(BLOCK, count - start), dtype=np.float32)
        block *= np.float32(deviation)
        yield block
