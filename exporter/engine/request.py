"""What the building process is asked, and what it answers: JSON between two processes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# By input: smallest, most likely and largest shape.
Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class BuildRequest:
    """One engine to build.

    Attributes:
        module: ``tensorrt`` or ``tensorrt_rtx``.
        model: path of the graph.
        library: path of the plugin's library.
        profiles: shapes of each optimisation profile.
        capabilities: such as ``8.9``; TensorRT-RTX only, none: all that it can and we have.
        engine: where to write the engine.
        timing_cache: read if it is there, and written.
        log: where to write everything that TensorRT says.
        aliased: allow plugins to work in place; without it no engine can be built (tests do so).
    """

    module: str
    model: str
    library: str
    profiles: list[Shapes]
    capabilities: list[str]
    engine: str
    timing_cache: str
    log: str
    aliased: bool = True

    def save(self, path: Path) -> None:
        """Writes the request."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> BuildRequest:
        """Reads what ``save`` wrote."""
        return BuildRequest(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class BuildAnswer:
    """What came of a request.

    Attributes:
        failed: ``install``, ``library``, ``capability``, ``parse`` or ``build``, if it did.
        messages: what TensorRT said about it, errors only.
        version: of TensorRT.
        capabilities: that the engine runs on.
        plugins: names of the engine's attention layers, once per profile.
        copies: lines in which TensorRT says that it copies a plugin's tensors.
    """

    failed: str = ""
    messages: list[str] = field(default_factory=list)
    version: str = ""
    capabilities: list[str] = field(default_factory=list)
    plugins: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)

    def sound(self, profiles: int, layers: int) -> bool:
        """Whether there is an engine in which every layer works in place.

        Args:
            profiles: of the request.
            layers: attention layers of the model; an engine has each once per profile. TensorRT's
                log lists them, but no contract says so: no list is no finding.
        """
        return not self.failed and not self.copies and len(self.plugins) in (0, profiles * layers)

    def line(self) -> str:
        """As one line of the process's output."""
        return json.dumps({"answer": dataclasses.asdict(self)})

    @staticmethod
    def of(content: dict[str, Any]) -> BuildAnswer:
        """From the content of such a line."""
        return BuildAnswer(**content["answer"])
