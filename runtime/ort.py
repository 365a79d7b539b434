"""The ONNX Runtime side of a session: version, execution providers, the op library, the graph."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minicache.plugins.library import ort_library_path
from minicache.runtime.errors import MissingDependencyError, PackageError

MINIMUM_ORT = (1, 20)  # 1.18 fails the type inference of the op's variadic inputs
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# By the export's target. On a GPU the CPU keeps the few nodes that compute shapes.
PROVIDERS = {"ort-cpu": (CPU,), "ort-cuda": (CUDA, CPU)}
PACK_OPTION = "minicache.kernels"  # of a session: folder of compiled GPU kernels
_INSTALL = 'install "minicache-onnx[cpu]" or "minicache-onnx[gpu]"'
# What ONNX Runtime says around the reason: its codes, and places and functions in its source.
_PLACE = r"^\S*\.(?:cc|h|cpp):\d+ "
_NOISE = tuple(
    re.compile(pattern)
    for pattern in (
        r"^.*\[ONNXRuntimeError\] : \d+ : \w+ : ",
        r"^Load model from .* failed:\s*",
        r"^Error in execution: ",
        r"^Exception during initialization: ",
        rf"{_PLACE}[^()']*::[^()']*\((?:[^()]|\([^()]*\))*\)\S* (?:const )?(?:\[with .*?\] )?",
        rf"{_PLACE}\S+ ",
        r"^onnxruntime::\S+\(.*?\) ",
        r"^This is an invalid model\. (?:Error: )?",
        r" Please fix either the inputs/outputs or the model\.$",
    )
)
_NODES = (  # name and operator of a node, and what is wrong with it
    re.compile(r"In Node, \(\"(?P<name>.*?)\", (?P<type>\w*), .* , Error (?P<why>.*)"),
    re.compile(r".*running (?P<type>\w*) node\. Name:'(?P<name>.*?)' Status Message: (?P<why>.*)"),
)
_USE_CPU = 'or give providers=["CPUExecutionProvider"]'


def load_onnxruntime() -> Any:
    """Imports ONNX Runtime and checks its version.

    Raises:
        MissingDependencyError: not installed, or older than ``MINIMUM_ORT``.
    """
    try:
        onnxruntime = importlib.import_module("onnxruntime")
        version = onnxruntime.__version__
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"onnxruntime cannot be imported ({error}); {_INSTALL}"
        ) from error
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM_ORT:
        lowest = ".".join(map(str, MINIMUM_ORT))
        raise MissingDependencyError(
            f"onnxruntime {version} is installed, {lowest} or later is needed; {_INSTALL}"
        )
    return onnxruntime


def choose_providers(target: str, providers: Sequence[str] | None) -> list[str]:
    """Returns the execution providers for a target, or the asked ones, checked.

    Raises:
        PackageError: the folder was exported for a runtime other than ONNX Runtime.
        MissingDependencyError: the installed ONNX Runtime lacks a provider.
    """
    if providers is None:
        if target not in PROVIDERS:
            raise PackageError(
                f"the folder was exported for {target!r}, a Session runs {sorted(PROVIDERS)}; "
                "export with --target ort-cpu, or run it with that target's own runtime"
            )
        providers = PROVIDERS[target]
    if isinstance(providers, str):
        providers = [providers]
    if CUDA in providers and CUDA not in PROVIDERS.get(target, ()):
        raise PackageError(
            f"{CUDA} is asked for, the folder was exported for {target!r}; export with --target "
            "ort-cuda"
        )
    available = load_onnxruntime().get_available_providers()
    for provider in providers:
        # ONNX Runtime itself would fall back to the CPU with no more than a warning.
        if provider not in available:
            raise MissingDependencyError(
                f"{provider} is asked for, the installed onnxruntime has {available}; "
                f'install "minicache-onnx[gpu]" {_USE_CPU}'
            )
    return list(providers)


def open_graph(
    path: Path, threads: int | None, providers: Sequence[str], kernels: Path | None = None
) -> Any:
    """Opens an exported graph as an ``onnxruntime.InferenceSession``.

    Args:
        path: the graph; its weights lie beside it.
        threads: threads inside one operator; None leaves the choice to ONNX Runtime.
        providers: execution providers in order of preference.
        kernels: folder of compiled GPU kernels. With one, a session whose attention would run on
            the CPU is refused; decode steps are recorded where ONNX Runtime can do so.

    Raises:
        MissingDependencyError: the op library is missing or refused, or a provider did not start.
        PackageError: the graph cannot be loaded.
    """
    onnxruntime = load_onnxruntime()
    library = ort_library_path()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: the warnings are about our own op's optimisation
    if threads is not None:
        options.intra_op_num_threads = threads
    if kernels is not None:  # the library reads it when it is registered
        options.add_session_config_entry(PACK_OPTION, str(kernels))
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # ONNX Runtime raises several unrelated classes
        raise MissingDependencyError(
            f"onnxruntime {onnxruntime.__version__} refuses {str(library)!r} "
            f"({first_line(error)}); reinstall minicache-onnx"
        ) from error
    try:
        graph = _start(onnxruntime, path, options, providers)
    except Exception as error:
        raise PackageError(
            f"onnxruntime {onnxruntime.__version__} cannot load {str(path)!r} "
            f"({first_line(error)}); check that the folder is complete, or export again"
        ) from error
    lost = [name for name in providers if name not in graph.get_providers()]
    if lost:
        raise MissingDependencyError(
            f"{lost[0]} did not start (ONNX Runtime's message is above); check its libraries "
            f"{_USE_CPU}"
        )
    return graph


def _start(onnxruntime: Any, path: Path, options: Any, providers: Sequence[str]) -> Any:
    def start(records: bool) -> Any:
        settings = {CUDA: {"enable_cuda_graph": "1"}} if records else {}
        chosen = [(name, settings[name]) if name in settings else name for name in providers]
        return onnxruntime.InferenceSession(str(path), options, providers=chosen)

    if CUDA not in providers:
        return start(records=False)
    try:
        return start(records=True)
    except Exception as error:
        # A graph with nodes on the CPU cannot be recorded; it runs all the same.
        if "graph capture" not in str(error):
            raise
        return start(records=False)


def first_line(error: Exception) -> str:
    """What an error says, in one line; of ONNX Runtime's errors the reason and the node."""
    lines = str(error).strip().split("\n")
    # "... for the following indices", each on a line of its own.
    text = _reason(" ".join(lines[:2]) if lines[0].endswith("indices") else lines[0])
    for node in _NODES:
        found = node.fullmatch(text)
        if found:
            return f"{found['type']} {found['name']!r}: {_reason(found['why'])}"
    return text


def _reason(text: str) -> str:
    for noise in _NOISE:
        text = noise.sub("", text)
    return text.rstrip(". ")
