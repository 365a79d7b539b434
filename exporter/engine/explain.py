"""Turns what TensorRT says of a failed build into one sentence with what to do."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import onnx

from minicache.exporter import schemas
from minicache.exporter.engine.request import BuildAnswer, BuildRequest
from minicache.runtime.engine_file import FLAVOURS
from minicache.runtime.errors import (
    EngineError,
    MiniCacheError,
    MissingDependencyError,
    PlanError,
    UnsupportedModelError,
)

# The three names by which TensorRT finds a plugin.
PLUGIN = f"plugin {schemas.OP_TYPE}, version {schemas.VERSION}, namespace {schemas.DOMAIN}"
_OWN = f"{schemas.OP_TYPE} '"  # how the plugin's own sentences begin: the node's name follows
_QUOTED = 300  # characters of TensorRT's own words


def explain(request: BuildRequest, answer: BuildAnswer, stderr: str, log: Path) -> MiniCacheError:
    """The error for an answer that says which step failed.

    Args:
        request: of the build.
        answer: to it.
        stderr: what else the process said.
        log: where everything that TensorRT said can be read.
    """
    said = " | ".join(answer.messages)
    name = f"{FLAVOURS[request.module]} {answer.version}"
    if answer.failed == "install":
        return MissingDependencyError(said)
    if answer.failed == "library":
        return MissingDependencyError(
            f"{name} cannot load {request.library!r} ({_quote(said)}), which has {PLUGIN}; "
            "reinstall minicache-onnx"
        )
    if answer.failed == "capability":
        return PlanError(f"{name} cannot build for this compute capability: {said}")
    if own := [line for line in [*answer.messages, *stderr.splitlines()] if _OWN in line]:
        sentence = own[0][own[0].index(_OWN) :].strip()
        remedy = "" if ";" in sentence else "; export the model in fp16 with --target tensorrt"
        return EngineError(f"{name}: {sentence}{remedy}")
    if "lugin not found" in said:
        asked = _asked(Path(request.model), answer.messages)
        return EngineError(
            f"{name} knows no {asked}; {request.library!r} has {PLUGIN}; "
            "export again with --target tensorrt"
        )
    if "kALIASED_PLUGIN_IO_10_03 not enabled" in said:
        return EngineError(
            f"{name} was asked to build without plugins that work in place, which the cache needs; "
            "add --preview=+aliasedPluginIO1003 to trtexec, or use minicache build-engine"
        )
    if "could not find any supported formats" in said:
        found = re.search(r"minicache_attention_\d+", said)
        node = found.group() if found else "a node"
        return UnsupportedModelError(
            f"{schemas.OP_TYPE} does not take the types of {node} ({_types(request, node)}); the "
            "kernels run fp16 models with int8 codes: export the model in fp16, and again with "
            "--target tensorrt"
        )
    return EngineError(
        f"{name} does not {answer.failed} the graph ({_quote(said)}); its log is {str(log)!r}, "
        "please report it"
    )


def explain_end(request: BuildRequest, code: int, phase: str, log: Path) -> MiniCacheError:
    """The error for a process that ended without an answer.

    Args:
        request: of the build.
        code: its exit code; negative, the signal that killed it.
        phase: what it was doing.
        log: as for ``explain``.
    """
    name = FLAVOURS[request.module]
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"crashed with {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            how = "was killed, as happens when memory runs out,"
    return EngineError(
        f"{name} {how} while {phase}; its last words: {_quote(_last_words(log))}; its log is "
        f"{str(log)!r}, please report it"
    )


def explain_unsound(request: BuildRequest, answer: BuildAnswer, log: Path) -> MiniCacheError:
    """The error for an engine that copies the cache, so that its state goes stale, or lost layers.

    Args:
        request: of the build.
        answer: to it.
        log: as for ``explain``.
    """
    what = f"has {len(answer.plugins)} attention layers in {len(request.profiles)} profiles"
    if answer.copies:
        first = _quote(answer.copies[0])
        what = f"copies tensors of the cache instead of working in place ({first})"
    return EngineError(
        f"the engine of {FLAVOURS[request.module]} {answer.version} {what}; its log is "
        f"{str(log)!r}, please report it"
    )


def _quote(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _QUOTED else text[:_QUOTED] + " ..."


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "none"
    wanted = [line for line in lines if not line.startswith("VERBOSE")] or lines
    return " | ".join(wanted[-2:]) or "none"


def _node(model: Path, messages: list[str]) -> onnx.NodeProto | None:
    graph = onnx.load(model, load_external_data=False).graph
    nodes = [node for node in graph.node if node.op_type == schemas.OP_TYPE]
    named = [node for node in nodes if any(_names(line, node.name) for line in messages)]
    return next(iter(named or nodes), None)


def _names(line: str, name: str) -> bool:
    return bool(name) and re.search(rf"\b{re.escape(name)}\b", line) is not None


def _asked(model: Path, messages: list[str]) -> str:
    """What a node asks TensorRT for."""
    node = _node(model, messages)
    if node is None:
        return schemas.OP_TYPE
    found = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    version, namespace = (
        found.get(key, b"none").decode() for key in ("plugin_version", "plugin_namespace")
    )
    return f"plugin {node.op_type}, version {version}, namespace {namespace}"


def _types(request: BuildRequest, name: str) -> str:
    """Element types of a node's state, which the graph states."""
    model = Path(request.model)
    node = _node(model, [name])
    if node is None:
        return "unknown"
    graph = onnx.load(model, load_external_data=False).graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info)}
    kinds = {known[value] for value in node.input if known.get(value)}
    return ", ".join(sorted(onnx.TensorProto.DataType.Name(kind).lower() for kind in kinds))
