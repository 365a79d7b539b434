"""A place to make ``subspace`` exports of tiny models in: model, tokenizer, text, one cache."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minicache.exporter import ExportOptions, export_model
from minicache.exporter.pipeline import ExportResult
from tests.byte_tokenizer import byte_tokenizer

FIXTURES = Path(__file__).parent.parent / "fixtures"
WORDS = ["the", "cache", "of", "a", "decoder", "grows", "with", "every", "token", "it", "reads"]
CAPACITY, WINDOW, SLACK, SINKS = 256, 16, 16, 4


def prose(documents: int, characters: int, seed: int = 0) -> str:
    """Sentences of few words, so that a tiny model has something to compress."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, characters // 4))[:characters] for _ in range(documents)]
    return "\f".join(texts)


@dataclass(frozen=True)
class Workplace:
    """Attributes are folders and files; ``export`` makes an export of the model."""

    root: Path

    @staticmethod
    def make(root: Path, fixture: str) -> Workplace:
        """Copies a fixture, with a tokenizer of one token per byte and a text beside it."""
        shutil.copytree(FIXTURES / fixture, root / "model")
        byte_tokenizer().save(str(root / "model" / "tokenizer.json"))
        (root / "text.txt").write_text(prose(8, 600), encoding="utf-8")
        return Workplace(root)

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def text(self) -> Path:
        return self.root / "text.txt"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def export(self, name: str, **options: Any) -> ExportResult:
        """Exports into the folder of this name; small documents and no verification."""
        settings: dict[str, Any] = {
            "max_sequence_length": CAPACITY,
            "verify_documents": 0,
            "verify_context": 128,
            "quiet": True,
        }
        if options.get("mode", "subspace") == "subspace":
            settings |= {"calibration": self.text, "calibration_tokens": 3000, "cache": self.cache}
        if options.get("mode") != "exact" and "plan" not in options:
            settings |= {"window": WINDOW, "rewind_slack": SLACK}
        return export_model(self.model, self.root / name, ExportOptions(**{**settings, **options}))
