"""Reads a plan that a user wrote, or that an earlier export left as ``plan.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minicache.exporter.plan import Plan
from minicache.exporter.retention import Retention
from minicache.runtime.errors import OutputError, PlanError

FILE_NAME = "plan.json"
MODES = ("subspace", "exact")  # of groups
BITS = ("key_bits_per_element", "value_bits_per_element")
MOST_BITS = 16  # per element: as much as fp16
COUNTS = ("code_heads", "window", "sinks", "slack")


def write_plan(plan: Plan, path: Path) -> None:
    """Writes a plan as JSON that ``read_plan`` reads.

    Raises:
        OutputError: the disk refuses.
    """
    text = json.dumps(plan.to_dict(), indent=1)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from error


def read_plan(path: Path, max_sequence_length: int) -> Plan:
    """Reads a plan; of each group only the layers are required.

    Args:
        path: JSON with ``groups``, and optionally the other fields of ``Plan``.
        max_sequence_length: of the export, whatever the file says.

    Raises:
        PlanError: the file cannot be read or holds no plan; the message says what is wrong.
    """
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(
            f"plan {str(path)!r} cannot be read ({error.strerror}); give the plan.json of an export"
        ) from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"plan {str(path)!r} is not JSON ({error}); correct it there") from error
    if not isinstance(data, dict) or not isinstance(data.get("groups"), list) or not data["groups"]:
        raise PlanError(f'plan {str(path)!r} has no list "groups"; give the plan.json of an export')
    try:
        groups = [_group(number, group) for number, group in enumerate(data["groups"])]
        _check_numbers("the plan", data)
        _check_weights(data.get("sensitivities", {}))
        if not isinstance(data.get("evict", ""), str):
            raise PlanError(f"evict is {data['evict']!r}; give a text, as --evict takes it")
        settings = {"mode": "subspace", **data, "groups": groups}
        return Plan.from_dict({**settings, "max_sequence_length": max_sequence_length})
    except PlanError as error:
        raise PlanError(f"plan {str(path)!r}: {error}") from error


def _group(number: int, group: Any) -> dict[str, Any]:
    """A group with what may be left out filled in.

    Raises:
        PlanError: a value of the wrong type or out of range.
    """
    where = f"group {number}"
    layers = group.get("layers") if isinstance(group, dict) else None
    if not isinstance(layers, list) or not layers or not all(type(x) is int for x in layers):
        raise PlanError(f'{where} has no list "layers" of layer numbers')
    _check_numbers(where, group)
    mode = group.get("mode", "subspace" if "code_heads" in group else "exact")
    if mode not in MODES:
        raise PlanError(f"{where}: mode is {mode!r}; give one of {', '.join(MODES)}")
    if mode == "subspace":
        for name in BITS:
            bits = group.get(name, 0.0)
            if not 0 < bits <= MOST_BITS:
                raise PlanError(f"{where}: {name} is {bits}; give more than 0, at most {MOST_BITS}")
    retention = group.get("retention") or vars(Retention())
    return {**group, "mode": mode, "retention": retention}


def _check_numbers(where: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name in COUNTS and type(value) is not int:
            raise PlanError(f"{where}: {name} is {value!r}; give a whole number")
        if name in BITS and type(value) not in (int, float):
            raise PlanError(f"{where}: {name} is {value!r}; give a number")


def _check_weights(sensitivities: Any) -> None:
    rows = list(sensitivities.values()) if isinstance(sensitivities, dict) else [sensitivities]
    good = isinstance(sensitivities, dict) and all(isinstance(row, list) for row in rows)
    if not good or not all(type(x) in (int, float) for row in rows for x in row):
        raise PlanError("its sensitivities are no lists of numbers by key and value")
