"""Reads the keys and values that a model computes, with the original graph in ONNX Runtime.

A decoder with a cache returns what goes into it: keys after RoPE and values as projected. So no
graph surgery is needed, only the names of these outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minicache.exporter.facts import read_facts
from minicache.exporter.io import find_model_file
from minicache.runtime.errors import ModelFileError, TextError, UnsupportedModelError
from minicache.runtime.ort import load_onnxruntime
from minicache.runtime.progress import Step

Array = npt.NDArray[np.float32]

# `present.3.key`, `past_key_values.3.value`, `output.past_key_values.layers.3.keys`, ...
CACHE_NAME = re.compile(r"(?:^|[._])(\d+)[._](key|value)s?$")
ELEMENT_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


class CacheTensor(NamedTuple):
    """One cache input or output of a graph."""

    layer: int
    kind: str
    name: str


def capture_key_values(
    model: Path | str,
    token_documents: Sequence[Sequence[int]],
    max_tokens: int | None = None,
    progress: Step | None = None,
) -> tuple[list[Array], list[Array]]:
    """Runs documents through the model, each from an empty cache.

    Args:
        model: the original ``.onnx`` file, or its folder. Cache outputs are ``[1, Hk, T, D]``.
        token_documents: token ids per document.
        max_tokens: stops after so many tokens in total; memory grows with it.
        progress: advanced by the tokens of every document.

    Returns:
        keys and values by layer, each ``[tokens, Hk, D]`` fp32, documents one after the other.

    Raises:
        ModelFileError: ONNX Runtime cannot load the model.
        UnsupportedModelError: the graph has no cache outputs of this kind, or unknown inputs.
        TextError: no tokens, or some that the model does not have.
    """
    file = find_model_file(model)
    session = _open(file)
    present = _cache_tensors(session.get_outputs())
    layers = sorted({tensor.layer for tensor in present})
    if not layers or len(present) != 2 * len(layers):
        raise UnsupportedModelError(
            f"{str(file)!r} has {len(present)} outputs named like present.0.key and "
            "present.0.value, a profile needs both for every layer; export it with its cache"
        )
    parts: dict[tuple[int, str], list[Array]] = {(t.layer, t.kind): [] for t in present}
    for ids in _cut(token_documents, max_tokens):
        feeds = _feeds(session, ids, file)
        try:
            outputs = session.run([tensor.name for tensor in present], feeds)
        except Exception as error:  # ONNX Runtime raises several unrelated classes
            message = str(error)
            if "indices element out of data bounds" in message:
                raise TextError(
                    f"The model does not have all tokens of the text (up to {ids.max()}); "
                    "the tokenizer.json beside it is another model's"
                ) from error
            raise ModelFileError(
                f"{str(file)!r} fails on {ids.size} tokens: {message.splitlines()[0]}"
            ) from error
        for tensor, output in zip(present, outputs, strict=True):
            parts[tensor.layer, tensor.kind].append(_by_token(output, tensor.name))
        if progress is not None:
            progress.advance(ids.size)
    if not any(parts.values()):
        raise TextError("There are no tokens to run the model on; give a longer text")
    keys = [np.concatenate(parts[layer, "key"]) for layer in layers]
    values = [np.concatenate(parts[layer, "value"]) for layer in layers]
    return keys, values


def _open(file: Path) -> Any:
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # the exception says it all
    try:
        return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises several unrelated classes
        raise ModelFileError(
            f"onnxruntime {ort.__version__} cannot load {str(file)!r}: {str(error).splitlines()[0]}"
        ) from error


def _cache_tensors(tensors: Sequence[Any]) -> list[CacheTensor]:
    found = []
    for tensor in tensors:
        if match := CACHE_NAME.search(tensor.name):
            found.append(CacheTensor(int(match[1]), match[2], tensor.name))
    return found


def _cut(documents: Sequence[Sequence[int]], limit: int | None) -> Iterator[npt.NDArray[np.int64]]:
    left = limit if limit is not None else sum(map(len, documents))
    for document in documents:
        ids = np.asarray(document[:left], np.int64)
        left -= ids.size
        if ids.size:
            yield ids


def _feeds(session: Any, ids: npt.NDArray[np.int64], file: Path) -> dict[str, npt.NDArray[Any]]:
    """Everything but the cache is known by name; the cache starts empty."""
    known = {
        "input_ids": ids[None],
        "attention_mask": np.ones((1, ids.size), np.int64),
        "position_ids": np.arange(ids.size, dtype=np.int64)[None],
    }
    feeds: dict[str, npt.NDArray[Any]] = {}
    for tensor in session.get_inputs():
        dtype = ELEMENT_TYPES.get(tensor.type)
        if dtype is None:
            raise UnsupportedModelError(
                f"The input {tensor.name!r} is {tensor.type}, which NumPy does not have; "
                "export the model in fp32 or fp16 to profile it"
            )
        if tensor.name in known:
            feeds[tensor.name] = known[tensor.name].astype(dtype)
        elif CACHE_NAME.search(tensor.name):
            feeds[tensor.name] = np.zeros(_empty_shape(tensor, file), dtype)
        else:
            raise UnsupportedModelError(
                f"The input {tensor.name!r} is unknown; a profile can feed {', '.join(known)} "
                "and the cache"
            )
    return feeds


def _empty_shape(tensor: Any, file: Path) -> tuple[int, int, int, int]:
    shape = list(tensor.shape)
    if len(shape) != 4 or not isinstance(shape[1], int):
        raise UnsupportedModelError(
            f"The cache input {tensor.name!r} has shape {shape}, "
            "not [batch, kv heads, past, head size]"
        )
    # GenAI graphs leave the head size symbolic and state it in genai_config.json.
    head_dim = shape[3] if isinstance(shape[3], int) else read_facts(file.parent).head_dim
    if head_dim is None:
        raise UnsupportedModelError(
            f"The head size of {tensor.name!r} is not in the graph; put config.json or "
            "genai_config.json beside the model"
        )
    return 1, shape[1], 0, head_dim


def _by_token(cache: npt.NDArray[Any], name: str) -> Array:
    if cache.ndim != 4 or cache.shape[0] != 1:
        raise UnsupportedModelError(
            f"The cache output {name!r} has shape {list(cache.shape)}, "
            "not [1, kv heads, tokens, head size]"
        )
    return np.ascontiguousarray(cache[0].transpose(1, 0, 2), dtype=np.float32)
