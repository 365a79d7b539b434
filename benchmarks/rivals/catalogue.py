"""The rival methods by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.rivals.model_facts import ModelFacts
from benchmarks.rivals.vfold import VFold
from benchmarks.rivals.xkv import XKv
from benchmarks.rivals.xquant import XQuant
from benchmarks.rivals.xquant_cl import XQuantCl
from benchmarks.rivals.xquant_reuse import Shared, XQuantReuse
from minicache.exporter.baselines.cache_codec import CacheCodec


@dataclass(frozen=True)
class Exact:
    """Tokens that stay exact.

    Attributes:
        sinks: first tokens.
        window: recent tokens.
    """

    sinks: int
    window: int


Maker = Callable[[ModelFacts, Exact, str], CacheCodec]


@dataclass(frozen=True)
class Rival:
    """A method and its setting.

    Attributes:
        make: makes the codec, of the given name.
        exact: what the method itself keeps exact.
        count: makes one that has the same bytes and is not fitted to a text; None: ``make`` does.
    """

    make: Maker
    exact: Exact
    count: Maker | None = None


def _xquant(bits: int, facts: ModelFacts, exact: Exact, name: str) -> CacheCodec:
    parts = facts.shape, facts.projections, facts.ropes
    return XQuant(bits, *parts, exact.sinks, exact.window, name)


def _xquant_cl(bits: int, facts: ModelFacts, exact: Exact, name: str) -> CacheCodec:
    parts = facts.shape, facts.projections, facts.ropes
    return XQuantCl(bits, *parts, exact.sinks, exact.window, name)


def _reuse(
    bits: int, shared: Shared, residual: int, facts: ModelFacts, exact: Exact, name: str
) -> CacheCodec:
    return XQuantReuse(bits, facts.shape, shared, residual, exact.sinks, exact.window, name)


def _xkv(ratio: float, projected: bool, facts: ModelFacts, exact: Exact, name: str) -> CacheCodec:
    prompt, ropes = facts.prompt, facts.ropes
    return XKv(ratio, facts.shape, ropes, prompt, exact.sinks, exact.window, projected, name)


def _vfold(layers: int, bits: int, facts: ModelFacts, exact: Exact, name: str) -> CacheCodec:
    maps = facts.maps(layers)
    return VFold(layers, facts.shape, maps, bits, exact.sinks, exact.window, name)


def _mean(layers: int, bits: int, facts: ModelFacts, exact: Exact, name: str) -> CacheCodec:
    maps = facts.identity_maps()
    return VFold(layers, facts.shape, maps, bits, exact.sinks, exact.window, name)


_LIKE_KIVI, _PROMPT, _FOLDED = Exact(0, 64), Exact(0, 0), Exact(4, 128)

RIVALS: dict[str, Rival] = {
    **{f"xquant-int{b}": Rival(partial(_xquant, b), _LIKE_KIVI) for b in (4, 3, 2)},
    **{f"xquant-cl-int{b}": Rival(partial(_xquant_cl, b), _LIKE_KIVI) for b in (4, 3, 2)},
    **{
        f"xquant-reuse-int{b}": Rival(partial(_reuse, b, "keys and values", 0), _LIKE_KIVI)
        for b in (4, 3, 2)
    },
    "xquant-reuse-values-int4": Rival(partial(_reuse, 4, "values", 0), _LIKE_KIVI),
    "xquant-reuse-residual-int2": Rival(partial(_reuse, 2, "keys and values", 4), _LIKE_KIVI),
    **{f"xkv-{x:g}x": Rival(partial(_xkv, x, False), _PROMPT) for x in (4, 5.3, 8)},
    **{f"xkv-projected-{x:g}x": Rival(partial(_xkv, x, True), _PROMPT) for x in (4, 8)},
    **{f"vfold-{g}": Rival(partial(_vfold, g, 0), _FOLDED, partial(_mean, g, 0)) for g in (2, 4)},
    "vfold-2-int4": Rival(partial(_vfold, 2, 4), _FOLDED, partial(_mean, 2, 4)),
    "value-mean-2": Rival(partial(_mean, 2, 0), _FOLDED),
}
