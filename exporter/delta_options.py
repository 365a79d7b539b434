"""What may be asked of a pair's deltas (docs/deltas.md)."""

from __future__ import annotations

from minicache.runtime.errors import PlanError

EXPORTED_BITS = (4, 2)  # the operator also takes 16, which saves nothing
PAPER_T, HALFWAY = 0.6, 0.5


def check_deltas(bits: int, rank: int, slerp_t: float | None, group_size: int) -> None:
    """Whether the options of deltas go together.

    Args:
        bits: ``--delta-bits``, 0: not given.
        rank: ``--delta-rank``, likewise.
        slerp_t: ``--slerp-t``; None: not given.
        group_size: ``--group-size``.

    Raises:
        PlanError: a value out of range, both options, or a merge whose deltas are not antipodal.
    """
    if bits not in (0, *EXPORTED_BITS):
        raise PlanError(f"--delta-bits {bits} is not one of 4, 2")
    if rank < 0:
        raise PlanError(f"--delta-rank is {rank}; give at least 1, or leave it out")
    if bits and rank:
        raise PlanError(
            f"--delta-bits {bits} and --delta-rank {rank} are two ways to keep one delta; give one"
        )
    given = f"--delta-bits {bits}" if bits else f"--delta-rank {rank}"
    if not bits and not rank:
        return
    if group_size != 2:
        raise PlanError(
            f"{given} is of pairs, and --group-size is {group_size}: deltas of larger groups are "
            "no mirror images; use --group-size 2"
        )
    if slerp_t not in (None, HALFWAY):
        raise PlanError(
            f"{given} needs the direction halfway between two layers, where one delta serves both, "
            f"and --slerp-t is {slerp_t:g}; leave it out or give {HALFWAY:g}"
        )


def check_head_size(bits: int, rank: int, head_dim: int) -> None:
    """Whether heads of this size can have such deltas.

    Raises:
        PlanError: they cannot.
    """
    if rank > head_dim:
        raise PlanError(
            f"--delta-rank {rank} is more than the {head_dim} components of a head; give less, or "
            "--delta-bits"
        )
    if bits and head_dim * bits % 8:
        raise PlanError(
            f"--delta-bits {bits} does not fill bytes with heads of {head_dim} components; give "
            "--delta-rank"
        )


def merge_parameter(slerp_t: float | None, has_deltas: bool) -> float:
    """SLERP parameter t: the given one, else halfway for deltas, else the paper's."""
    if slerp_t is not None:
        return slerp_t
    return HALFWAY if has_deltas else PAPER_T
