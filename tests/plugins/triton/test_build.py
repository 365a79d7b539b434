"""Compilation ahead of time, without a GPU: every kernel for two architectures and as PTX.

The compiler runs in processes of its own, where Triton's interpreter is off.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minicache.plugins.triton.kernel_pack import PackedImage, PackedKernel
from minicache.plugins.triton.read_pack import read_pack
from minicache.plugins.triton.resources import SHARED_LIMITS
from minicache.plugins.triton.signatures import SIGNATURES
from minicache.plugins.triton.standard import standard_variants
from minicache.plugins.triton.variant import Variant, divisors, parse_key
from tests.once import make_once
from tests.plugins.gpu.fake_driver import build_tools, drive

COMMAND = [sys.executable, "-m", "minicache.plugins.triton.build"]
ARCHITECTURES = (80, 120)
ELF = b"\x7fELF"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


def ci_variants() -> list[Variant]:
    """So many of the standard variants that each value of each type and constant occurs.

    Heads are of 128, the larger ones. Those that bring most come first.
    """
    left = standard_variants(head_sizes=(128,))
    chosen: list[Variant] = []
    seen: set[tuple[str, str, object]] = set()
    while left:
        best = max(left, key=lambda variant: len(_values(variant) - seen))
        if not _values(best) - seen:
            break
        chosen.append(best)
        seen |= _values(best)
    return chosen


def _values(variant: Variant) -> set[tuple[str, str, object]]:
    return {(variant.kernel, *pair) for pair in (*variant.types, *variant.constants)} | {
        (variant.kernel, "", "")
    }


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line."""
    command = [*COMMAND, "--output", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def pack_folder(tmp_path_factory: pytest.TempPathFactory, ort_library: Path) -> Path:
    """A pack of ``ci_variants``, compiled once per run."""
    pytest.importorskip("triton")

    def make(folder: Path) -> None:
        keys = folder / "variants.txt"
        keys.write_text("# of CI\n" + "\n".join(variant.key for variant in ci_variants()))
        arch = ["--arch", *map(str, ARCHITECTURES)]
        done = build(folder, *arch, "--variants", str(keys), "--jobs", "2")
        assert done.returncode == 0, done.stderr[-3000:]

    return make_once(tmp_path_factory, WORKER, "kernels", make)


@pytest.fixture(scope="session")
def pack(pack_folder: Path) -> list[PackedKernel]:
    """The kernels in it."""
    return read_pack(pack_folder)[0]


def images(pack: list[PackedKernel]) -> Iterator[tuple[PackedKernel, PackedImage]]:
    """Every image with its kernel."""
    for kernel in pack:
        for image in kernel.images:
            yield kernel, image


@pytest.mark.slow
def test_every_kernel_is_compiled(pack: list[PackedKernel]) -> None:
    """In order, for each architecture, and as PTX that CUDA 12.0 drivers compile."""
    assert [kernel.key for kernel in pack] == [variant.key for variant in ci_variants()]
    assert {kernel.symbol for kernel in pack} == set(SIGNATURES)
    for kernel in pack:
        assert [(i.arch, i.ptx) for i in kernel.images] == [(80, False), (80, True), (120, False)]
    for kernel, image in images(pack):
        if image.ptx:
            text = image.data.removesuffix(b"\0").decode()
            assert f".visible .entry {kernel.symbol}(" in text
            assert ".version 8.0\n.target sm_80\n" in text
        else:
            assert image.data.startswith(ELF)


@pytest.mark.slow
def test_parameters_are_those_of_the_table(pack: list[PackedKernel]) -> None:
    """The emitted entry takes our arguments and two pointers, which nothing uses."""
    for kernel in pack:
        variant = parse_key(kernel.key)
        signature = SIGNATURES[variant.kernel]
        named = [(argument.name, argument.kind) for argument in signature.arguments]
        assert [(name, kind) for name, kind, _ in kernel.arguments] == named
        assert [divisor for _, _, divisor in kernel.arguments] == divisors(variant, signature)
        ptx = next(image for image in kernel.images if image.ptx).data.decode()
        assert len(set(re.findall(r"\.param [^\n]*_param_\d+", ptx))) == len(named) + 2
        for spare in range(len(named), len(named) + kernel.null_pointers):
            assert f"[{kernel.symbol}_param_{spare}]" not in ptx, kernel.key


@pytest.mark.slow
def test_resources_fit_every_architecture(pack: list[PackedKernel]) -> None:
    """No spills, no scratch memory; shared memory fits the least that any architecture has."""
    for kernel, image in images(pack):
        facts = image.details
        assert facts["spills"] == 0, kernel.key
        assert facts["registers"] <= 255
        assert facts["global_scratch"] == facts["profile_scratch"] == 0
        assert facts["shared"] <= min(SHARED_LIMITS.values()), kernel.key
        assert facts["parameters"] == len(kernel.arguments) + kernel.null_pointers


@pytest.mark.slow
def test_attention_uses_wide_copies_and_tensor_cores(pack: list[PackedKernel]) -> None:
    """Decoding, where reading the cache is what takes the time, reads 16 bytes at a time.

    Asynchronously, except with a skip list (MARKS=2): its loop keeps Triton from a pipeline.
    """
    for kernel, image in images(pack):
        if kernel.symbol in ("attend_codes", "attend_exact"):
            assert image.details["tensor_core"] > 0, kernel.key
            if "|BLOCK_M=16|" in kernel.key:
                reads = "wide_loads" if "|MARKS=2|" in kernel.key else "copies_16"
                assert image.details[reads] > 0, kernel.key


def _arguments(kernel: PackedKernel) -> str:
    """Values that the hinted variant takes."""
    return " ".join(f"{kind}:{'1000' if kind == 'p' else 4096}" for _, kind, _ in kernel.arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "image"), [(80, "cubin"), (89, "cubin"), (103, "PTX"), (120, "cubin")]
)
def test_the_launcher_reads_the_pack(
    tmp_path_factory: pytest.TempPathFactory,
    pack_folder: Path,
    pack: list[PackedKernel],
    capability: int,
    image: str,
) -> None:
    """It finds each kernel by the key that the plan asks for."""
    tools = make_once(tmp_path_factory, WORKER, "launcher", build_tools)
    log = tmp_path_factory.mktemp("log") / "log"
    lines = [f"pack {pack_folder / 'kernels.bin'}", "context 1"]
    lines += [f"prepare {kernel.key} 1 1 1 {_arguments(kernel)}" for kernel in pack]
    answers, calls = drive(tools, lines, log=log, capability=capability)
    assert answers == ["ok"] * len(lines)
    assert calls.count(f"ctx1 load {image}") == len(pack)
    names = [call.split()[2] for call in calls if call.startswith("ctx1 function ")]
    assert names == [kernel.symbol for kernel in pack]


