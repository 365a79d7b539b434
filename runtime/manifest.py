"""What an exported folder says about itself: ``minicache.json``.

The exporter writes it, every runtime reads it. Its version changes when a reader of an older
version would misunderstand it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minicache.runtime.errors import PackageError
from minicache.runtime.manifest_values import BATCH, CAPACITY, check_values

FILE_NAME = "minicache.json"
FORMAT_VERSION = 1
KERNELS_NAME = "kernels"  # folder of compiled GPU kernels, where the target has any

__all__ = [
    "BATCH",
    "CAPACITY",
    "FILE_NAME",
    "FORMAT_VERSION",
    "KERNELS_NAME",
    "Manifest",
    "StateTensor",
]


@dataclass(frozen=True)
class StateTensor:
    """One state buffer of one merge group.

    Attributes:
        name: name in the op's schema, e.g. ``key_code``.
        group: merge group it belongs to.
        past: graph input that reads it.
        present: graph output that returns it; bound to the same memory as ``past``.
        dtype: NumPy dtype name.
        shape: dimensions; a string is a symbol: ``batch``, ``capacity``, or a name of
            ``Manifest.retained_fractions`` (that fraction of the capacity, and
            ``retained_extra``).
    """

    name: str
    group: int
    past: str
    present: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything a runtime needs to run the model beside it.

    Attributes:
        model: file name of the graph.
        target: target name, e.g. ``ort-cpu``.
        mode: what the user asked for: ``exact``, ``paper`` or ``subspace``.
        dtype: the model's type: ``fp32``, ``fp16`` or ``bf16``.
        num_layers: attention layers of the model.
        num_heads: query heads H of each layer (the first layer's, should they differ).
        num_kv_heads: kv heads Hk.
        head_dim: head size D.
        vocab_size: V, the last dimension of the logits.
        max_sequence_length: longest text the model was exported for; unless tokens are evicted,
            the largest capacity C.
        rewind_slack: tokens X that a session may take back exactly.
        window: recent tokens that stay exact; 0 when all do.
        op_version: version of ``com.minicache::MiniCacheAttention``.
        eos_token_ids: tokens that end a generation.
        bos_token_id: token that begins a text, if the tokenizer adds one.
        state: the state buffers in graph order.
        retained_fractions: symbol to fraction of the capacity, for retained tokens.
        retained_extra: symbol to slots beyond that fraction, which going back may need.
        plan: the plan as ``minicache.exporter.plan`` writes it.
        fixed_batch: rows that the graph takes; 0: any number.
        eviction: which tokens rows let go of, as ``eviction.entry`` writes it; empty: none.
        producer: name and version of the exporter.
        format_version: of this file; changes when an older reader would misunderstand it.
    """

    model: str
    target: str
    mode: str
    dtype: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_sequence_length: int
    rewind_slack: int
    window: int
    op_version: int
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    state: tuple[StateTensor, ...] = ()
    retained_fractions: dict[str, float] = field(default_factory=dict)
    retained_extra: dict[str, int] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    fixed_batch: int = 0
    eviction: dict[str, Any] = field(default_factory=dict)
    producer: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def save(self, folder: Path) -> None:
        """Writes ``minicache.json`` into ``folder``."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Manifest:
        """Reads and checks ``minicache.json``.

        Raises:
            PackageError: no such file, not JSON, of another format version, or incomplete.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise PackageError(
                f"{str(folder)!r} holds no {FILE_NAME}; give a folder that minicache-export wrote"
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version = content.get("format_version")
        except (ValueError, AttributeError, RecursionError) as error:
            raise PackageError(
                f"{str(path)!r} is not a manifest ({error}); export again"
            ) from error
        if version != FORMAT_VERSION:
            raise PackageError(
                f"{str(path)!r} has format_version {version!r}, this version reads "
                f"{FORMAT_VERSION}; export again or use the minicache-onnx version that wrote it"
            )
        try:
            content["state"] = tuple(
                StateTensor(**{**entry, "shape": tuple(entry["shape"])})
                for entry in content["state"]
            )
            content["eos_token_ids"] = tuple(content["eos_token_ids"])
            manifest = Manifest(**content)
        except (KeyError, TypeError) as error:
            raise PackageError(
                f"{str(path)!r} lacks or misnames a field ({error}); export again"
            ) from error
        check_values(manifest, path)
        return manifest
