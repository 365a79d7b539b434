"""The comparison as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rivals.verdict import Verdict

HEAD = (
    "| cache | bits | ratio | bytes of all | to fp16 | perplexity ratio | KL, nats | top-1 |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def table(result: Mapping[str, Any]) -> str:
    """One line per configuration, the largest ratio of coded tokens last.

    Args:
        result: what ``bench_quality.run`` gives.
    """
    rows = sorted(result["configurations"].items(), key=lambda item: -item[1]["bits_per_element"])
    return "\n".join([HEAD, *(_line(name, row) for name, row in rows)])


def _line(name: str, row: Mapping[str, Any]) -> str:
    bits = row["bits_per_element"]
    return (
        f"| {name} | {bits:.2f} | {16 / bits:.1f} × | {row['kv_bytes']:,} | "
        f"{row['compression_ratio']:.2f} × | {_interval(row['ratio'])} | {row['kl']:.4f} | "
        f"{row['top1']:.1%} |"
    )


def _interval(ratio: Mapping[str, float | None]) -> str:
    if ratio["low"] is None:
        return f"{ratio['value']:.4f}"
    return f"{ratio['value']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f})"


def verdicts(found: Sequence[Verdict]) -> str:
    """What the verdicts say, one line each, losses first."""
    order = ("worse", "open", "better", "one document", "no such export")
    lines = []
    for verdict in sorted(found, key=lambda one: order.index(one.outcome)):
        if verdict.perplexity is None or verdict.kl is None:
            lines.append(f"{verdict.rival}: no export of ours takes as little")
            continue
        given = verdict.perplexity
        interval = "" if given.low is None else f" [{given.low:.4f}, {given.high:.4f}]"
        # By KL.
        said = {"worse": "ours LOSES", "better": "ours wins", "open": "no difference shown"}
        lines.append(
            f"{verdict.rival}: {said.get(verdict.outcome, 'one document, no interval')}; "
            f"{verdict.ours} has {verdict.kl:.3f} of its KL and "
            f"{given.value:.4f}{interval} of its perplexity"
        )
    return "\n".join(lines)
