"""Folders that engines are built of in tests: small models in fp16, kernels that are only named."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicache.exporter.kernels import kernel_keys
from minicache.exporter.pipeline import ExportResult
from minicache.exporter.plan import Group, Plan
from minicache.exporter.plan_file import write_plan
from minicache.plugins.library import tensorrt_library_path
from minicache.plugins.triton.compile import NULL_POINTERS
from minicache.plugins.triton.kernel_pack import PackedImage, PackedKernel, write_pack
from minicache.plugins.triton.signatures import SIGNATURES
from minicache.plugins.triton.variant import divisors, parse_key
from minicache.runtime.errors import MissingDependencyError
from minicache.runtime.manifest import Manifest
from tests.byte_tokenizer import byte_tokenizer
from tests.exporter.half import half_fixture
from tests.exporter.subspace_workplace import CAPACITY, SINKS, SLACK, WINDOW, Workplace, prose

# Four layers each; those of GenAI have fused norms and rotary embeddings.
MODELS = {
    "llama3-gqa": "onnx-llama3-gqa-optimum-fp32",
    "llama2-mha": "onnx-llama2-mha-optimum-fp32",
    "qwen3": "onnx-qwen3-optimum-fp32",
    "phi3": "onnx-phi3-optimum-fp32",
    "qwen3-genai": "genai-qwen3-cpu-fp32",
    "qwen2-genai": "genai-qwen2-cpu-fp32",
    "llama3-torch": "onnx-llama3-gqa-dynamo-opset23",
    "llama3-mobius": "mob-llama3-gqa-default",
}
LAYERS = 4


def half_workplace(root: Path, fixture: str) -> Workplace:
    """As ``Workplace.make``, of a fixture in fp16."""
    folder = half_fixture(fixture, root / "model")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (root / "text.txt").write_text(prose(8, 600), encoding="utf-8")
    return Workplace(root)


def export_for_tensorrt(place: Workplace, mode: str) -> ExportResult:
    """Exports in a mode: pairs of layers in the coded ones; kernels are named, not compiled."""
    options = {"target": "tensorrt", "no_kernels": True, "mode": mode}
    if mode == "paper":
        options |= {"start_layer": 0, "retention": "budget:0.1"}
    if mode == "subspace":
        # A head of few numbers is too small for a code of its own on a GPU.
        groups = tuple(
            Group((layer, layer + 1), "subspace", code_heads=1, key_bits_per_element=6.0,
                  value_bits_per_element=4.6)
            for layer in range(0, LAYERS, 2)
        )  # fmt: skip
        plan = place.root / "mine.json"
        write_plan(Plan("subspace", groups, CAPACITY, WINDOW, SINKS, SLACK), plan)
        options |= {"plan": plan}
    result = place.export(mode, **options)
    name_kernels(result.folder)
    return result


def name_kernels(folder: Path) -> None:
    """Writes a pack of all kernels that a folder needs, without code: heads of 8 do not compile.

    A build asks whether a kernel is there and what it takes; only a device would run it.
    """
    kernels = []
    for key in kernel_keys(folder, Manifest.load(folder)):
        variant = parse_key(key)
        signature = SIGNATURES[variant.kernel]
        kinds = zip(signature.arguments, divisors(variant, signature), strict=True)
        arguments = tuple((each.name, each.kind, divisor) for each, divisor in kinds)
        image = PackedImage(80, True, 4, 0, b"// only a name\0")
        kernels.append(PackedKernel(key, variant.kernel, arguments, NULL_POINTERS, (image,)))
    write_pack(folder / "kernels", kernels, {})


def require_tensorrt() -> None:
    """Skips where no engine can be built."""
    pytest.importorskip("tensorrt_rtx_libs", reason="TensorRT-RTX is not installed")
    try:
        tensorrt_library_path()
    except MissingDependencyError as error:
        pytest.skip(f"the TensorRT plugin library is not built: {error}")
