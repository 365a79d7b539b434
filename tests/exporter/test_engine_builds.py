"""Real builds by TensorRT-RTX, which need no GPU: kinds of models, three modes, two profiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minicache.exporter.engine.builder import BuildOptions, build_engine
from minicache.runtime.engine_file import ENGINE_NAME, SIDECAR_NAME, EngineFile
from minicache.runtime.engine_profile import DECODE, PREFILL
from tests.exporter.engines import (
    LAYERS,
    MODELS,
    export_for_tensorrt,
    half_workplace,
    require_tensorrt,
)
from tests.exporter.subspace_workplace import CAPACITY, Workplace

pytestmark = pytest.mark.usefixtures("ort_library", "tensorrt")

QUICK = {("llama3-gqa", "subspace"), ("qwen3-genai", "exact")}
CASES = [
    pytest.param(model, mode, marks=() if (model, mode) in QUICK else pytest.mark.slow)
    for model in list(MODELS)[:5]
    for mode in ("exact", "paper", "subspace")
]
# The other graph forms: after the rewrite only the nodes around attention differ.
CASES += [pytest.param(name, "exact", marks=pytest.mark.slow) for name in list(MODELS)[-2:]]


@pytest.fixture(scope="module")
def tensorrt() -> None:
    require_tensorrt()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Workplace]:
    """The place of a model, made when first asked for."""
    made: dict[str, Workplace] = {}

    def find(model: str) -> Workplace:
        if model not in made:
            made[model] = half_workplace(tmp_path_factory.mktemp(model), MODELS[model])
        return made[model]

    return find


@pytest.mark.parametrize(("model", "mode"), CASES)
def test_an_engine_has_every_layer_in_both_profiles(
    model: str, mode: str, workplace: Callable[[str], Workplace]
) -> None:
    """As plugins that work in place: an engine that copied a state would not be accepted."""
    folder = export_for_tensorrt(workplace(model), mode).folder
    result = build_engine(folder, BuildOptions(quiet=True, max_batch_size=2))
    layers = [f"minicache_attention_{layer}" for layer in range(LAYERS)]
    assert result.plugins == layers + [f"{layer} [profile 1]" for layer in layers]
    file = EngineFile.load(folder)
    assert file == result.file
    file.check_folder(folder)
    assert [profile.name for profile in file.profiles] == [DECODE, PREFILL]
    assert [(p.batch, p.tokens, p.capacity) for p in file.profiles] == [
        (2, 1, CAPACITY), (2, CAPACITY, CAPACITY)
    ]  # fmt: skip
    assert {"8.0", "8.6", "8.9"} < set(file.capabilities) and "7.5" not in file.capabilities
    # The kernels travel in the engine, once for all layers of a profile.
    engine = (folder / ENGINE_NAME).read_bytes()
    assert engine.count((folder / "kernels" / "kernels.bin").read_bytes()) == 2
    names = {path.name for path in folder.iterdir()}
    assert {ENGINE_NAME, SIDECAR_NAME} < names
    assert not any("partial" in name or name == "engine.log" for name in names)


def test_one_capability_one_profile_and_a_chunk(workplace: Callable[[str], Workplace]) -> None:
    folder = export_for_tensorrt(workplace("qwen2-genai"), "exact").folder
    both = build_engine(folder, BuildOptions(quiet=True, capabilities=("8.9",), rtx=True)).file
    options = BuildOptions(quiet=True, capabilities=("8.9",), chunk=32, single_profile=True)
    result = build_engine(folder, options)
    file = EngineFile.load(folder)
    assert file.capabilities == both.capabilities == ("8.9",)
    assert file.flavour == both.flavour == "tensorrt_rtx"
    assert [(each.name, each.tokens) for each in file.profiles] == [(PREFILL, 32)]
    assert file.profiles[0].covers(batch=1, tokens=1, positions=1, capacity=CAPACITY)
    assert result.plugins == [f"minicache_attention_{layer}" for layer in range(LAYERS)]
    assert file.engine_bytes < 0.6 * both.engine_bytes
