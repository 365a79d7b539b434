"""Compiles the kernels that the checks launch into packs; needs no GPU: it can be done ahead."""

from __future__ import annotations

import functools
import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from minicache.plugins.triton import compile as compiling
from minicache.plugins.triton.compile import NULL_POINTERS, PTX_ARCH, Job, compile_job
from minicache.plugins.triton.kernel_pack import PackedImage, PackedKernel, write_pack
from minicache.plugins.triton.program_shape import ProgramShape, program_shape
from minicache.plugins.triton.resources import check_resources
from minicache.plugins.triton.signatures import SIGNATURES, Kind
from minicache.plugins.triton.variant import divisors, parse_key

FAILURES = "failures.json"


def compile_shaped(job: Job, shape: ProgramShape | None) -> list[PackedImage]:
    """Compiles a kernel with warps and stages of one's own; the product's with None."""
    chosen = program_shape if shape is None else lambda *_: shape
    # Where compile_job looks them up. What spills is slow, but right: it is to be measured.
    spilling = functools.partial(_check_all_but_spills, check_resources)
    setattr(compiling, "program_shape", chosen)  # noqa: B010
    setattr(compiling, "check_resources", spilling)  # noqa: B010
    return compile_job(job)[0]


def _check_all_but_spills(check: Any, *facts: Any, hinted: bool) -> None:
    check(*facts, hinted=False)


def build_packs(
    folder: Path,
    wanted: Mapping[str, tuple[Sequence[str], int, ProgramShape | None]],
    *,
    jobs: int,
    report: Callable[[str], None],
) -> tuple[dict[str, str], dict[str, str]]:
    """Writes a pack per entry, each a folder in ``folder``.

    Args:
        folder: made if need be.
        wanted: pack to variant keys, architecture (0: PTX alone), warps and stages.
        jobs: processes.
        report: told a line now and then.

    Returns:
        What did not compile, and why, by pack and key; the packs lack it. And what spills
        registers, which a build for users would refuse, with a sentence each.
    """
    todo = [
        (pack, key, arch or PTX_ARCH, shape)
        for pack, (keys, arch, shape) in wanted.items()
        for key in keys
    ]
    found: dict[tuple[str, str], list[PackedImage]] = {}
    failures: dict[str, str] = {}
    spills: dict[str, str] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {}
        for pack, key, arch, shape in todo:
            variant = parse_key(key)
            module = f"minicache.plugins.triton.{variant.kernel}"
            job = Job(variant, SIGNATURES[variant.kernel], arch, module)
            futures[pool.submit(compile_shaped, job, shape)] = (pack, key)
        for done, future in enumerate(as_completed(futures), 1):
            pack, key = futures[future]
            try:
                found[pack, key] = images = future.result()
                spilled = max(image.details["spills"] for image in images)
                if spilled and pack == "main" and parse_key(key).hinted:
                    spills[key] = f"spills {spilled} bytes of registers"
            except Exception as error:  # the others go on
                failures[f"{pack}: {key}"] = str(error)
            if done % 20 == 0 or done == len(futures):
                report(f"{done} of {len(futures)} kernels, {len(failures)} of them do not compile")
    for pack, (keys, arch, _) in wanted.items():
        kernels = [
            _packed(key, [image for image in found[pack, key] if image.ptx == (arch == 0)])
            for key in keys
            if (pack, key) in found
        ]
        write_pack(folder / pack, kernels, {"for": "gpu_check.py"})
    (folder / FAILURES).write_text(json.dumps([failures, spills], indent=1))
    return failures, spills


def _packed(key: str, images: Sequence[PackedImage]) -> PackedKernel:
    variant = parse_key(key)
    signature = SIGNATURES[variant.kernel]
    arguments: tuple[tuple[str, Kind, int], ...] = tuple(
        (argument.name, argument.kind, divisor)
        for argument, divisor in zip(signature.arguments, divisors(variant, signature), strict=True)
    )
    return PackedKernel(key, variant.kernel, arguments, NULL_POINTERS, tuple(images))
