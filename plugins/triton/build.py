"""``python -m minicache.plugins.triton.build``: compiles kernel variants into a kernel pack.

Needs Triton, but no GPU, no CUDA toolkit and no PyTorch; what it makes needs none of them. What
was compiled before is taken from Triton's cache (``TRITON_CACHE_DIR``), so a run that was
interrupted goes on where it stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from minicache.plugins.triton.compile import (
    NULL_POINTERS,
    PTX_ARCH,
    PTX_ISA,
    TRITON_VERSION,
    Job,
    compile_job,
    require_triton,
)
from minicache.plugins.triton.kernel_pack import (
    PACK_NAME,
    PackedImage,
    PackedKernel,
    write_pack,
)
from minicache.plugins.triton.resources import SHARED_LIMITS, BuildError
from minicache.plugins.triton.signatures import SIGNATURES, Signature
from minicache.plugins.triton.standard import standard_variants
from minicache.plugins.triton.variant import Variant, divisors, parse_key
from minicache.runtime.errors import MiniCacheError, OutputError

ARCHITECTURES = tuple(SHARED_LIMITS)
KERNEL_PACKAGE = "minicache.plugins.triton"

Report = Callable[[str], None]


def build_kernels(
    variants: Sequence[Variant],
    architectures: Sequence[int] = ARCHITECTURES,
    *,
    jobs: int = 1,
    report: Report | None = None,
    signatures: Mapping[str, Signature] = SIGNATURES,
    package: str = KERNEL_PACKAGE,
) -> list[PackedKernel]:
    """Compiles each variant for each architecture, and as PTX.

    Args:
        variants: each at most once.
        architectures: of ``ARCHITECTURES``; the PTX comes from sm_80, which is always compiled.
        jobs: processes. They are started anew, without this one's modules and interpreter.
        report: told a line per compilation.
        signatures: the table that the kernels must agree with.
        package: where the kernels' modules lie.

    Raises:
        MissingDependencyError: no Triton, or another version.
        BuildError: a variant does not compile, or not to something that runs.
    """
    require_triton()
    wanted = sorted({PTX_ARCH, *architectures})
    todo = [
        Job(variant, signatures[variant.kernel], arch, f"{package}.{variant.kernel}")
        for variant in variants
        for arch in wanted
    ]
    images: dict[tuple[Variant, int], list[PackedImage]] = {}
    errors: list[BuildError] = []
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(jobs, len(todo))), mp_context=context) as pool:
        futures = {pool.submit(compile_job, job): job for job in todo}
        for done, future in enumerate(as_completed(futures), 1):
            job = futures[future]
            try:
                images[job.variant, job.arch], seconds = future.result()
                line = f"{job.variant.key}  ({seconds:.1f} s)"
            except BuildError as error:  # the others go on: all that is wrong is told at once
                errors.append(error)
                line = f"error: {error}"
            if report:
                past = time.perf_counter() - start
                report(f"{done}/{len(todo)}  {past:.0f} s  sm_{job.arch}  {line}")
    if errors:
        more = f" ({len(errors) - 1} more do not compile)" if len(errors) > 1 else ""
        raise BuildError(f"{errors[0]}{more}")
    keep = set(architectures)
    return [
        _packed(variant, signatures[variant.kernel], images, wanted, keep) for variant in variants
    ]


def _packed(
    variant: Variant,
    signature: Signature,
    images: Mapping[tuple[Variant, int], Sequence[PackedImage]],
    compiled: Sequence[int],
    keep: set[int],
) -> PackedKernel:
    arguments = tuple(
        (argument.name, argument.kind, divisor)
        for argument, divisor in zip(signature.arguments, divisors(variant, signature), strict=True)
    )
    chosen = tuple(
        image
        for arch in compiled
        for image in images[variant, arch]
        if image.ptx or image.arch in keep
    )
    return PackedKernel(variant.key, variant.kernel, arguments, NULL_POINTERS, chosen)


def build_facts(architectures: Sequence[int]) -> dict[str, object]:
    """What the manifest says of a build as a whole."""
    return {
        "triton": TRITON_VERSION,
        "architectures": sorted(architectures),
        "ptx": {"arch": PTX_ARCH, "isa": f"{PTX_ISA // 10}.{PTX_ISA % 10}"},
        "drivers": {
            "sm_80 to sm_90, PTX": "CUDA 12.0 (R525)",
            "sm_100, sm_120": "CUDA 12.8 (R570)",
        },
    }


def _read_variants(path: Path) -> list[Variant]:
    """Reads keys, one a line; empty lines and those that begin with # are passed over."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"cannot read variants from {str(path)!r}: {error}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    try:
        return [parse_key(key) for key in dict.fromkeys(keys)]
    except ValueError as error:
        raise BuildError(f"{str(path)!r}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m minicache.plugins.triton.build", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the pack")
    parser.add_argument(
        "--arch",
        type=int,
        nargs="+",
        choices=ARCHITECTURES,
        default=ARCHITECTURES,
        metavar="N",
        help="compute capabilities, 10 * major + minor; default: all of "
        + " ".join(map(str, ARCHITECTURES)),
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--variants", type=Path, metavar="FILE", help="variant keys, one a line")
    which.add_argument("--standard", action="store_true", help="the standard set (default)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    try:
        if options.output.is_file():
            raise OutputError(f"output {str(options.output)!r} is a file; name a folder")
        variants = _read_variants(options.variants) if options.variants else standard_variants()
        kernels = build_kernels(
            variants,
            options.arch,
            jobs=options.jobs,
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
        write_pack(options.output, kernels, build_facts(options.arch))
    except MiniCacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    path = options.output / PACK_NAME
    images = sum(len(kernel.images) for kernel in kernels)
    print(
        f"{path}: {len(kernels)} kernels, {images} images, {path.stat().st_size / 1e6:.1f} MB, "
        f"{time.perf_counter() - start:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
