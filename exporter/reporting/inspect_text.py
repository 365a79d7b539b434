"""What ``minicache inspect`` prints: lines of at most 80 columns, sentences aside.

Sentences stay on one line unless a width is given: whoever reads through a pipe searches them.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minicache.exporter.layer_text import layer_runs, layers_text
from minicache.exporter.preflight import DEFAULT_MAX_SEQUENCE_LENGTH

Facts = Mapping[str, Any]
COLUMNS = ("layers", "q", "kv", "size", "scale", "RoPE", "window", "cap", "sinks", "mask")
LEFT = ("layers", "RoPE", "mask")  # words; the others are numbers
LAYERS_WIDTH = 14
LABEL = 12


def inspect_lines(facts: Facts, width: int | None = None) -> list[str]:
    """The text of ``inspect_model``'s facts.

    Args:
        facts: as ``inspect_model`` returns them.
        width: columns to wrap sentences at; None: never.
    """
    lines = [facts["file"], *(_labelled(*pair, width) for pair in _head(facts)), ""]
    lines += [*_table(facts["layers"]), _LEGEND, "", "What can be merged"]
    lines += [_labelled(*pair, width) for pair in _merging(facts)]
    lines += ["", "Targets"]
    for name, target in facts["targets"].items():
        lines.append(_labelled(name, "yes" if target["possible"] else _no(target), width))
    if facts["notes"]:
        lines += ["", "Notes"]
        lines += [_wrapped(f"  {note}", "    ", width) for note in facts["notes"]]
    return [line for text in lines for line in text.split("\n")]


_LEGEND = "(q, kv: heads; RoPE, mask: inside the operator or in the graph; cap: softcap)"


def _labelled(label: str, text: str, width: int | None) -> str:
    return _wrapped(f"  {label:<{LABEL}}{text}", " " * (LABEL + 2), width)


def _wrapped(line: str, indent: str, width: int | None) -> str:
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True, replace_whitespace=False,
    )  # fmt: skip


def _no(verdict: Facts) -> str:
    return f"no: {verdict['reason']}"


def _head(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "form", f"{facts['form']}: {facts['form_text']}"
    name, version = facts["producer"]["name"], facts["producer"]["version"]
    producer = f"{name} {version}".strip() or "unknown"
    model_type = f", model type {facts['model_type']}" if facts["model_type"] else ""
    yield "made by", f"{producer}, opset {facts['opset']}{model_type}"
    kinds = facts["weights_mb_by_type"]
    parts = ", ".join(f"{kind} {size:.1f}" for kind, size in kinds.items() if size >= 0.05)
    several = f" ({parts})" if "," in parts else ""
    yield "type", f"{facts['dtype']}, weights {facts['weights_mb']:.1f} MB{several}"
    yield "vocabulary", f"{facts['vocab_size']} tokens"
    positions, per_token = facts["max_positions"], facts["kv_bytes_per_token"]
    unknown = f"not stated; exports hold {DEFAULT_MAX_SEQUENCE_LENGTH} tokens unless told"
    yield "context", f"{positions} tokens" if positions else unknown
    full = f", {_megabytes(per_token * positions)} at the longest context" if positions else ""
    yield "KV cache", f"{per_token} bytes per token{full}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def _row(layer: Facts) -> tuple[str, ...]:
    """The cells of one layer, without its number."""
    rope, window, size = layer["rope"], layer["local_window"], layer["head_dim"]
    turned = "" if rope is None else rope["rotary_dim"] or "?"
    partial = "" if turned == size else f"/{size}"
    inside, outside = layer["causal_operator"], bool(layer["masks"])
    return (
        str(layer["num_heads"]),
        str(layer["num_kv_heads"]),
        str(size),
        f"{layer['scale']:.4g}",
        "none found" if rope is None else f"{rope['where']} {turned}{partial}",
        str(window) if window else "full",
        f"{layer['softcap']:g}" if layer["softcap"] else "-",
        "yes" if layer["head_sink"] else "-",
        "both" if inside and outside else "op" if inside else "graph",
    )


def _table(layers: Sequence[Facts]) -> list[str]:
    """Equal layers in one row, in the order of their first."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for layer in layers:
        rows.setdefault(_row(layer), []).append(layer["layer"])
    lines: list[tuple[str, ...]] = [COLUMNS]
    for cells, numbers in rows.items():
        first, *more = textwrap.wrap(_numbers(numbers), LAYERS_WIDTH)
        lines.append((first, *cells))
        lines += [(part, *[""] * len(cells)) for part in more]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            f"{cell:<{size}}" if name in LEFT else f"{cell:>{size}}"
            for name, cell, size in zip(COLUMNS, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _numbers(layers: Sequence[int]) -> str:
    """Runs of layers; every second (third, ...) layer as ``0, 2, .., 40``."""
    steps = {after - before for before, after in itertools.pairwise(layers)}
    if len(layers) > 4 and len(steps) == 1 and steps != {1}:
        return f"{layers[0]}, {layers[1]}, .., {layers[-1]}"
    return ", ".join(layer_runs(layers))


def _merging(facts: Facts) -> Iterator[tuple[str, str]]:
    for kind in facts["kinds"]:
        count = len(kind["layers"])
        label = _numbers(kind["layers"])
        text = kind["reason"] and f"kept exact: {kind['reason']}"
        if not text:
            text = "may share codes" if count > 1 else "no other layer is alike: coded alone"
        if len(label) < LABEL:
            yield label, text
        else:
            yield "", f"{layers_text(kind['layers'])}: {text}"
    for mode, verdict in facts["modes"].items():
        yield mode, _mode(verdict, facts["num_layers"])


def _mode(verdict: Facts, count: int) -> str:
    groups = verdict["groups"]
    if not verdict["possible"]:
        return f"not yet: {verdict['reason']}" if groups else _no(verdict)
    if not groups:
        return "yes: every layer as it is, in buffers that are updated in place"
    coded = sum(map(len, groups))
    largest = max(map(len, groups))
    share = "one layer to a code" if largest == 1 else f"up to {largest} layers to a code"
    return f"yes: {coded} of {count} layers coded, {share}"
