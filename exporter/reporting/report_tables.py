"""The report's tables on the terminal: memory, quality beside rivals, what a search measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from minicache.exporter.reporting import number_text as text


def tables(content: dict[str, Any], title: str) -> Iterator[Table]:
    """Yields the tables that ``content`` has data for."""
    yield size_table(content, title)
    if content["quality"]:
        yield quality_table(content)
    if content["frontier"]:
        yield frontier_table(content)


def _table(title: str, caption: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers, for 80 columns."""
    table = Table(
        title=title,
        caption=caption or None,
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def size_table(content: dict[str, Any], title: str) -> Table:
    """Memory at some contexts."""
    table = _table(
        title,
        "",
        "context",
        "KV cache,\nresident",
        "fp16 cache",
        "compression,\nto fp16",
        "to the model's\nown type",
    )
    table.columns[0].justify = "right"
    for size in content["cache_bytes"]:
        table.add_row(
            f"{size['context']}",
            text.size(size["resident"]),
            text.size(size["fp16_cache"]),
            text.smaller(size["ratio_to_fp16"]),
            text.smaller(size["ratio_to_model_type"]),
        )
    return table


def quality_rows(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The export, then its rivals, all with a rival's keys."""
    quality = content["quality"]
    export = {**quality, "name": "this export", "kv_bytes": quality["kv_bytes_resident"]}
    return [export, *content["rivals"]]


def _interval(row: dict[str, Any]) -> str:
    bounds = text.interval(row["perplexity_ratio_low"], row["perplexity_ratio_high"])
    return bounds.replace(" to ", "-")


def quality_table(content: dict[str, Any]) -> Table:
    """The loss and the size of the export and of each rival, on the same held-out text."""
    quality = content["quality"]
    table = _table(
        "Quality on held-out text",
        f"{quality['documents']} documents of {quality['context']} tokens; bits per element of the "
        "codes, scales included; KL in nats per token",
        "cache",
        "bits",
        f"KV bytes,\n{quality['context']}",
        "ratio\nto fp16",
        "perplexity\nratio",
        "95 %\ninterval",
        "KL",
        "top-1",
    )
    for index, row in enumerate(quality_rows(content)):
        table.add_row(
            row["name"],
            text.plain(row["bits_per_element"]),
            text.size(row["kv_bytes"]),
            text.smaller(row["compression_ratio"]),
            text.factor(row["perplexity_ratio"]),
            _interval(row),
            text.nats(row["kl_mean"]),
            text.percent(row["top1_agreement"]),
            style=None if index else "bold",
        )
    return table


def frontier_table(content: dict[str, Any]) -> Table:
    """What the search measured, by ascending ratio."""
    table = _table(
        "Plans that the search measured",
        "on calibration text that no code was fitted to; ratio and bits of the codes; bytes read "
        "per cached token in a decode step; * this export",
        "group,\nheads",
        "ratio\nto fp16",
        "bits",
        "bytes\nread",
        "KL",
        "perplexity\nratio",
        "95 %\ninterval",
        "top-1",
    )
    for point in content["frontier"]:
        table.add_row(
            point["structure"].replace("heads ", "") + (" *" if point["chosen"] else ""),
            text.smaller(point["ratio"]),
            text.plain(point["bits_per_element"]),
            f"{point['bytes_read']}",
            text.nats(point["kl"]),
            text.factor(point["perplexity_ratio"]),
            _interval(point),
            text.percent(point["top1_agreement"]),
            style="bold" if point["chosen"] else None,
        )
    return table
