"""``report.html``: the report as one page to look at, pass on and keep.

It needs nothing but the file: no network, no script. Parts without data are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from minicache.exporter.reporting import html_tables as table
from minicache.exporter.reporting import number_text as text
from minicache.exporter.reporting.html_plots import frontier_plots, similarity_plot
from minicache.exporter.reporting.html_style import STYLE

FILE_NAME = "report.html"
GLYPHS = {
    "search": '<g class="mark search" transform="translate(11 7)"><circle r="4.5"/></g>',
    "chosen": '<g class="mark search chosen" transform="translate(11 7)"><circle r="4.5"/></g>',
    "export": '<path class="export" d="M11 .5L17.5 7L11 13.5L4.5 7Z"/>',
    "rival": '<path class="rival" d="M7 3H15V11H7Z"/>',
    "beyond": '<path class="tick" d="M11 1L17 12H5Z"/>',
    "keys": '<g class="line keys"><path d="M1 7H21"/></g>',
    "values": '<g class="line values"><path d="M1 7H21"/></g>',
}


def write_html(content: dict[str, Any], folder: Path) -> None:
    """Writes ``report.html`` into ``folder``.

    Args:
        content: of ``report.json``.
        folder: of the export.
    """
    (folder / FILE_NAME).write_bytes(render(content).encode("utf-8", "replace"))


def render(content: dict[str, Any]) -> str:
    """The page as text."""
    name = escape(content.get("output") or content["model"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}: MiniCache export</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(_parts(content, name))
        + "\n</main></body></html>\n"
    )


def _parts(content: dict[str, Any], name: str) -> Iterator[str]:
    facts = [content["model"], f"mode {content['mode']}", f"target {content['target']}"]
    yield (
        f'<header><p class="kicker">MiniCache export</p><h1>{name}</h1>'
        f'<p class="under">{escape(" · ".join(facts))}</p></header>'
    )
    yield _verdict(content)
    yield _tiles(content)
    yield from _quality(content)
    yield from _groups(content)
    yield from _similarity(content)
    if content["cache_bytes"]:
        yield _head(
            "Memory", "All state buffers of one sequence: codes, exact recent tokens, rings."
        )
        yield table.size_table(content["cache_bytes"])
    yield from _parity(content)
    if content.get("notes"):
        yield _head("Notes")
        items = "".join(f"<li>{escape(note)}</li>" for note in content["notes"])
        yield f'<ul class="notes">{items}</ul>'
    if content.get("command"):
        yield _head("Make it again")
        yield f"<pre><code>{escape(content['command'])}</code></pre>"
    yield f"<footer>Exported in {text.plain(content['seconds'], 0)} s.</footer>"


def _head(title: str, hint: str = "") -> str:
    below = f'<p class="hint">{escape(hint)}</p>' if hint else ""
    return f"<h2>{escape(title)}</h2>{below}"


def _verdict(content: dict[str, Any]) -> str:
    words = content["verdict"]
    kind = "bad" if words.startswith("WARNING") else "good"
    if kind == "good" and ("small but measurable" in words or "not measured" in words):
        kind = "caution"
    shown = escape(words).replace("-&gt;", "→")  # which no line break parts
    return f'<p class="verdict {kind}">{shown}</p>'


def _tiles(content: dict[str, Any]) -> str:
    """The few numbers that matter, large."""
    tiles = []
    quality = content.get("quality")
    if content["cache_bytes"]:
        size = content["cache_bytes"][-1]
        tiles.append(
            (
                text.smaller(size["ratio_to_fp16"]),
                "smaller KV cache than fp16",
                f"{text.size(size['resident'])} instead of {text.size(size['fp16_cache'])} at "
                f"{text.count(size['context'])} tokens",
            )
        )
    if quality:
        bounds = text.interval(quality["perplexity_ratio_low"], quality["perplexity_ratio_high"])
        tiles += [
            (
                text.factor(quality["perplexity_ratio"]),
                "perplexity, to the original",
                "no interval" if bounds == text.MISSING else f"95 % interval {bounds}",
            ),
            (
                text.percent(quality["top1_agreement"]),
                "of tokens rank the same first",
                f"KL {text.nats(quality['kl_mean'])} nats per token",
            ),
            (
                text.plain(quality["bits_per_element"]),
                "bits per coded element",
                "scales and padding included; fp16 has 16",
            ),
        ]
    cells = (
        f'<div class="tile"><b>{escape(number)}</b><span>{escape(what)}</span>'
        f"<small>{escape(more)}</small></div>"
        for number, what, more in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _legend(*entries: tuple[str, str]) -> str:
    items = (
        f'<li><svg viewBox="0 0 22 14" aria-hidden="true">{GLYPHS[glyph]}</svg>{escape(words)}</li>'
        for glyph, words in entries
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _quality(content: dict[str, Any]) -> Iterator[str]:
    quality, points, rivals = (content.get(key) for key in ("quality", "frontier", "rivals"))
    plots = frontier_plots(content)
    if plots and (points or rivals):
        yield _head("What compression costs", "Up is worse, right is smaller.")
        entries = [("export", "this export, held-out text")] if quality else []
        entries += [("rival", "rivals, same held-out text")] if rivals else []
        if points:
            entries.append(("search", "plans of the search, calibration text"))
            entries.append(("chosen", "the chosen one"))
        if any('d="M0-6L6 5H-6Z"' in plot for plot in plots):
            entries.append(("beyond", "above the axis"))
        yield _legend(*entries)
        yield f'<div class="plots">{"".join(f"<figure>{plot}</figure>" for plot in plots)}</div>'
    if quality:
        hint = (
            f"{text.count(quality['documents'])} held-out documents of "
            f"{text.count(quality['context'])} tokens, {text.count(quality['tokens'])} tokens "
            "scored, each against the original model."
        )
        if rivals:
            hint += " Rivals are simulated on the same documents."
        yield _head("Quality on held-out text", hint)
        yield table.quality_table(content)
    if points:
        yield (
            f"<details><summary>All {len(points)} plans that the search measured, on calibration "
            f"text that no code was fitted to</summary>{table.frontier_table(points)}</details>"
        )


def _groups(content: dict[str, Any]) -> Iterator[str]:
    groups = content.get("groups")
    if not groups:
        return
    total = text.count(sum(group["bytes_per_token"] for group in groups))
    yield _head(
        "Where the bits go",
        f"{len(groups)} group{'s' * (len(groups) > 1)} of layers, {total} bytes per token in all. "
        "n × b bit: n components of a code with b bits each, per code head.",
    )
    kinds = *((f"w{width}", f"{width} bit") for width in table.WIDTHS), ("rest", "scale, padding")
    items = "".join(f'<li><i class="{kind}"></i>{words}</li>' for kind, words in kinds)
    shown = f'<ul class="legend">{items}</ul>{table.group_table(groups)}'
    yield f"<details open><summary>Group by group</summary>{shown}</details>"


def _similarity(content: dict[str, Any]) -> Iterator[str]:
    plot = similarity_plot(content.get("similarity") or [])
    if plot:
        yield _head(
            "How alike neighbouring layers are",
            "Mean cosine of the vectors of adjacent layers of a kind, head by head and as they "
            "are: 1 is the same direction, 0 unrelated.",
        )
        yield _legend(("keys", "keys"), ("values", "values"))
        yield f"<figure>{plot}</figure>"


def _parity(content: dict[str, Any]) -> Iterator[str]:
    parity = content.get("parity")
    if not parity:
        return
    yield _head(
        "Rewrite check" if content.get("merged_groups") else "Parity",
        "The rewritten graph, before anything is coded, against the original: logits differ by at "
        f"most {text.scientific(parity['max_relative_difference'])} of the largest one (allowed "
        f"{text.scientific(parity['tolerance'])}), and {text.percent(parity['top1_agreement'])} of "
        "tokens rank the same first.",
    )
    if parity.get("cases"):
        yield table.parity_table(parity)
    for note in parity.get("notes", []):
        yield f'<p class="hint">{escape(note)}</p>'
