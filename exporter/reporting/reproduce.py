"""The command that makes an export again."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from minicache.exporter.options import ExportOptions

FLAGS = {"verify_text": "--text"}  # all others are named as their field
# Where an export keeps its measurements and what it prints changes nothing of what it makes.
WITHOUT_EFFECT = ("cache", "quiet")


def command_line(options: ExportOptions, model: Path, output: Path) -> str:
    """The ``minicache-export`` line for a shell: every option that differs from its default.

    Files appear by name only: where they lay on one machine says nothing on another.

    Args:
        options: of the export.
        model: the original model.
        output: the folder that was made.
    """
    words = ["minicache-export", _name(model), "-o", _name(output)]
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value == field.default or field.name in WITHOUT_EFFECT:
            continue
        words.append(FLAGS.get(field.name, "--" + field.name.replace("_", "-")))
        if value is not True:  # a switch is its own value
            words.append(_text(value))
    return shlex.join(words)


def _text(value: object) -> str:
    if isinstance(value, Path):
        return _name(value)
    if isinstance(value, float) and value == float(f"{value:g}"):
        return f"{value:g}"  # 4, not 4.0
    return str(value)


def _name(path: Path) -> str:
    name = path.name or "out"
    return f"./{name}" if name.startswith("-") else name  # a dash would make it an option
