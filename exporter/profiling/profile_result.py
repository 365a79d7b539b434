"""The result of ``minicache profile``: its figures, and how they are printed and saved."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minicache.runtime.errors import OutputError

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class KindSimilarity:
    """Keys, or values, of two adjacent layers; lists run over the lower layer's kv heads.

    Attributes:
        cosine: mean cosine, head h with head h.
        angular_distance: mean of arccos(cosine) / pi.
        head_permutation: the upper layer's head that matches best.
        aligned_cosine: mean cosine after matching and rotating heads.
        cka: linear centred kernel alignment of matched heads.
        merge_errors: by code bits, relative errors of the lower and the upper layer.
        aligned_merge_errors: likewise after matching and rotating.
    """

    cosine: list[float]
    angular_distance: list[float]
    head_permutation: list[int]
    aligned_cosine: list[float]
    cka: list[float]
    merge_errors: dict[int, tuple[float, float]]
    aligned_merge_errors: dict[int, tuple[float, float]]


@dataclass(frozen=True)
class PairSimilarity:
    """Two adjacent layers."""

    lower: int
    upper: int
    key: KindSimilarity
    value: KindSimilarity


@dataclass(frozen=True)
class LayerQuantisation:
    """The yardstick: one layer in static integers per channel, relative errors by bits."""

    layer: int
    key: dict[int, float]
    value: dict[int, float]


@dataclass(frozen=True)
class SimilarityProfile:
    """What ``minicache profile`` found.

    Attributes:
        model: file name of the model.
        num_layers: layers.
        num_tokens: tokens read; the first ``sinks`` of each document are left out of all figures.
        sinks: see above.
        pairs: adjacent layers of equal head shape.
        layers: the yardstick.
    """

    model: str
    num_layers: int
    num_tokens: int
    sinks: int
    pairs: tuple[PairSimilarity, ...]
    layers: tuple[LayerQuantisation, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the profile as JSON-compatible data."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {"schema_version": SCHEMA_VERSION, **data}

    def print_table(self, console: Console) -> None:
        """Prints the pairs, and what each way of coding loses."""
        from minicache.exporter.profiling.profile_table import print_profile

        print_profile(self, console)

    def save(self, folder: Path) -> None:
        """Writes ``profile.json``, ``similarity.png`` and ``similarity.svg``.

        Raises:
            OutputError: the folder cannot be written.
        """
        from minicache.exporter.profiling.plots import plot_similarity

        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.to_json(), indent=1) + "\n"
            (folder / "profile.json").write_text(text, encoding="utf-8")
            plot_similarity(self, [folder / "similarity.png", folder / "similarity.svg"])
        except OSError as error:
            raise OutputError(
                f"{str(folder)!r} cannot be written ({error.strerror}); choose another --output"
            ) from error
