"""Layer numbers in sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence


def layer_runs(layers: Sequence[int]) -> list[str]:
    """Ascending layer numbers, neighbours as a run: ``["0-3", "5"]``."""
    runs: list[tuple[int, int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], layer
        else:
            runs.append((layer, layer))
    return [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]


def layers_text(layers: Sequence[int]) -> str:
    """For a sentence: ``layer 3``, ``layers 0-3 and 5``."""
    *most, last = layer_runs(layers)
    listed = f"{', '.join(most)} and {last}" if most else last
    return f"layer{'' if len(layers) == 1 else 's'} {listed}"
