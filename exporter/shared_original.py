"""An original GroupQueryAttention graph with its cache in place, the best way it can be driven.

Past and present are one buffer of the full capacity (``past_present_share_buffer``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.find_attention import find_sites
from minicache.exporter.io import find_model_file, load_model, read_facts
from minicache.exporter.original_inputs import ring_inputs
from minicache.exporter.original_session import OriginalSession
from minicache.exporter.sites import GROUP_QUERY, ModelDescription
from minicache.runtime.errors import SessionError, UnsupportedModelError
from minicache.runtime.ort import first_line, load_onnxruntime

Array = npt.NDArray[Any]


def can_share(description: ModelDescription) -> bool:
    """Whether past and present of a model may be one buffer."""
    return description.form == GROUP_QUERY and not ring_inputs(description)


class SharedOriginal:
    """Reads tokens of one row; the cache is allocated once.

    Args:
        session: an ``onnxruntime.InferenceSession`` of the model.
        description: of the model.
        capacity: tokens to allocate for.
        kind: NumPy type of the cache; None: the model's.

    Attributes:
        buffers: the cache by graph input, ``[1, Hk, capacity, D]``.

    Raises:
        UnsupportedModelError: another form of attention, or rings of a sliding window.
    """

    def __init__(
        self,
        session: Any,
        description: ModelDescription,
        capacity: int,
        kind: npt.DTypeLike | None = None,
    ) -> None:
        if not can_share(description):
            raise UnsupportedModelError(
                f"the cache of form {description.form} cannot stay in place; drive the model with "
                "a growing one"
            )
        values = load_onnxruntime().OrtValue
        self._session, self._logits = session, description.logits.name
        self._names = {value.name for value in session.get_inputs()}
        self._capacity, self._length = capacity, 0
        self.buffers: dict[str, Array] = {}
        self._bound: list[tuple[str, str, Any]] = []
        for site in description.sites:
            for past, present in (
                (site.past_key, site.present_key),
                (site.past_value, site.present_value),
            ):
                shape = 1, site.num_kv_heads, capacity, site.head_dim
                name = past.name or ""
                self.buffers[name] = np.zeros(shape, site.dtype.numpy() if kind is None else kind)
                value = values.ortvalue_from_numpy(self.buffers[name])
                self._bound.append((name, present.name or "", value))

    @staticmethod
    def open(path: Path, capacity: int, threads: int | None = None) -> SharedOriginal:
        """Opens a model.

        Raises:
            ModelFileError: ONNX Runtime does not load it.
            UnsupportedModelError: its cache cannot stay in place.
        """
        file = find_model_file(path)
        model = load_model(file)
        description = find_sites(model, read_facts(file))
        session = OriginalSession(file, model, threads, unrounded=False, lean=False)
        return SharedOriginal(session.bare, description, capacity)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(array.nbytes for array in self.buffers.values())

    def reset(self) -> None:
        """Empties the cache; the buffers stay."""
        self._length = 0

    def forward(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Appends tokens ``[1, S]``; returns logits ``[1, S, V]``.

        Raises:
            SessionError: more than the capacity, or ONNX Runtime fails.
        """
        return np.asarray(self.step(ids).numpy(), np.float32)

    def step(self, ids: npt.NDArray[np.int64]) -> Any:
        """Like ``forward``; the logits stay ONNX Runtime's value."""
        total = self._length + ids.shape[1]
        if total > self._capacity:
            raise SessionError(
                f"{total} tokens do not fit into buffers of {self._capacity}; give fewer"
            )
        given = {
            "input_ids": np.ascontiguousarray(ids, np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(self._length, total, dtype=np.int64)[None],
        }
        binding = self._session.io_binding()
        for name in self._names & set(given):
            binding.bind_cpu_input(name, given[name])
        for past, present, value in self._bound:
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        binding.bind_output(self._logits, "cpu")
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # ORT's exceptions have no common public base
            raise SessionError(
                f"the original model fails with {ids.shape[1]} tokens after {self._length} in "
                f"shared buffers: {first_line(error)}; drive it with a growing cache"
            ) from error
        self._length = total
        return binding.get_outputs()[-1]  # the last one that was bound
