"""Against each rival: which of our exports takes no more room, and is it better or worse?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.paired import DocumentRow, Ratio, mean_ratio, versus


@dataclass(frozen=True)
class Verdict:
    """A rival against the best of ours among those that take no more room.

    Attributes:
        rival: its name.
        ours: name of the export; None: all of ours take more.
        perplexity: ours over the rival's; None without ``ours``.
        kl: KL of ours over the rival's, in nats per token.
        lost: exponential of KL of ours less the rival's, with its interval: what decides, since
            an error may also happen to lower perplexity.
    """

    rival: str
    ours: str | None
    perplexity: Ratio | None
    kl: float | None
    lost: Ratio | None

    @property
    def outcome(self) -> str:
        """``better`` or ``worse`` where KL's interval leaves out 1, ``open`` otherwise."""
        if self.lost is None:
            return "no such export"
        low, high = self.lost.low, self.lost.high
        if low is None or high is None:
            return "one document"
        return "better" if high < 1 else "worse" if low > 1 else "open"


def judge(
    rows: Mapping[str, Sequence[DocumentRow]],
    sizes: Mapping[str, float],
    ours: Sequence[str],
    slack: float = 0.02,
) -> list[Verdict]:
    """Verdicts on all configurations that are not ours.

    Args:
        rows: of each configuration, of the same documents.
        sizes: bits per element of each one's coded part, or bytes of a context.
        ours: names of our exports; the one with the least KL is chosen among those that take at
            most ``1 + slack`` times as much.
        slack: for padding.
    """
    found = []
    for name in rows:
        if name in ours:
            continue
        able = [own for own in ours if sizes[own] <= (1 + slack) * sizes[name]]
        if not able:
            found.append(Verdict(name, None, None, None, None))
            continue
        best = min(able, key=lambda own: mean_kl(rows[own]))
        ratio = versus(rows[best], rows[name])
        share = mean_kl(rows[best]) / mean_kl(rows[name])
        found.append(Verdict(name, best, ratio, share, lost_kl(rows[best], rows[name])))
    return found


def lost_kl(first: Sequence[DocumentRow], second: Sequence[DocumentRow]) -> Ratio:
    """Exponential of how much more KL per token one has, on the documents that both have."""
    known = {(row.kind, row.document): row for row in second}
    extra: dict[str, list[float]] = {}
    tokens: dict[str, list[int]] = {}
    for row in first:
        other = known.get((row.kind, row.document))
        if other is not None:
            extra.setdefault(row.kind, []).append(row.kl - other.kl)
            tokens.setdefault(row.kind, []).append(row.tokens)
    return mean_ratio(extra, tokens)


def mean_kl(rows: Sequence[DocumentRow]) -> float:
    """KL in nats per token over all rows."""
    return sum(row.kl for row in rows) / sum(row.tokens for row in rows)