def test_other_versions_of_triton_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the version that is wanted and how to get it; likewise where there is none."""
    package = tmp_path / "triton-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 1.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    done = build(tmp_path / "out", "--variants", str(_one_key(tmp_path)))
    assert done.returncode == 2
    assert "triton 1.0 is installed; pip install triton==" in done.stderr
    assert not (tmp_path / "out").exists()


def _one_key(folder: Path) -> Path:
    path = folder / "keys.txt"
    path.write_text("mark|EVICTS=0|BLOCK_T=64|hint=1\n")
    return path


@pytest.mark.parametrize(
    ("lines", "words"),
    [("nothing|D=4|hint=1", "there is no kernel 'nothing'"), (None, "cannot read variants from")],
)
def test_bad_lists_of_variants_are_refused(tmp_path: Path, lines: str | None, words: str) -> None:
    """The file is named, and the line."""
    path = tmp_path / "keys.txt"
    if lines is not None:
        path.write_text(lines)
    done = build(tmp_path / "out", "--variants", str(path))
    assert done.returncode == 2
    assert words in done.stderr
    assert "keys.txt" in done.stderr


def test_the_output_may_not_be_a_file(tmp_path: Path) -> None:
    """Said before anything is compiled."""
    (tmp_path / "out").write_text("")
    done = build(tmp_path / "out", "--variants", str(_one_key(tmp_path)))
    assert done.returncode == 2
    assert "is a file; name a folder" in done.stderr
