"""What a TensorRT engine says about itself: ``engine.json``, beside ``engine.plan``.

TensorRT's own answers to an engine that does not fit are tags and numbers. The builder notes here
what the engine was made from and for, and the runtime compares it before TensorRT sees the engine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicache.exporter import schemas
from minicache.runtime.engine_profile import Profile
from minicache.runtime.errors import PackageError
from minicache.runtime.manifest import FILE_NAME as MANIFEST_NAME
from minicache.runtime.manifest import KERNELS_NAME

ENGINE_NAME, SIDECAR_NAME = "engine.plan", "engine.json"
SIDECAR_VERSION = 1
FLAVOURS = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}  # by the Python module's name


@dataclass(frozen=True)
class Installation:
    """What an engine is to run on.

    Attributes:
        flavour: key of ``FLAVOURS``.
        version: the module's ``__version__``.
        capability: compute capability of the GPU, e.g. ``8.7``.
        device: the GPU's name.
    """

    flavour: str
    version: str
    capability: str
    device: str


@dataclass(frozen=True)
class EngineFile:
    """What the builder knew; written beside the engine.

    Attributes:
        flavour: key of ``FLAVOURS``: the Python module that built the engine and can run it.
        version: its ``__version__``, to the last digit.
        capabilities: compute capabilities that the engine runs on, e.g. ``8.7``; ``12.0+`` is that
            one and all later ones.
        profiles: shapes that it was built for, in the engine's order.
        engine_bytes: size of the engine's file; a copy cut short has another.
        files: SHA-256 in hex of the files that it was made from, by path inside the folder.
        plugin_library: file name of the plugin's library.
        plugin_version: of ``MiniCacheAttention``.
    """

    flavour: str
    version: str
    capabilities: tuple[str, ...]
    profiles: tuple[Profile, ...]
    engine_bytes: int
    files: dict[str, str]
    plugin_library: str
    plugin_version: str = str(schemas.VERSION)
    format_version: int = SIDECAR_VERSION

    def save(self, folder: Path) -> None:
        """Writes ``engine.json`` into ``folder``."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        (folder / SIDECAR_NAME).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> EngineFile:
        """Reads and checks ``engine.json``.

        Raises:
            PackageError: no engine, nothing beside it, not JSON, or of another format.
        """
        path = folder / SIDECAR_NAME
        for name in (ENGINE_NAME, SIDECAR_NAME):
            if not (folder / name).is_file():
                raise PackageError(
                    f"{str(folder)!r} holds no {name}; run on the machine that it is for: "
                    f"minicache build-engine {folder}"
                )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format_version"] != SIDECAR_VERSION:
                raise ValueError(f"format_version is {content['format_version']!r}")
            content["capabilities"] = tuple(content["capabilities"])
            content["profiles"] = tuple(Profile(**entry) for entry in content["profiles"])
            found = EngineFile(**content)
            _check_types(found)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PackageError(
                f"{str(path)!r} cannot be read ({error}); {_rebuild(folder)}"
            ) from error
        return found

    def check_folder(self, folder: Path) -> None:
        """Compares the engine with the files beside it; those that were not copied are not missed.

        Raises:
            PackageError: the engine is cut short, of another plugin version, or older than a file.
        """
        path = folder / ENGINE_NAME
        size = path.stat().st_size
        if size != self.engine_bytes:
            raise PackageError(
                f"{str(path)!r} has {size} bytes, {SIDECAR_NAME} says {self.engine_bytes}; copy "
                f"both again, or {_rebuild(folder)}"
            )
        if self.plugin_version != str(schemas.VERSION):
            raise PackageError(
                f"{str(path)!r} was built with version {self.plugin_version} of the plugin "
                f"{schemas.OP_TYPE}, this installation has {schemas.VERSION}; {_rebuild(folder)}"
            )
        for name, digest in self.files.items():
            part = folder / name
            if part.is_file() and sha256(part) != digest:
                raise PackageError(
                    f"{str(part)!r} is not the file that {ENGINE_NAME} was built from; "
                    f"{_rebuild(folder)}"
                )

    def check_installation(self, found: Installation, folder: Path) -> None:
        """Compares what the engine was built for with what is here.

        Raises:
            PackageError: another TensorRT, version or GPU.
        """
        path, own = str(folder / ENGINE_NAME), f"{FLAVOURS[self.flavour]} {self.version}"
        if (self.flavour, self.version) != (found.flavour, found.version):
            raise PackageError(
                f"{path!r} was built by {own}, installed is {FLAVOURS[found.flavour]} "
                f"{found.version}; install the former, or {_rebuild(folder)}"
            )
        if not any(_covers(entry, found.capability) for entry in self.capabilities):
            raise PackageError(
                f"{path!r} was built for compute capability {', '.join(self.capabilities)}, "
                f"{found.device} has {found.capability}; {_rebuild(folder)} on this machine"
            )

    def largest(self) -> Profile:
        """The sizes that some profile can run, each for itself."""
        sizes = ("batch", "tokens", "positions", "capacity")
        most = {name: max(getattr(profile, name) for profile in self.profiles) for name in sizes}
        return Profile("largest", **most)


def digests(folder: Path, model: str) -> dict[str, str]:
    """``EngineFile.files`` of a folder: its manifest, graph and kernels.

    Args:
        folder: what ``minicache-export`` wrote.
        model: file name of the graph; its weights lie in a file that the graph names by size.
    """
    names = (MANIFEST_NAME, model, f"{KERNELS_NAME}/kernels.bin")
    return {name: sha256(folder / name) for name in names}


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _rebuild(folder: Path) -> str:
    return f"run: minicache build-engine {folder}"


def _covers(entry: str, capability: str) -> bool:
    if entry.endswith("+"):
        return _numbers(entry[:-1]) <= _numbers(capability)
    return entry == capability


def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def _check_types(file: EngineFile) -> None:
    def wanted(name: str, fits: bool) -> None:
        if not fits:
            raise ValueError(f"{name} is {getattr(file, name)!r}")

    def texts(values: Iterable[Any]) -> bool:
        return all(isinstance(value, str) for value in values)

    wanted("flavour", file.flavour in FLAVOURS)
    for name in ("version", "plugin_library", "plugin_version"):
        wanted(name, isinstance(getattr(file, name), str))
    wanted("capabilities", bool(file.capabilities) and texts(file.capabilities))
    wanted("files", isinstance(file.files, dict) and texts((*file.files, *file.files.values())))
    wanted("engine_bytes", isinstance(file.engine_bytes, int) and file.engine_bytes > 0)
    sizes = [size for profile in file.profiles for size in list(vars(profile).values())[1:]]
    wanted("profiles", bool(sizes) and all(isinstance(size, int) and size > 0 for size in sizes))
    for entry in file.capabilities:
        _numbers(entry.removesuffix("+"))
