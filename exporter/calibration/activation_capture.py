"""Streams the queries, keys and values that an exact export computes, layer by layer.

The graph gets extra outputs: what each ``MiniCacheAttention`` node reads, i.e. queries and keys
after RoPE and values as projected. Documents are read in chunks through the in-place cache, so that
memory depends on the chunk and not on the text; the LM head runs for one position per chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from minicache.exporter.calibration.exact_layers import (
    ExactLayer,
    find_exact_layers,
    full_layers,
)
from minicache.exporter.io import find_model_file, load_model
from minicache.plugins.library import ort_library_path
from minicache.runtime.cache import round_capacity
from minicache.runtime.errors import PackageError, TextError, UnsupportedModelError
from minicache.runtime.manifest import BATCH, CAPACITY
from minicache.runtime.ort import first_line, load_onnxruntime

Array = npt.NDArray[np.float32]

CHUNK = 512  # tokens per call: at 8B size 0.4 GB of captured activations
_EXTRA = "minicache_capture"
_KINDS = ("query", "key", "value")
_NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True)
class Activations:
    """What the layers computed for one chunk of one document.

    Attributes:
        document: index of the document.
        start: position of the chunk's first token in its document.
        query: by full-attention layer ``[S, H, D]`` fp32, after RoPE.
        key: by layer ``[S, Hk, D]``, after RoPE.
        value: likewise, as projected.
    """

    document: int
    start: int
    query: list[Array]
    key: list[Array]
    value: list[Array]

    @property
    def tokens(self) -> int:
        """Tokens S of the chunk."""
        return len(self.key[0])


class ActivationCapture:
    """An exact export, opened with its attention inputs as outputs.

    Args:
        folder: an exact export, or its ``model.onnx``.
        tokens: longest document.

    Attributes:
        layers: its full-attention layers, which are captured.

    Raises:
        UnsupportedModelError: no exact export, or no layer of full attention.
        PackageError: ONNX Runtime does not load the graph.
    """

    def __init__(self, folder: Path, tokens: int) -> None:
        file = find_model_file(folder)
        self.layers = full_layers(find_exact_layers(load_model(file)))
        self._session = _open(file, self.layers)
        sizes = {BATCH: 1, CAPACITY: round_capacity(tokens)}
        self._binding = self._session.io_binding()
        self._state: list[npt.NDArray[Any]] = []
        for value in self._session.get_inputs():
            if value.name.startswith("past_minicache."):
                self._bind_state(value, [sizes.get(d, d) for d in value.shape])

    def _bind_state(self, value: Any, shape: list[int]) -> None:
        if value.type not in _NUMPY:
            raise UnsupportedModelError(
                f"the cache of the graph is {value.type}, which NumPy does not have; calibrate "
                "an fp32 or fp16 export of the model"
            )
        array = np.zeros(shape, _NUMPY[value.type])
        self._state.append(array)  # ONNX Runtime keeps the pointer, Python must keep the memory
        where = ("cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._binding.bind_input(value.name, *where)
        self._binding.bind_output(value.name.replace("past_", "present_", 1), *where)

    def run(self, documents: Sequence[Sequence[int]], chunk: int = CHUNK) -> Iterator[Activations]:
        """Reads documents, each from an empty cache; yields one chunk at a time.

        Args:
            documents: token ids.
            chunk: tokens per call.

        Raises:
            TextError: the model does not run on these tokens.
            UnsupportedModelError: a layer computes numbers that are not finite.
        """
        for index, document in enumerate(documents):
            ids = np.asarray(document, np.int64)
            for start in range(0, ids.size, chunk):
                yield self._call(index, start, ids[start : start + chunk])

    def _call(self, document: int, start: int, ids: npt.NDArray[np.int64]) -> Activations:
        feeds = {
            "input_ids": ids[None],
            "past_lengths": np.array([start], np.int32),
            "total_lengths": np.array([start + ids.size], np.int32),
            "logit_positions": np.array([[ids.size - 1]], np.int64),
        }
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, array)
        # Bound anew in every call: ONNX Runtime would reuse the last one's arrays, sizes and all.
        for name in ("logits", *_names(self.layers)):
            self._binding.bind_output(name, "cpu")
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # ORT's exceptions have no common public base
            raise TextError(
                f"the model does not run on tokens {start}..{start + ids.size - 1} of calibration "
                f"document {document} ({first_line(error)}); is its tokenizer.json its own?"
            ) from error
        # Outputs come in the order of binding: states, logits, then the captured ones.
        outputs = self._binding.get_outputs()[len(self._state) + 1 :]
        found: dict[str, list[Array]] = {kind: [] for kind in _KINDS}
        for position, output in enumerate(outputs):
            layer, kind = self.layers[position // 3], _KINDS[position % 3]
            array = output.numpy()
            if not np.isfinite(array).all():
                raise UnsupportedModelError(
                    f"layer {layer.layer} computes {kind} vectors that are not finite on "
                    f"calibration document {document}, tokens {start}..{start + ids.size - 1}; "
                    "the weights are damaged or the model's type overflows: export it in fp32"
                )
            found[kind].append(array.reshape(ids.size, -1, layer.head_dim))
        return Activations(document, start, **found)


def _names(layers: Sequence[ExactLayer]) -> list[str]:
    return [f"{_EXTRA}.{layer.layer}.{kind}" for layer in layers for kind in _KINDS]


def _open(file: Path, layers: Sequence[ExactLayer]) -> Any:
    ort = load_onnxruntime()
    model = onnx.load(file, load_external_data=False)
    names = iter(_names(layers))
    for layer in layers:
        for index in range(len(_KINDS)):
            name = next(names)
            source = layer.operand(index).name or ""
            # A cast, not the value itself: fp16 arrives as fp32, and fp32 costs one copy.
            to_float = onnx.helper.make_node("Cast", [source], [name], to=onnx.TensorProto.FLOAT)
            model.graph.node.append(to_float)
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    options = ort.SessionOptions()
    options.log_severity_level = 4  # the exception says it all
    # Its threads would spin for work while NumPy's threads use the activations, and slow these.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.register_custom_ops_library(str(ort_library_path()))
    folder = str(file.resolve().parent)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        return ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise PackageError(
            f"onnxruntime {ort.__version__} cannot load {str(file)!r} ({first_line(error)}); "
            "export again"
        ) from error
