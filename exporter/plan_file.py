"""Reads a plan that a user wrote, or that an earlier export left as ``plan.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minicache.exporter.plan import Plan
from minicache.exporter.retention import Retention
from minicache.runtime.errors import OutputError, PlanError

FILE_NAME = "plan.json"


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
    except ValueError as error:
        raise PlanError(f"plan {str(path)!r} is not JSON ({error}); correct it there") from error
    if not isinstance(data, dict) or not isinstance(data.get("groups"), list):
        raise PlanError(f'plan {str(path)!r} has no list "groups"; give the plan.json of an export')
    groups = []
    for number, group in enumerate(data["groups"]):
        if not isinstance(group, dict) or not isinstance(group.get("layers"), list):
            raise PlanError(f'plan {str(path)!r}: group {number} has no list "layers"')
        mode = group.get("mode", "subspace" if "code_heads" in group else "exact")
        retention = group.get("retention") or vars(Retention())
        groups.append({**group, "mode": mode, "retention": retention})
    settings = {"mode": "subspace", **data, "groups": groups}
    try:
        return Plan.from_dict({**settings, "max_sequence_length": max_sequence_length})
    except (PlanError, ValueError, AttributeError) as error:
        raise PlanError(f"plan {str(path)!r}: {error}") from error
