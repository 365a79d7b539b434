"""A catalogue of named ways to damage a model folder; a seed makes each of them reproducible.

``CATALOGUE`` maps a name to a function of the folder and a random generator. Its parts of the
graph are ``mutate_nodes``, ``mutate_attributes``, ``mutate_values`` (graph inputs and outputs,
shapes, types), ``mutate_weights`` and ``mutate_structure`` (cycles, subgraphs, functions, opsets,
metadata); its parts of the files ``mutate_bytes``, ``mutate_external`` and
``mutate_configuration``.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.exporter import (
    mutate_attributes,
    mutate_bytes,
    mutate_configuration,
    mutate_external,
    mutate_nodes,
    mutate_structure,
    mutate_values,
    mutate_weights,
)
from tests.exporter.mutate_bytes import FileMutation, read_model
from tests.exporter.mutate_nodes import GraphMutation

GRAPH_PARTS = (
    mutate_nodes, mutate_attributes, mutate_values, mutate_weights, mutate_structure
)  # fmt: skip
# Share of the cases that get one or two more mutations on top of the first.
STACKED = 0.2
# A file beside the model's folder. Nothing of it may ever come out of an export.
CANARY = b"This canary sits outside of the model folder. "
CANARY_BYTES = 4 << 20


@dataclass(frozen=True)
class Case:
    """What one seed stands for.

    Attributes:
        seed: the seed.
        fixture: name of the model folder to damage.
        names: mutations, in the order they are applied.
    """

    seed: int
    fixture: str
    names: tuple[str, ...]


def _on_graph(change: GraphMutation) -> FileMutation:
    """A mutation of the graph as one of the folder; a file that is no model any more stays."""

    def apply(folder: Path, rng: random.Random) -> None:
        model = read_model(folder)
        if model is not None:
            change(model, rng)
            (folder / "model.onnx").write_bytes(model.SerializeToString())

    return apply


CATALOGUE: dict[str, FileMutation] = {
    **{name: _on_graph(change) for part in GRAPH_PARTS for name, change in part.MUTATIONS.items()},
    **mutate_bytes.MUTATIONS,
    **mutate_external.MUTATIONS,
    **mutate_configuration.MUTATIONS,
}


def find_fixtures(folder: Path) -> list[str]:
    """Names of the model folders in a folder, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/model.onnx"))


def case_of(seed: int, fixtures: list[str]) -> Case:
    """The case of a seed: every mutation comes equally often, fixtures are drawn."""
    rng = random.Random(f"case {seed}")
    names = list(CATALOGUE)
    chosen = [names[seed % len(names)]]
    if rng.random() < STACKED:
        chosen += rng.choices(names, k=rng.randint(1, 2))
    return Case(seed, rng.choice(fixtures), tuple(chosen))


def make_case(case: Case, fixtures: Path, workplace: Path) -> Path:
    """Copies the fixture into ``workplace``, lays the canary beside it, and damages the copy.

    Returns:
        The model's folder, ``workplace / "model"``.
    """
    folder = Path(shutil.copytree(fixtures / case.fixture, workplace / "model"))
    canary = CANARY * (CANARY_BYTES // len(CANARY))
    (workplace / "canary.bin").write_bytes(canary)
    rng = random.Random(f"mutate {case.seed}")
    for name in case.names:
        CATALOGUE[name](folder, rng)
    return folder
