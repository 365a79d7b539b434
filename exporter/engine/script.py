"""``build_engine.sh``: the same build by trtexec, for machines without Python."""

from __future__ import annotations

import shlex
from pathlib import Path

from minicache.exporter.schemas import DOMAIN, OP_TYPE, VERSION
from minicache.plugins.library import TENSORRT_LIBRARY
from minicache.runtime.engine_file import ENGINE_NAME
from minicache.runtime.engine_profile import Shape, engine_profiles
from minicache.runtime.manifest import KERNELS_NAME, Manifest

NAME = "build_engine.sh"

_HEAD = f"""\
#!/bin/sh
# Builds {ENGINE_NAME} in this folder by TensorRT's trtexec (10.14 or later), on the machine that it
# is for. `minicache build-engine` does the same, and writes engine.json, by which
# minicache.runtime.Session recognises an engine; without it, run the engine by your own program.
#
#   BATCH=4 ./{NAME} /path/to/{TENSORRT_LIBRARY} [more options of trtexec]
#
# The library has the plugin {OP_TYPE}, version {VERSION}, namespace {DOMAIN}.
# It comes with minicache-onnx, in the folder minicache/_lib.
set -eu
LIBRARY=$(realpath "${{1:?give the path of {TENSORRT_LIBRARY}}}")
shift
cd "$(dirname "$0")"
BATCH=${{BATCH:-1}}
export MINICACHE_KERNELS="$PWD/{KERNELS_NAME}"
"""


def write_script(folder: Path, manifest: Manifest) -> Path:
    """Writes the script; the shapes are those that ``minicache build-engine`` builds for.

    Args:
        folder: to write to.
        manifest: of the folder.
    """
    words = [
        f"--onnx={shlex.quote(manifest.model)}",
        f"--saveEngine={ENGINE_NAME}",
        '--dynamicPlugins="$LIBRARY"',
        "--preview=+aliasedPluginIO1003",
        "--stronglyTyped",
        "--timingCacheFile=timing.cache",
        "--skipInference",
    ]
    for index, profile in enumerate(engine_profiles(manifest)):
        shapes = profile.shapes(manifest)
        words.append(f"--profile={index}")
        for place, kind in enumerate(("min", "opt", "max")):
            batch = "1" if kind == "min" else "${BATCH}"
            sizes = ",".join(_text(name, sizes[place], batch) for name, sizes in shapes.items())
            words.append(f'--{kind}Shapes="{sizes}"')
    path = folder / NAME
    command = " \\\n  ".join(["exec trtexec", *words, '"$@"'])
    path.write_text(f"{_HEAD}{command}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _text(name: str, shape: Shape, batch: str) -> str:
    """``name:1x16x64``; the first dimension of every input is the batch."""
    return f"{name}:" + "x".join([batch, *map(str, shape[1:])])
