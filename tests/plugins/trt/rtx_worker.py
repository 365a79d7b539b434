"""Builds engines with TensorRT-RTX as ``rtx_worker LIBRARY`` is told on standard input.

A process of its own: TensorRT can end it, and its libraries have to be found from the start.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt_rtx as trt


class Log(trt.ILogger):
    """Keeps all messages."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.lines: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        """Called by TensorRT."""
        self.lines.append(f"{severity.name}: {message}")


def describe(library: str) -> dict[str, Any]:
    """The creator of the library, and a plugin made without any network."""
    log = Log()
    trt.init_libnvinfer_plugins(log, "")
    registry = trt.get_plugin_registry()
    loaded = registry.load_library(library) is not None
    creator = registry.get_creator("MiniCacheAttention", "1", "com.minicache")
    wrong = registry.get_creator("MiniCacheAttention", "1", "")
    sizes = {"num_heads": 4, "kv_num_heads": 2, "head_size": 32}
    fields = [
        trt.PluginField(name, np.array([value], np.int32), trt.PluginFieldType.INT32)
        for name, value in sizes.items()
    ]
    collection = trt.PluginFieldCollection(fields)
    plugin = creator.create_plugin("alone", collection, trt.TensorRTPhase.BUILD)
    kinds = trt.PluginCapabilityType
    capabilities = [plugin.get_capability_interface(k) for k in (kinds.CORE, kinds.BUILD)]
    return {
        "loaded": loaded,
        "creator": [creator.name, creator.plugin_version, creator.plugin_namespace],
        "elsewhere": wrong is not None,
        "fields": {field.name: field.type.name for field in creator.field_names},
        "capabilities": [type(each).__name__ for each in capabilities],
    }


def build(request: dict[str, Any]) -> dict[str, Any]:
    """One engine; the answer says what became of it."""
    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(0)  # always strongly typed
    parser = trt.OnnxParser(network, log)
    if not parser.parse(Path(request["model"]).read_bytes()):
        errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        return {"parsed": False, "errors": errors, "log": log.lines}
    config = builder.create_builder_config()
    aliased = trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03
    config.set_preview_feature(aliased, request["aliased"])
    for shapes in request["profiles"]:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is not None:
        Path(request["engine"]).write_bytes(bytes(engine))
    return {"parsed": True, "built": engine is not None, "log": log.lines}


def main(library: str) -> None:
    """Answers requests, one line each."""
    print(json.dumps(describe(library)), flush=True)
    for line in sys.stdin:
        print(json.dumps(build(json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
