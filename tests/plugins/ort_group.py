"""Runs the nodes of a group in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from tests.helpers import Call
from tests.plugins.ort_model import Array, State, as_ort_value, group_model


class OrtGroup:
    """A group in an ONNX Runtime session, with its state bound in place.

    Attributes:
        state: the arrays that the kernel updates, by state name.
        maths: of products with codes; fp32 unless a test is about another one; "" is the default.
    """

    def __init__(
        self,
        library: Path,
        attributes: dict[str, Any],
        state: State,
        dtype: Any = np.float32,
        threads: int = 1,
        in_place: bool = True,
        tables: Sequence[State] = (),
        maths: str = "fp32",
    ) -> None:
        self.tables, self.maths = tables, maths
        self.attributes, self.in_place, self.dtype = attributes, in_place, np.dtype(dtype)
        self.state = {name: array.copy() for name, array in state.items()}
        options = ort.SessionOptions()
        if maths:
            options.add_session_config_entry("minicache.cpu_math", maths)
        options.register_custom_ops_library(str(library))
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        model = group_model(attributes, dtype, state, tables).SerializeToString()
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.input_names = {value.name for value in self.session.get_inputs()}

    def feeds(self, call: Call) -> State:
        """The inputs of a call by graph name, without the state."""
        arrays: State = {"past_lengths": call.past, "total_lengths": call.total}
        for name, layers in (("query", call.queries), ("key", call.keys), ("value", call.values)):
            arrays |= {f"{name}_{slot}": array for slot, array in enumerate(layers)}
        if call.bias is not None:
            arrays["attention_bias"] = call.bias
        if call.sink is not None:
            arrays["head_sink"] = call.sink
        return arrays

    def run(self, call: Call) -> list[Array]:
        """Runs one call; returns the attention of every layer and updates ``state``."""
        binding = self.session.io_binding()
        held = []  # OrtValues share the arrays' memory: both must live until the run is over
        for name, array in self.feeds(call).items():
            held.append(as_ort_value(np.ascontiguousarray(array)))
            binding.bind_ortvalue_input(name, held[-1])
        after = self.state if self.in_place else {n: a.copy() for n, a in self.state.items()}
        for name, array in self.state.items():
            past = as_ort_value(array)
            present = past if self.in_place else as_ort_value(after[name])
            same = past.data_ptr() == array.ctypes.data or array.size == 0
            assert same, f"{name}: ONNX Runtime copied the state"
            if f"past_{name}" in self.input_names:
                binding.bind_ortvalue_input(f"past_{name}", past)
            binding.bind_ortvalue_output(f"present_{name}", present)
            held += [past, present]
        outputs = [np.full(query.shape, np.nan, self.dtype) for query in call.queries]
        for slot, array in enumerate(outputs):
            held.append(as_ort_value(array))
            binding.bind_ortvalue_output(f"attention_{slot}", held[-1])
        self.session.run_with_iobinding(binding)
        self.state = after
        return outputs
