"""xKV (arXiv:2503.18893): one low-rank factorisation of the prompt's cache of several layers.

The keys (before RoPE) of four neighbouring layers stand side by side as a matrix of T rows, and so
do their values. Each is replaced by its best approximation of rank r, A B: A holds r numbers per
token, B one row of all four layers' width for each of them. Ranks of keys and values are as 1 to
1.5, as in the authors' experiments. Both factors are held in fp16 and both are counted: B belongs
to the prompt, so that a short prompt pays more for it.

As in the authors' code the factors are those of the prompt, and what is generated after it is
kept exact. ``projected`` instead maps tokens that leave the window later onto the prompt's B, which
is not in the paper: then all of a long text is compressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.rivals.counting import coded_tokens
from benchmarks.rivals.rows import from_rows, to_rows, unrotate
from benchmarks.rivals.uniform import as_fp16
from minicache.exporter.baselines.cache_codec import check_exact_part, end_of_coded
from minicache.exporter.baselines.cache_shape import FP16_BYTES, CacheShape
from minicache.exporter.calibration.rope_probe import Rope
from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]

GROUP_LAYERS = 4
VALUE_SHARE = 1.5  # rank of values over rank of keys


@dataclass(frozen=True)
class Factors:
    """A low-rank matrix.

    Attributes:
        rows: A, fp32 ``[T, r]`` with values that fp16 holds.
        basis: B, likewise ``[r, N]``; its rows are orthonormal but for that rounding.
    """

    rows: Array
    basis: Array

    @property
    def nbytes(self) -> int:
        """Bytes of both in fp16."""
        return FP16_BYTES * (self.rows.size + self.basis.size)


@dataclass
class XKv:
    """A prompt's joint factorisation.

    Attributes:
        ratio: fp16 bytes of the prompt's coded tokens over those of the factors, at least.
        shape: of the model's cache.
        ropes: of each coded layer.
        prompt: tokens of the prompts, for counting bytes.
        sinks: first tokens, kept exact; 0 in the paper.
        window: last tokens of the prompt, kept exact; 0 in the paper.
        projected: later tokens are mapped onto the prompt's basis, not kept exact.
        name: for tables; empty: ``xkv-{ratio}x``.
    """

    ratio: float
    shape: CacheShape
    ropes: Sequence[Rope]
    prompt: int
    sinks: int = 0
    window: int = 0
    projected: bool = False
    name: str = ""
    # Of the prompt that was read last, keys' and values', by group of layers.
    _bases: list[tuple[Array, Array]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        check_exact_part(self.sinks, self.window)
        if self.ratio <= 0 or self.prompt <= self.sinks + self.window:
            raise PlanError(
                f"a prompt of {self.prompt} tokens at a ratio of {self.ratio} leaves nothing to "
                "factorise; give a longer prompt and a ratio above 0"
            )
        self.name = self.name or f"xkv-{self.ratio:g}x"

    def _groups(self) -> list[range]:
        layers = self.shape.layers
        starts = range(0, layers, GROUP_LAYERS)
        return [range(start, min(start + GROUP_LAYERS, layers)) for start in starts]

    def ranks(self, tokens: int, layers: int) -> tuple[int, int]:
        """Ranks of keys and values of a group of ``layers`` layers and ``tokens`` coded tokens.

        Raises:
            PlanError: not even one dimension of each is within the ratio.
        """
        width = layers * self.shape.num_kv_heads * self.shape.head_dim
        numbers = 2 * tokens * width / self.ratio  # of both pairs of factors
        most = min(tokens, width)
        both = int(numbers / (tokens + width))
        key = min(int(both / (1 + VALUE_SHARE)), most)
        value = min(both - key, most)
        key = min(both - value, most)
        if key < 1:
            raise PlanError(
                f"no factors of {tokens} tokens are {self.ratio:g} times smaller than the tokens; "
                "give a longer prompt or a smaller ratio"
            )
        return key, value

    @property
    def bits_per_element(self) -> float:
        """Of the prompt's coded tokens, the basis included."""
        tokens = self.prompt - self.sinks - self.window
        return 8 * self._factor_bytes(tokens, tokens) / (tokens * self.shape.elements_per_token)

    def _factor_bytes(self, prompt: int, coded: int) -> int:
        """Bytes of all factors: ranks are chosen for ``prompt`` tokens, ``coded`` have rows."""
        total = 0
        for group in self._groups():
            width = len(group) * self.shape.num_kv_heads * self.shape.head_dim
            total += sum(self.ranks(prompt, len(group))) * (coded + width)
        return FP16_BYTES * total

    def coded_end(self, past: int) -> int:
        """All but the window; what later tokens become is up to ``rewrite``."""
        return end_of_coded(past, self.sinks, self.window)

    def encode(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> list[tuple[Factors, Factors]]:
        """Factors of keys and values by group of layers; arguments as of ``CacheCodec.rewrite``."""
        plain = unrotate(keys_LHkTD, self.ropes, start)
        held = []
        for group in self._groups():
            ranks = self.ranks(plain[0].shape[1], len(group))
            key, value = (
                factorise(np.concatenate([to_rows(kind[i]) for i in group], axis=1), rank)
                for kind, rank in zip((plain, values_LHkTD), ranks, strict=True)
            )
            held.append((key, value))
        return held

    def decode(
        self, held: Sequence[tuple[Factors, Factors]], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Keys and values by layer ``[Hk, T, D]`` of what ``encode`` gave."""
        keys: list[Array] = []
        values: list[Array] = []
        for group, both in zip(self._groups(), held, strict=True):
            for found, factors in zip((keys, values), both, strict=True):
                joint = factors.rows @ factors.basis
                layers = np.split(joint, len(group), axis=1)
                found += [from_rows(rows, self.shape.num_kv_heads) for rows in layers]
        return unrotate(keys, self.ropes, start, back=True), values

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Factorises a prompt; gives back later tokens as they are, or projected.

        What begins behind the sinks is a prompt; see ``CacheCodec.rewrite``.
        """
        if start <= self.sinks:
            held = self.encode(keys_LHkTD, values_LHkTD, start)
            self._bases = [(key.basis, value.basis) for key, value in held]
            return self.decode(held, start)
        if not self.projected:
            keys, values = (
                [np.asarray(x, np.float32) for x in kind] for kind in (keys_LHkTD, values_LHkTD)
            )
            return keys, values
        plain = unrotate(keys_LHkTD, self.ropes, start)
        later: list[tuple[Factors, Factors]] = []
        for group, bases in zip(self._groups(), self._bases, strict=True):
            key, value = (
                project(np.concatenate([to_rows(kind[i]) for i in group], axis=1), basis)
                for kind, basis in zip((plain, values_LHkTD), bases, strict=True)
            )
            later.append((key, value))
        return self.decode(later, start)

    def cache_bytes(self, context: int) -> int:
        """Factors of the prompt, all else in fp16."""
        prompt = min(self.prompt, context)
        first = prompt - self.sinks - self.window
        if first < 1:
            return self.shape.fp16_bytes(context)
        coded = coded_tokens(self, context) if self.projected else first
        return self._factor_bytes(first, coded) + self.shape.fp16_bytes(context - coded)


def factorise(matrix_TN: Array, rank: int) -> Factors:
    """The best approximation of a matrix ``[T, N]`` by one of rank ``rank``."""
    left, values, right = np.linalg.svd(matrix_TN, full_matrices=False)
    return Factors(as_fp16(left[:, :rank] * values[:rank]), as_fp16(right[:rank]))


def project(matrix_TN: Array, basis: Array) -> Factors:
    """Rows of ``matrix_TN`` in a given basis ``[r, N]``, which is not counted again."""
    return Factors(as_fp16(matrix_TN @ basis.T), basis)
