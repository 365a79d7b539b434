"""Drives the model as it was exported, with its own growing cache: the judge of everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.find_attention import find_sites
from minicache.exporter.io import find_model_file, load_model, read_facts, weight_bytes
from minicache.exporter.original_inputs import (
    INTEGERS,
    check_inputs,
    idle_inputs,
    ring_inputs,
)
from minicache.exporter.original_session import OriginalSession, WrongShapesError
from minicache.exporter.shared_original import SharedOriginal, can_share
from minicache.exporter.sites import GROUP_QUERY, ModelDescription
from minicache.exporter.time_limit import seconds_for
from minicache.runtime.errors import SessionError
from minicache.runtime.ort import first_line


class OriginalModel:
    """An original model of any supported form in ONNX Runtime.

    The grown caches are bound as the next call's past without a copy. Rows of a batch must be
    equally long: the original knows padding only by its mask, which exporters treat differently.

    Args:
        path: the model, or its folder.
        threads: threads inside one operator; None leaves the choice to ONNX Runtime.
        unrounded: keep ``MatMulNBits`` from rounding activations (see ``full_precision``).
        lean: of a large model, use the weights where they are mapped, instead of a packed copy:
            for one that stands beside another session. Prefills take about 1.5 times as long.

    Raises:
        ModelFileError: the file is no model, or ONNX Runtime does not load it.
        UnsupportedModelError: its cache is not understood.
    """

    def __init__(
        self,
        path: Path | str,
        threads: int | None = None,
        *,
        unrounded: bool = False,
        lean: bool = False,
    ) -> None:
        file = find_model_file(path)
        model = load_model(file)
        self._weight_bytes = weight_bytes(model)
        self._description: ModelDescription = find_sites(model, read_facts(file))
        self._session = OriginalSession(file, model, threads, unrounded=unrounded, lean=lean)
        self._types = self._session.types
        self._idle = idle_inputs(model)
        check_inputs(self._types, {*self._present_names(), *self._idle})
        self._rings = ring_inputs(self._description)
        self._item_bytes = int(self._description.sites[0].dtype.itemsize)
        self._past: dict[str, Any] = {}
        self._length = 0
        self._batch = 0
        self._takes_chunks = True

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._length

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary V."""
        return self._description.vocab_size

    @property
    def fixed_batch(self) -> int:
        """Rows that the graph takes; 0: any number."""
        return self._description.fixed_batch

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache as it is between two calls."""
        return sum(math.prod(value.shape()) * self._item_bytes for value in self._past.values())

    def sharing(self, capacity: int) -> SharedOriginal | None:
        """Another cache of this model, in buffers that stay; None where its form grows caches."""
        if not can_share(self._description):
            return None
        return SharedOriginal(self._session.bare, self._description, capacity)

    def reset(self) -> None:
        """Empties the cache."""
        self._past, self._length, self._batch = {}, 0, 0

    def forward(self, input_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Appends tokens and returns their logits.

        Args:
            input_ids: int64 [B, S], no padding.

        Returns:
            float32 [B, S, V].

        Raises:
            SessionError: B is not that of the tokens before, or ONNX Runtime fails.
        """
        ids = np.ascontiguousarray(input_ids, np.int64)
        if not self._length or ids.shape[1] == 1:
            return np.asarray(self._run(ids).numpy(), np.float32)
        if self._takes_chunks:
            try:
                return np.asarray(self._run(ids).numpy(), np.float32)
            except SessionError:  # nothing has advanced: some graphs take a prompt or one token
                self._takes_chunks = False
        parts = [self._run(ids[:, i : i + 1]).numpy() for i in range(ids.shape[1])]
        return np.asarray(np.concatenate(parts, axis=1), np.float32)

    def step(self, input_ids: npt.NDArray[np.int64]) -> None:
        """Like ``forward`` without reading the logits; for timing."""
        self._run(np.ascontiguousarray(input_ids, np.int64))

    def logits_of(self, input_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Logits [B, S, V] of whole sequences [B, S], with an empty cache before and after."""
        self.reset()
        try:
            return self.forward(input_ids)
        finally:
            self.reset()

    def padded_logits(
        self, rows: Sequence[npt.NDArray[np.int64]]
    ) -> list[npt.NDArray[np.float32]] | None:
        """Logits of rows of different lengths as one batch, padded as the model expects it.

        On the left, with positions counted from each row's first token, as transformers pads; on
        the right for ``GroupQueryAttention``, which takes lengths from the mask.

        Returns:
            float32 [len(row), V] per row; None for a model without ``attention_mask``.

        Raises:
            SessionError: the model cannot run a padded batch.
        """
        if "attention_mask" not in self._types:
            return None
        right = GROUP_QUERY in self._description.form
        lengths = np.array([len(row) for row in rows])
        ids = np.zeros((len(rows), lengths.max()), np.int64)
        places = [slice(0, n) if right else slice(ids.shape[1] - n, None) for n in lengths]
        mask = np.zeros_like(ids)
        for index, (row, place) in enumerate(zip(rows, places, strict=True)):
            ids[index, place], mask[index, place] = row, 1
        self.reset()
        try:
            logits = self._run(ids, mask).numpy()
        finally:
            self.reset()
        pairs = enumerate(places)
        return [np.asarray(logits[index, place], np.float32) for index, place in pairs]

    def _run(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64] | None = None) -> Any:
        batch, new = ids.shape
        if self._length and batch != self._batch:
            raise SessionError(
                f"input_ids has {batch} rows, the cache holds {self._batch}; call reset() first"
            )
        if not self._length:
            self._batch, self._past = batch, self._empty(batch)
        seconds = seconds_for(self._weight_bytes, batch * new)
        try:
            binding = self._bind(ids, mask)
            try:
                self._session.run(binding, seconds)
            except WrongShapesError:
                binding = self._bind(ids, mask)
                self._session.run(binding, seconds)
        except Exception as error:  # ORT's exceptions have no common public base
            raise SessionError(
                f"The original model fails with {new} tokens after {self._length}: "
                f"{first_line(error)}; export it again, for any number of tokens"
            ) from error
        logits, present = self._description.logits.name, self._present_names()
        values = dict(zip([logits, *present.values()], binding.get_outputs(), strict=True))
        # A ring's memory belongs to the value that was made from NumPy: that one must stay.
        grown = {past: values[name] for past, name in present.items() if past not in self._rings}
        self._past.update(grown)
        self._length += new
        return values[logits]

    def _bind(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64] | None) -> Any:
        binding = self._session.io_binding()
        for name, array in self._tokens(ids, mask).items():
            binding.bind_cpu_input(name, array)
        for name, value in self._past.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(self._description.logits.name, "cpu")
        for past, name in self._present_names().items():
            if past in self._rings:
                binding.bind_ortvalue_output(name, self._past[past])
            else:
                binding.bind_output(name, "cpu")
        return binding

    def _tokens(
        self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64] | None
    ) -> dict[str, npt.NDArray[Any]]:
        batch, new = ids.shape
        total = self._length + new
        made: dict[str, npt.NDArray[Any]] = {"input_ids": ids}
        mask = np.ones((batch, total), np.int64) if mask is None else mask
        made["attention_mask"] = mask
        made["position_ids"] = np.maximum(mask.cumsum(1) - 1, 0)[:, self._length :]
        typed: dict[str, npt.NDArray[Any]] = {
            name: array.astype(INTEGERS[self._types[name]])
            for name, array in made.items()
            if name in self._types
        }
        return self._idle | typed

    def _present_names(self) -> dict[str, str]:
        """Cache input to the cache output that replaces it."""
        names = {}
        for site in self._description.sites:
            names[site.past_key.name or ""] = site.present_key.name or ""
            names[site.past_value.name or ""] = site.present_value.name or ""
        return names

    def _empty(self, batch: int) -> dict[str, Any]:
        past = {}
        for site in self._description.sites:
            # A ring is written in place; everything else grows.
            slots = site.local_window if site.past_key.name in self._rings else 0
            shape = (batch, site.num_kv_heads, slots, site.head_dim)
            for value in (site.past_key, site.past_value):
                zeros = np.zeros(shape, site.dtype.numpy())
                past[value.name or ""] = self._session.ort.OrtValue.ortvalue_from_numpy(zeros)
        return past
