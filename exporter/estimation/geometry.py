"""The shape of a model's cache: all that sizes depend on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minicache.exporter.facts import ModelFacts, read_facts
from minicache.exporter.normalise import NormalisedModel
from minicache.runtime.errors import ModelFileError

MOST = 100_000  # layers, heads or components; beyond it a file is damaged


@dataclass(frozen=True)
class LayerGeometry:
    """One attention layer; it is what ``paper_plan`` and ``Structure`` ask of a layer.

    Attributes:
        num_kv_heads: kv heads Hk.
        head_dim: head size D.
        local_window: sliding window in tokens; 0 for full attention.
    """

    num_kv_heads: int
    head_dim: int
    local_window: int = 0

    @property
    def kind(self) -> tuple[int | str, ...]:
        """Layers of different kind share no code."""
        return self.num_kv_heads, self.head_dim, self.local_window


@dataclass(frozen=True)
class Geometry:
    """A model as far as its cache goes.

    Attributes:
        name: for tables.
        layers: the layers that attend, in order.
        num_heads: query heads H (of the first layer).
        dtype: the model's type: fp32, fp16 or bf16.
        max_positions: longest context; 0: unknown.
    """

    name: str
    layers: tuple[LayerGeometry, ...]
    num_heads: int
    dtype: str = "fp16"
    max_positions: int = 0

    @staticmethod
    def uniform(
        name: str, layers: int, heads: int, kv_heads: int, head_dim: int, positions: int
    ) -> Geometry:
        """A model whose layers are all alike and attend to everything."""
        return Geometry(
            name, (LayerGeometry(kv_heads, head_dim),) * layers, heads, "fp16", positions
        )

    @staticmethod
    def of_graph(name: str, model: NormalisedModel, facts: ModelFacts) -> Geometry:
        """What the exporter found in a graph."""
        layers = tuple(
            LayerGeometry(layer.num_kv_heads, layer.head_dim, layer.local_window)
            for layer in model.layers
        )
        heads = model.layers[0].num_heads
        return Geometry(name, layers, heads, model.dtype, facts.max_positions or 0)

    @staticmethod
    def of_config(path: Path) -> Geometry:
        """What ``config.json`` or ``genai_config.json`` says; the type is taken to be fp16.

        Args:
            path: the file, or its folder.

        Raises:
            ModelFileError: the files do not say how many layers, heads or components there are.
        """
        facts = read_facts(path)
        stated = facts.attention
        heads = stated.num_heads
        sizes: dict[str, float] = {
            "num_hidden_layers": stated.num_layers.value if stated.num_layers else 0,
            "num_attention_heads": heads.value if heads else 0,
            "head_dim (or hidden_size)": facts.head_dim or 0,
        }
        for name, value in sizes.items():
            if not 0 < value <= MOST:
                raise ModelFileError(
                    f"{str(path)!r} does not say {name} of a decoder model; give a config.json, "
                    "a model.onnx or an exported folder"
                )
        count, num_heads, head_dim = (int(value) for value in sizes.values())
        kv_heads = int(stated.num_kv_heads.value) if stated.num_kv_heads else num_heads
        windows = (stated.window(layer) for layer in range(count))
        layers = tuple(
            LayerGeometry(kv_heads, head_dim, int(window.value) if window else 0)
            for window in windows
        )
        name = path.name if path.is_dir() else path.resolve().parent.name
        return Geometry(name, layers, num_heads, "fp16", facts.max_positions or 0)
