"""The tables of ``report.html``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from minicache.exporter.reporting import number_text as text
from minicache.exporter.reporting.report_tables import quality_rows
from minicache.exporter.schemas import code_bytes

MAGNITUDE_BYTES = 2  # fp16, one per code
WIDTHS = (8, 4, 2)


def table(head: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """A table that scrolls sideways where it is wider than the page; rows are HTML."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def row(cells: Iterable[str], *, own: bool = False) -> str:
    """A row of texts; ``own`` sets off what is the export's."""
    kind = ' class="own"' if own else ""
    return f"<tr{kind}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def quality_table(content: dict[str, Any]) -> str:
    """The export and its rivals on the same held-out text."""
    context = text.count(content["quality"]["context"])
    head = (
        "cache", "bits per element", f"KV cache, {context} tokens", "smaller than fp16",
        "perplexity ratio", "95 % interval", "KL, nats", "same top-1 token",
    )  # fmt: skip
    return table(
        head,
        (
            row(
                (
                    line["name"],
                    text.plain(line["bits_per_element"]),
                    text.size(line["kv_bytes"]),
                    text.smaller(line["compression_ratio"]),
                    text.factor(line["perplexity_ratio"]),
                    text.interval(line["perplexity_ratio_low"], line["perplexity_ratio_high"]),
                    text.nats(line["kl_mean"]),
                    text.percent(line["top1_agreement"]),
                ),
                own=index == 0,
            )
            for index, line in enumerate(quality_rows(content))
        ),
    )


def frontier_table(points: Sequence[dict[str, Any]]) -> str:
    """What the search measured."""
    head = (
        "plan", "smaller than fp16", "bits per element", "code bytes per token",
        "bytes read per token and step", "KL, nats", "perplexity ratio", "95 % interval",
        "same top-1 token",
    )  # fmt: skip
    return table(
        head,
        (
            row(
                (
                    point["structure"] + (" (chosen)" if point["chosen"] else ""),
                    text.smaller(point["ratio"]),
                    text.plain(point["bits_per_element"]),
                    text.count(point["bytes_per_token"]),
                    text.count(point["bytes_read"]),
                    text.nats(point["kl"]),
                    text.factor(point["perplexity_ratio"]),
                    text.interval(point["perplexity_ratio_low"], point["perplexity_ratio_high"]),
                    text.percent(point["top1_agreement"]),
                ),
                own=point["chosen"],
            )
            for point in points
        ),
    )


def group_table(groups: Sequence[dict[str, Any]]) -> str:
    """How many bits each group's keys and values get, and in which segments."""
    kinds = "key", "value"
    most = max(group[f"{kind}_bits_per_element"] for group in groups for kind in kinds)
    rows = []
    for group in groups:
        layers = ", ".join(str(layer) for layer in group["layers"])
        codes = "".join(
            _code(group[f"{kind}_bits"], group[f"{kind}_bits_per_element"], most) for kind in kinds
        )
        rows.append(
            f"<tr><td>{escape(layers)}</td>{codes}<td>{text.count(group['code_heads'])}</td>"
            f"<td>{text.count(group['bytes_per_token'])}</td></tr>"
        )
    head = "layers", "keys, bits per element", "values, bits per element", "code heads"
    return table((*head, "bytes per token"), rows, "groups")


def _code(bits: Sequence[int], per_element: float, most: float) -> str:
    """A cell: the number, a bar of that length, the segments."""
    segments = list(zip(bits[0::2], bits[1::2], strict=True))
    # Of all bits: what no segment has is padding and the magnitude.
    whole = 8 * (code_bytes(tuple(bits)) + MAGNITUDE_BYTES)
    length = 100 * per_element / most if most else 0.0
    parts, rest = [], length
    for width, components in segments:
        part = length * width * components / whole
        rest -= part
        kind = width if width in WIDTHS else WIDTHS[0]
        parts.append(f'<i class="w{kind}" style="width:{part:.2f}%"></i>')
    parts.append(f'<i class="rest" style="width:{max(rest, 0.0):.2f}%"></i>')
    words = " + ".join(f"{components} × {width} bit" for width, components in segments)
    return (
        f'<td class="code">{text.plain(per_element)}'
        f'<span class="width">{"".join(parts)}</span><small>{escape(words)}</small></td>'
    )


def size_table(sizes: Sequence[dict[str, Any]]) -> str:
    """Memory at some contexts."""
    head = (
        "context", "KV cache, resident", "fp16 cache", "smaller than fp16",
        "cache in the model's own type", "smaller than that",
    )  # fmt: skip
    return table(
        head,
        (
            row(
                (
                    f"{text.count(size['context'])} tokens",
                    text.size(size["resident"]),
                    text.size(size["fp16_cache"]),
                    text.smaller(size["ratio_to_fp16"]),
                    text.size(size["model_type_cache"]),
                    text.smaller(size["ratio_to_model_type"]),
                )
            )
            for size in sizes
        ),
    )


def parity_table(parity: dict[str, Any]) -> str:
    """The proof of the rewrite, case by case."""
    head = "comparison", "tokens", "largest logit difference", "largest logit", "same top-1 token"
    return table(
        head,
        (
            row(
                (
                    case["name"],
                    text.count(case["tokens"]),
                    text.scientific(case["max_difference"]),
                    text.plain(case["max_logit"]),
                    text.percent(case["top1_agreement"]),
                )
            )
            for case in parity.get("cases", [])
        ),
    )
