"""Builds the engine of an exported folder, in a process of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minicache.exporter.calibration.store import default_store
from minicache.exporter.engine.explain import (
    PLUGIN,
    explain,
    explain_end,
    explain_unsound,
)
from minicache.exporter.engine.installed import find_module, worker_environment
from minicache.exporter.engine.phases import Phases
from minicache.exporter.engine.process import run_worker
from minicache.exporter.engine.request import BuildAnswer, BuildRequest
from minicache.exporter.targets import find_target
from minicache.plugins.library import tensorrt_library_path
from minicache.runtime.engine_file import ENGINE_NAME, FLAVOURS, EngineFile, digests
from minicache.runtime.engine_profile import PREFILL, PREFILL_TOKENS, Profile, engine_profiles
from minicache.runtime.errors import (
    EngineError,
    MissingDependencyError,
    OutputError,
    PackageError,
    PlanError,
)
from minicache.runtime.manifest import KERNELS_NAME, Manifest

LOG_NAME = "engine.log"  # left behind by a failed build


@dataclass(frozen=True)
class BuildOptions:
    """What a user may ask of a build.

    Attributes:
        rtx: with TensorRT-RTX, also where TensorRT is installed.
        capabilities: compute capabilities to build for, such as ``8.9``; TensorRT-RTX only.
        max_batch_size: largest number of rows.
        chunk: largest number of new tokens of a call.
        single_profile: serve decode steps by the profile of prefill. TensorRT-RTX keeps the weights
            once per profile, so that this halves the engine.
        timing_cache: file that later builds are faster with; None: in the user's cache folder.
        quiet: no progress.
        aliased: as in ``BuildRequest``.
    """

    rtx: bool = False
    capabilities: Sequence[str] = ()
    max_batch_size: int = 1
    chunk: int = PREFILL_TOKENS
    single_profile: bool = False
    timing_cache: Path | None = None
    quiet: bool = False
    aliased: bool = True


@dataclass(frozen=True)
class BuildResult:
    """A built engine.

    Attributes:
        file: what ``engine.json`` says.
        plugins: names of the engine's attention layers, once per profile.
        seconds: that the build took.
    """

    file: EngineFile
    plugins: list[str]
    seconds: float


def build_engine(folder: Path, options: BuildOptions | None = None) -> BuildResult:
    """Builds ``engine.plan`` and ``engine.json`` in a folder that ``minicache-export`` wrote.

    Args:
        folder: exported with ``--target tensorrt``, kernels included.
        options: None takes the defaults.

    Raises:
        MissingDependencyError: no TensorRT, or no plugin library.
        PackageError: the folder is for another target or incomplete.
        PlanError: sizes or compute capabilities that cannot be.
        EngineError: TensorRT refuses the graph, or crashes.
        OutputError: the folder cannot be written.
    """
    options = options or BuildOptions()
    started = time.monotonic()
    manifest = Manifest.load(folder)
    _check(folder, manifest, options)
    module = find_module(options.rtx)
    try:
        library = tensorrt_library_path()
    except MissingDependencyError as error:
        raise MissingDependencyError(f"{error}; it has {PLUGIN}") from error
    profiles: tuple[Profile, ...] = engine_profiles(manifest, options.max_batch_size, options.chunk)
    if options.single_profile:
        profiles = tuple(each for each in profiles if each.name == PREFILL)
    cache = options.timing_cache or default_store() / f"{module}.timing"
    with tempfile.TemporaryDirectory(prefix="minicache-") as scratch:
        partial = folder / f".{ENGINE_NAME}.partial-{os.getpid()}"
        request = BuildRequest(
            module=module,
            model=str(folder / manifest.model),
            library=str(library),
            profiles=[profile.shapes(manifest) for profile in profiles],
            capabilities=list(options.capabilities),
            engine=str(partial),
            timing_cache=str(cache),
            log=str(Path(scratch) / LOG_NAME),
            aliased=options.aliased,
        )
        try:
            answer = _run(request, manifest.num_layers, folder, options.quiet)
            file = EngineFile(
                flavour=module,
                version=answer.version,
                capabilities=tuple(answer.capabilities),
                profiles=profiles,
                engine_bytes=partial.stat().st_size,
                files=digests(folder, manifest.model),
                plugin_library=library.name,
            )
            partial.replace(folder / ENGINE_NAME)
            file.save(folder)
        except OSError as error:
            raise OutputError(
                f"cannot write the engine into {str(folder)!r} ({error.strerror}); free some space "
                "or copy the folder elsewhere"
            ) from error
        finally:
            partial.unlink(missing_ok=True)
    (folder / LOG_NAME).unlink(missing_ok=True)
    return BuildResult(file, answer.plugins, time.monotonic() - started)


def _check(folder: Path, manifest: Manifest, options: BuildOptions) -> None:
    if not find_target(manifest.target).lowered:
        raise PackageError(
            f"{str(folder)!r} was exported for {manifest.target!r}; export the model with "
            "--target tensorrt"
        )
    for name in (f"{KERNELS_NAME}/kernels.bin", manifest.model):
        if not (folder / name).is_file():
            remedy = "export again"
            if name.startswith(KERNELS_NAME):
                remedy = f"compile the kernels: minicache kernels {folder}"
            raise PackageError(f"{str(folder)!r} holds no {name}; {remedy}")
    for name, value in (("max-batch-size", options.max_batch_size), ("chunk", options.chunk)):
        if value < 1:
            raise PlanError(f"--{name} is {value}; give at least 1")


def _run(request: BuildRequest, layers: int, folder: Path, quiet: bool) -> BuildAnswer:
    """Runs the process; returns its answer once the engine is known to be sound.

    Args:
        request: what to build.
        layers: attention layers of the model.
        folder: exported; keeps the log when it fails.
        quiet: no progress.

    Raises:
        MiniCacheError: one of ``explain``.
    """
    scratch = Path(request.log).parent
    environment = worker_environment(request.module, folder / KERNELS_NAME, scratch)
    with Phases(quiet) as phases:  # failures are raised inside: no phase is said to be done then
        ended = run_worker(request, environment, scratch, phases)
        answer = ended.answer
        if answer is not None and answer.sound(len(request.profiles), layers):
            return answer
        log = _keep_log(request, folder, ended.stderr)
        if answer is None:
            raise explain_end(request, ended.code, phases.current, log)
        if answer.failed:
            said = ended.stderr.read_text(encoding="utf-8", errors="replace")
            raise explain(request, answer, said, log)
        raise explain_unsound(request, answer, log)


def _keep_log(request: BuildRequest, folder: Path, stderr: Path) -> Path:
    """Puts what was said where the user finds it; the folder of the engine goes away."""
    kept = folder / LOG_NAME
    try:
        with open(kept, "wb") as target:
            for part in (Path(request.log), stderr):
                if part.is_file():
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, target)
    except OSError as error:
        name = FLAVOURS[request.module]
        raise EngineError(f"{name} failed, and its log cannot be kept: {error.strerror}") from error
    return kept
