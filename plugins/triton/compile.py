"""Compiles one variant for one architecture, with Triton but without a GPU.

Which compiler makes what, and the oldest driver that runs it:

* Cubins come from the CUDA 12.9 ``ptxas`` of the wheel, also those of sm_90 and later, for which
  Triton itself would take the 13.4 one: within a major version of CUDA a driver loads cubins of
  later minor ones. So sm_80 to sm_90 need CUDA 12.0 (R525), sm_100 and sm_120 the first driver that
  knows them, CUDA 12.8 (R570). From sm_90 on Triton emits code of one architecture alone (sm_90a).
* The PTX for GPUs that have no cubin is that of sm_80 at ISA 8.0, which every driver from CUDA 12.0
  on compiles. A GPU newer than its driver's CUDA is not run by anything.
"""

from __future__ import annotations

import importlib
import os
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minicache.plugins.triton.kernel_pack import PackedImage
from minicache.plugins.triton.program_shape import program_shape
from minicache.plugins.triton.resources import (
    BuildError,
    check_resources,
    max_registers,
    measure,
    parameter_kinds,
)
from minicache.plugins.triton.signatures import HINT, Signature
from minicache.plugins.triton.variant import Variant, divisors, triton_types
from minicache.runtime.errors import MissingDependencyError

if TYPE_CHECKING:
    from types import ModuleType

TRITON_VERSION = "3.9.0"
PTX_ARCH = 80  # of the fallback
PTX_ISA = 80  # 8.0: CUDA 12.0
NULL_POINTERS = 2  # Triton's parameters for scratch memory, behind ours; our kernels need none


@dataclass(frozen=True)
class Job:
    """One compilation: a variant for an architecture (10 * major + minor)."""

    variant: Variant
    signature: Signature
    arch: int
    module: str  # import name of the file that holds the kernel


def require_triton() -> ModuleType:
    """Imports Triton.

    Raises:
        MissingDependencyError: it is missing, or not the version that the checks know.
    """
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        version = ""
    if version != TRITON_VERSION:
        found = f"triton {version} is installed" if version else "triton is not installed"
        raise MissingDependencyError(
            f"the kernels are compiled by triton {TRITON_VERSION}, and {found}; "
            f"pip install triton=={TRITON_VERSION}"
        )
    return importlib.import_module("triton")


def prepare_environment() -> Path:
    """Sets what Triton reads from the environment; returns the folder of its tools.

    Must come before a kernel is imported: the interpreter's setting is read at the decorator.
    """
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # a quarter of the size
    tools = Path(str(require_triton().__file__)).parent / "backends" / "nvidia" / "bin"
    os.environ["TRITON_PTXAS_PATH"] = str(tools / "ptxas")
    os.environ["TRITON_PTXAS_BLACKWELL_PATH"] = str(tools / "ptxas")
    return tools


def compile_job(job: Job) -> tuple[list[PackedImage], float]:
    """Compiles and checks; returns the images and the seconds it took.

    The result of ``PTX_ARCH`` is two images: its cubin and the PTX it was made of.

    Raises:
        BuildError: it does not compile, or to something that would not run; says what.
    """
    tools = prepare_environment()
    start = time.perf_counter()
    kernel = getattr(importlib.import_module(job.module), job.variant.kernel)
    compiled = _compile(job, kernel)
    name = f"kernel {job.variant.key!r}"
    facts = compiled.metadata
    if facts.global_scratch_size or facts.profile_scratch_size:
        raise BuildError(
            f"{name} wants scratch memory of {facts.global_scratch_size} and "
            f"{facts.profile_scratch_size} bytes on sm_{job.arch}; the launcher gives none"
        )
    ptx, cubin = compiled.asm["ptx"], compiled.asm["cubin"]
    kinds = parameter_kinds(ptx)
    expected = "".join(argument.kind for argument in job.signature.arguments) + "p" * NULL_POINTERS
    if kinds != expected:
        raise BuildError(
            f"{name} takes the parameters {kinds} on sm_{job.arch}, its signature says {expected}; "
            "correct plugins/triton/signatures.py"
        )
    found = measure(
        ptx,
        cubin,
        symbol=facts.name,
        shared=facts.shared,
        tools=tools,
        arch=f"sm_{job.arch}{'a' if job.arch >= 90 else ''}",
    )
    check_resources(name, job.arch, found, hinted=job.variant.hinted)
    details = asdict(found) | {
        "parameters": len(kinds),
        "global_scratch": facts.global_scratch_size,
        "profile_scratch": facts.profile_scratch_size,
    }
    images = [PackedImage(job.arch, False, facts.num_warps, facts.shared, cubin, details)]
    if job.arch == PTX_ARCH:
        text = ptx.encode() + b"\0"
        images.append(PackedImage(job.arch, True, facts.num_warps, facts.shared, text, details))
    return images, time.perf_counter() - start


def _compile(job: Job, kernel: Any) -> Any:
    triton = require_triton()
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", job.arch, 32)
    variant, signature = job.variant, job.signature
    names = [argument.name for argument in signature.arguments]
    expected = [*names, *signature.constants]
    if list(kernel.arg_names) != expected:
        pairs = zip_longest(kernel.arg_names, expected)
        at, (has, wants) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise BuildError(
            f"argument {at} of kernel {variant.kernel!r} is {has}, its signature says {wants}; "
            "correct plugins/triton/signatures.py"
        )
    constants = {(len(names) + i,): value for i, (_, value) in enumerate(variant.constants)}
    hints = {
        (i,): [["tt.divisibility", HINT]]
        for i, divisor in enumerate(divisors(variant, signature))
        if divisor > 1
    }
    source = compiler.ASTSource(
        fn=kernel, signature=triton_types(variant, signature), constexprs=constants, attrs=hints
    )
    shape = program_shape(variant.kernel, dict(variant.constants))
    options: dict[str, Any] = {
        "num_warps": shape.warps,
        "num_stages": shape.stages,
        "enable_fp_fusion": True,
        # Left to itself, ptxas spills a few registers where that lets one more block run.
        "maxnreg": max_registers(shape.warps),
    }
    if job.arch == PTX_ARCH:
        options["ptx_version"] = PTX_ISA
    try:
        return triton.compile(source, target=target, options=options)
    except Exception as error:
        raise BuildError(
            f"kernel {variant.key!r} does not compile for sm_{job.arch}: "
            f"{type(error).__name__}: {error}"
        ) from error
