"""What a search for a plan must reach."""

from __future__ import annotations

from dataclasses import dataclass

from minicache.runtime.errors import PlanError

DEFAULT_MAX_RATIO = 1.01  # upper end of the perplexity ratio's interval
DEFAULT_MAX_GROUP_SIZE = 4
CODE_HEADS = ("apart", "joint", "any")


@dataclass(frozen=True)
class Goal:
    """Bytes, or loss, or both; without either, a loss of at most 1 % perplexity.

    Attributes:
        ratio: at least so many times smaller than fp16, coded part with magnitudes.
        bytes_per_token: at most so many coded bytes per token, all layers.
        max_kl: at most so much KL to the original, nats per token on held-out calibration text.
        max_group_size: layers of the largest group.
        code_heads: one of ``CODE_HEADS``.
        minutes: time after which no further plan is measured.
    """

    ratio: float | None = None
    bytes_per_token: int | None = None
    max_kl: float | None = None
    max_group_size: int = DEFAULT_MAX_GROUP_SIZE
    code_heads: str = "apart"
    minutes: float = 15.0

    def __post_init__(self) -> None:
        if self.ratio is not None and self.bytes_per_token is not None:
            raise PlanError(
                "--ratio and --kv-bytes-per-token both bound the bytes; give one of them"
            )
        if self.ratio is not None and not 1.0 < self.ratio <= 256.0:
            raise PlanError(f"--ratio is {self.ratio:g}; give more than 1, at most 256")
        if self.bytes_per_token is not None and self.bytes_per_token < 1:
            raise PlanError(f"--kv-bytes-per-token is {self.bytes_per_token}; give at least 1")
        if self.max_kl is not None and not self.max_kl > 0:
            raise PlanError(f"--max-kl is {self.max_kl:g}; give more than 0 nats, e.g. 0.02")
        if not 1 <= self.max_group_size <= 32:
            raise PlanError(f"--max-group-size is {self.max_group_size}; give 1 to 32")
        if self.code_heads not in CODE_HEADS:
            raise PlanError(
                f"--code-heads {self.code_heads!r} is not one of {', '.join(CODE_HEADS)}"
            )
        if not self.minutes > 0:
            raise PlanError(f"--plan-minutes is {self.minutes:g}; give more than 0")

    def budget(self, plain_bytes: int) -> int | None:
        """Most coded bytes per token; None when only the loss is bounded.

        Args:
            plain_bytes: per token of a plain fp16 cache.
        """
        if self.ratio is not None:
            return bytes_at(plain_bytes, self.ratio)
        return self.bytes_per_token


def bytes_at(plain_bytes: int, ratio: float) -> int:
    """Most whole bytes that are ``ratio`` times fewer; 16 / 3 of 16 bytes are 3, not 2."""
    return int(plain_bytes / ratio + 1e-6)
