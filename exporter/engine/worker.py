"""The process that builds: ``python -m minicache.exporter.engine.worker REQUEST``.

Its output is one JSON object per line: ``phase`` (with ``of`` steps, inside ``inside``), ``step``
of a phase, and last the ``answer``. The functions get TensorRT's module handed in: one of two.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from minicache.exporter.engine.installed import TENSORRT
from minicache.exporter.engine.request import BuildAnswer, BuildRequest
from minicache.exporter.schemas import DOMAIN, OP_TYPE, VERSION
from minicache.runtime.cuda_device import CudaDevice
from minicache.runtime.errors import MissingDependencyError
from minicache.runtime.tensorrt_engine import load_tensorrt

# TensorRT-RTX's, which the kernels are compiled for or have PTX of; later ones join when met.
_OLDEST = (8, 0)


def main(argv: list[str]) -> int:
    """Builds what a request file asks for."""
    request = BuildRequest.load(Path(argv[1]))
    try:
        trt = load_tensorrt(request.module)
        with open(request.log, "w", encoding="utf-8", errors="replace") as log:
            answer = _build(trt, request, _logger(trt, log))
    except MissingDependencyError as error:
        answer = BuildAnswer("install", [str(error)])
    print(answer.line(), flush=True)
    return 0


def _logger(trt: Any, file: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        """Writes all to a file at once: after a crash it must be there."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.copies: list[str] = []
            self.plugins: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            name = str(severity).rpartition(".")[2]
            file.write(f"{name} {message}\n")
            if name != "VERBOSE":
                file.flush()
            if name in ("ERROR", "INTERNAL_ERROR"):
                self.errors.append(message)
            for line in message.splitlines():
                if "nserting copy" in line or "nserting copies" in line:
                    self.copies.append(line)
                if line.startswith("Layer(PluginV3): "):
                    self.plugins.append(line.partition(": ")[2].partition(",")[0])

    return Logger()


def _monitor(trt: Any) -> Any:
    def say(**content: Any) -> None:
        print(json.dumps(content), flush=True)

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            say(phase=name, inside=parent, of=steps)

        def step_complete(self, name: str, _: int) -> bool:
            say(step=name)
            return True

        def phase_finish(self, name: str) -> None:
            say(finish=name)

    return Monitor()


def _build(trt: Any, request: BuildRequest, logger: Any) -> BuildAnswer:
    def failed(step: str, *messages: str) -> BuildAnswer:
        return BuildAnswer(step, [*messages, *logger.errors], trt.__version__)

    builder = trt.Builder(logger)
    registry = builder.get_plugin_registry()
    if registry.load_library(request.library) is None:
        return failed("library")
    if registry.get_creator(OP_TYPE, str(VERSION), DOMAIN) is None:
        return failed("library", f"it offers no {OP_TYPE}")
    config = builder.create_builder_config()
    try:
        capabilities = _set_capabilities(trt, config, request.capabilities)
    except ValueError as error:
        return failed("capability", str(error))
    flags = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flags is None else 1 << int(flags))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(request.model):
        errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        return failed("parse", *errors)
    config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, request.aliased)
    monitor = _monitor(trt)
    config.progress_monitor = monitor
    for shapes in request.profiles:
        profile = builder.create_optimization_profile()
        for name, sizes in shapes.items():
            profile.set_shape(name, *sizes)
        config.add_optimization_profile(profile)
    # TensorRT-RTX times on the device that it runs on, and keeps no such cache.
    cached = request.module == TENSORRT
    cache = _use_timing_cache(config, Path(request.timing_cache)) if cached else None
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        return failed("build")
    Path(request.engine).write_bytes(engine)
    _keep_timing_cache(cache, Path(request.timing_cache))
    return BuildAnswer("", [], trt.__version__, capabilities, logger.plugins, logger.copies)


def _set_capabilities(trt: Any, config: Any, wanted: list[str]) -> list[str]:
    """Tells TensorRT-RTX what to build for; TensorRT builds for the GPU at hand.

    Raises:
        ValueError: it cannot build for one of them.
        MissingDependencyError: the GPU at hand cannot be asked what it is.
    """
    known = getattr(trt, "ComputeCapability", None)
    if known is None:
        if wanted:
            raise ValueError("it builds for the GPU that it runs on")
        return [CudaDevice().capability]  # of the GPU that it times on
    numbers = [name[2:] for name in known.__members__ if name.startswith("SM")]
    possible = {f"{n[:-1]}.{n[-1]}": known.__members__[f"SM{n}"] for n in numbers}
    covered = [name for name in possible if tuple(map(int, name.split("."))) >= _OLDEST]
    for name in wanted:
        if name not in covered:
            raise ValueError(f"{name} is not one of {', '.join(covered)}")
    chosen = list(dict.fromkeys(wanted or covered))
    config.num_compute_capabilities = len(chosen)
    for index, name in enumerate(chosen):
        config.set_compute_capability(possible[name], index)
    return chosen


def _use_timing_cache(config: Any, path: Path) -> Any:
    content = b""
    with contextlib.suppress(OSError):
        content = path.read_bytes()
    cache = config.create_timing_cache(content)
    if cache is None:  # of another version, or damaged: it is only a cache
        cache = config.create_timing_cache(b"")
    if cache is not None:
        config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def _keep_timing_cache(cache: Any, path: Path) -> None:
    if cache is None:
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a full disk costs the next build time, not this one
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(cache.serialize())
        temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
