"""The model on a device, with ONNX Runtime itself: its values lie in the host's memory here.

A stand-in takes what it is given; this shows that the real bindings and values do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from minicache.runtime import device_binding, open_model
from minicache.runtime.device_binding import DeviceModel
from minicache.runtime.session import Session
from tests.runtime.eviction.device_walk import walk

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("exact", {"evict": "h2o:62"}),
    ("slerp", {"evict": "streaming:2+60", "retention": "minmax"}),
    ("slerp", {"evict": "snapkv:62"}),
]


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize(("variant", "model"), MODELS)
def test_values_over_addresses_are_read_and_written_in_parts(
    tiny_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    model: dict[str, Any],
) -> None:
    folder = tiny_folder(variant, **model)
    with Session(folder, batch_size=2, threads=1) as session:
        expected = list(walk(session, tmp_path, spoil=False))
    monkeypatch.setattr(device_binding, "_DEVICE", ("cpu", 0))
    monkeypatch.setattr(open_model, "BoundModel", DeviceModel)
    with Session(folder, batch_size=2, threads=1) as session:
        actual = list(walk(session, tmp_path, spoil=True))
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("ort_library")
def test_bfloat16_is_copied_as_its_bits(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy has no such type; ONNX Runtime is told that of the same size."""
    monkeypatch.setattr(device_binding, "_DEVICE", ("cpu", 0))
    monkeypatch.setattr(open_model, "BoundModel", DeviceModel)
    with Session(tiny_folder("exact"), batch_size=2, threads=1) as session:
        model, past = session._model, "past_minicache.0.exact_key"
        assert isinstance(model, DeviceModel)
        shape = session._cache.arrays[past].shape
        bits = np.random.default_rng(0).integers(0, 1 << 16, shape, np.uint16)
        value = onnxruntime.OrtValue
        model._states[past] = value.ortvalue_from_shape_and_type(list(shape), 16, "cpu", 0)
        session._cache.arrays[past] = bits.copy()
        model.push(slice(0, 2), [past])
        session._cache.arrays[past][:] = 0
        model.pull(slice(1, 2), [past])
        np.testing.assert_array_equal(session._cache.arrays[past][1], bits[1])
        assert not session._cache.arrays[past][0].any()
