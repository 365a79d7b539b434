"""An original GroupQueryAttention graph with its cache in place, also in int8.

An int8 cache has a scale per channel: the graph is then rewritten, weights stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from minicache.exporter.find_attention import find_sites
from minicache.exporter.io import find_model_file, load_model, read_facts
from minicache.exporter.shared_original import SharedOriginal

Array = npt.NDArray[Any]
K_SCALE, V_SCALE = 12, 13  # places of inputs
_FOLDER = "session.model_external_initializers_file_folder_path"


class SharedBuffers(SharedOriginal):
    """Reads tokens of one row.

    Args:
        path: the model, or its folder.
        capacity: tokens to allocate for.
        threads: inside one operator.
        scales: by cache input, fp32 ``[1, Hk, 1, D]``: of an int8 cache; None: the model's type.

    Raises:
        UnsupportedModelError: another form of attention, or a mask of other inputs.
    """

    def __init__(
        self,
        path: Path,
        capacity: int,
        threads: int | None = None,
        scales: Mapping[str, Array] | None = None,
    ) -> None:
        file = find_model_file(path)
        description = find_sites(load_model(file), read_facts(file))
        graph = onnx.load(str(file), load_external_data=False)
        if scales is not None:
            quantise_cache(graph, scales)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry(_FOLDER, str(file.resolve().parent))
        if threads is not None:
            options.intra_op_num_threads = threads
        source = graph.SerializeToString()
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        super().__init__(session, description, capacity, None if scales is None else np.int8)


def channel_scales(buffers: Mapping[str, Array], tokens: int) -> dict[str, Array]:
    """Scales that take the largest magnitude of each channel of the first tokens to 127."""
    largest = {name: np.abs(array[:, :, :tokens]).max(2, keepdims=True) for name, array in
               buffers.items()}  # fmt: skip
    return {name: np.maximum(x, 1e-6).astype(np.float32) / 127 for name, x in largest.items()}


def quantise_cache(model: onnx.ModelProto, scales: Mapping[str, Array]) -> None:
    """Gives every GroupQueryAttention an int8 cache with these scales."""
    graph = model.graph
    changed: set[str] = set()
    for node in graph.node:
        if node.op_type != "GroupQueryAttention":
            continue
        node.input.extend([""] * (V_SCALE + 1 - len(node.input)))
        for place, past in ((K_SCALE, node.input[3]), (V_SCALE, node.input[4])):
            node.input[place] = f"{past}.scale"
            graph.initializer.append(onnx.numpy_helper.from_array(scales[past], f"{past}.scale"))
        kinds = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
        for name, value in {**kinds, "kv_cache_bit_width": 8}.items():
            node.attribute.append(onnx.helper.make_attribute(name, value))
        changed |= {node.input[3], node.input[4], node.output[1], node.output[2]}
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.name in changed:
            info.type.tensor_type.elem_type = onnx.TensorProto.INT8
