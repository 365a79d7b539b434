"""What the fields of ``minicache.json`` may hold: the file can be changed by hand, or damaged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from minicache.runtime.errors import PackageError

if TYPE_CHECKING:
    from minicache.runtime.manifest import Manifest, StateTensor

# Symbols that may stand in a state's shape; the session gives them numbers when it allocates.
BATCH, CAPACITY = "batch", "capacity"

LARGEST = (1 << 31) - 1  # what the op's int32 lengths hold
DTYPES = ("fp32", "fp16", "bf16")
_TEXTS = ("model", "target", "mode", "dtype")
_SIZES = (
    "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "max_sequence_length",
)  # fmt: skip
_COUNTS = ("rewind_slack", "window", "fixed_batch")
_TABLES = ("retained_fractions", "retained_extra", "plan", "producer", "eviction")


def check_values(manifest: Manifest, path: Path) -> None:
    """Checks the type and range of every field.

    Args:
        manifest: as read, its fields of any type.
        path: of the file, for messages.

    Raises:
        PackageError: names the first field that cannot be.
    """
    fields = vars(manifest)

    def refuse(name: str, wanted: str, value: Any) -> PackageError:
        return PackageError(f"{str(path)!r}: {name} is {value!r}, not {wanted}; export again")

    for name in _TEXTS:
        if not isinstance(fields[name], str):
            raise refuse(name, "a text", fields[name])
    if not manifest.model or Path(manifest.model).name != manifest.model or "\0" in manifest.model:
        raise refuse("model", "the name of a file beside it", manifest.model)
    if manifest.dtype not in DTYPES:
        raise refuse("dtype", f"one of {', '.join(DTYPES)}", manifest.dtype)
    for names, low in ((_SIZES, 1), (_COUNTS, 0)):
        for name in names:
            if not _whole(fields[name], low):
                raise refuse(name, f"a whole number from {low} on", fields[name])
    if not all(_whole(token, 0) for token in manifest.eos_token_ids):
        raise refuse("eos_token_ids", "a list of token ids", list(manifest.eos_token_ids))
    if manifest.bos_token_id is not None and not _whole(manifest.bos_token_id, 0):
        raise refuse("bos_token_id", "a token id or null", manifest.bos_token_id)
    for name in _TABLES:
        if not isinstance(fields[name], dict):
            raise refuse(name, "an object", fields[name])
    for symbol, share in manifest.retained_fractions.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise refuse(f"retained_fractions[{symbol!r}]", "more than 0 and at most 1", share)
    for symbol, slots in manifest.retained_extra.items():
        if not _whole(slots, 0):
            raise refuse(f"retained_extra[{symbol!r}]", "a whole number from 0 on", slots)
    for state in manifest.state:
        _check_state(state, refuse)
    if len({state.past for state in manifest.state}) < len(manifest.state):
        raise PackageError(f"{str(path)!r} names a state twice; export again")


def _check_state(state: StateTensor, refuse: Any) -> None:
    for name in ("name", "past", "present", "dtype"):
        value = getattr(state, name)
        if not isinstance(value, str):
            raise refuse(f"{name} of a state", "a text", value)
    if not _whole(state.group, 0):
        raise refuse(f"group of {state.past!r}", "a whole number from 0 on", state.group)
    if not all(isinstance(size, str) or _whole(size, 0) for size in state.shape):
        raise refuse(f"shape of {state.past!r}", "whole numbers and symbols", list(state.shape))


def _whole(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= LARGEST
