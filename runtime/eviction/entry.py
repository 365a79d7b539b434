"""What the manifest says about eviction: its field ``eviction``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minicache.runtime.errors import MiniCacheError, PackageError
from minicache.runtime.eviction.parse import parse_policy
from minicache.runtime.eviction.policy import Policy


@dataclass(frozen=True)
class EvictionEntry:
    """How the rows of an exported folder evict.

    Attributes:
        policy: as ``--evict`` was given.
        tiled: whether codes lie in tiles.
        segment_lengths: L of each merge group that evicts; 0: one segment.
    """

    policy: Policy
    tiled: bool
    segment_lengths: dict[int, int]

    def to_dict(self) -> dict[str, Any]:
        """Returns the entry as JSON-ready data."""
        lengths = {str(group): length for group, length in self.segment_lengths.items()}
        return {"policy": self.policy.text, "tiled": self.tiled, "segment_lengths": lengths}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> EvictionEntry:
        """Reads what ``to_dict`` wrote.

        Raises:
            PackageError: a missing, unknown or impossible value.
        """
        try:
            policy, tiled, lengths = (data[n] for n in ("policy", "tiled", "segment_lengths"))
            if not isinstance(policy, str) or not isinstance(tiled, bool) or len(data) != 3:
                raise TypeError(f"policy {policy!r}, tiled {tiled!r}")
            numbers = {int(group): length for group, length in lengths.items()}
            if any(type(n) is not int or n < 0 or n % 16 for n in numbers.values()):
                raise ValueError(f"segment_lengths {lengths}")
            return EvictionEntry(parse_policy(policy), tiled, numbers)
        except (KeyError, TypeError, ValueError, AttributeError, MiniCacheError) as error:
            raise PackageError(
                f"the manifest's eviction is {data!r} ({error}); export again"
            ) from error
