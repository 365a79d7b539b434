"""The command line that a report gives is one that makes the same export."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter.cli import build_parser
from minicache.exporter.options import MODES, SLERP_BITS, ExportOptions
from minicache.exporter.planner.goal import CODE_HEADS
from minicache.exporter.reporting.reproduce import command_line
from minicache.exporter.schemas import MAGNITUDES, RETENTION_SCOPES
from minicache.exporter.targets import TARGETS

DEFAULT = ExportOptions()
NUMBERS = st.floats(1e-9, 1e9)
COUNTS = st.integers(0, 10**9)
# A folder of one machine and a name that a shell would take apart.
NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\x00"), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))
FILES = NAMES.map(lambda name: Path("/somewhere/private") / name)


def or_none(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | values


VALUES: dict[str, st.SearchStrategy] = {
    "mode": st.sampled_from(MODES),
    "target": st.sampled_from(list(TARGETS)),
    "max_sequence_length": or_none(COUNTS),
    "ratio": or_none(NUMBERS),
    "kv_bytes_per_token": or_none(COUNTS),
    "max_kl": or_none(NUMBERS),
    "max_group_size": COUNTS,
    "code_heads": st.sampled_from(CODE_HEADS),
    "plan": or_none(FILES),
    "plan_minutes": NUMBERS,
    "calibration": or_none(FILES),
    "calibration_tokens": COUNTS,
    "cache": or_none(FILES),
    "start_layer": or_none(COUNTS),
    "group_size": COUNTS,
    "slerp_t": or_none(NUMBERS),
    "magnitude": st.sampled_from(MAGNITUDES),
    "retention": st.sampled_from(["none", "minmax:0.05", "threshold:0.5", "budget:0.1"]),
    "retention_capacity": or_none(NUMBERS),
    "retention_scope": st.sampled_from(RETENTION_SCOPES),
    "code_bits": st.sampled_from(SLERP_BITS),
    "align": st.booleans(),
    "delta_bits": st.sampled_from([0, 4, 2]),
    "delta_rank": COUNTS,
    "evict": or_none(st.sampled_from(["streaming:4+1024", "snapkv:512", "h2o:512"])),
    "window": COUNTS,
    "sinks": COUNTS,
    "rewind_slack": COUNTS,
    "verify_text": or_none(FILES),
    "verify_documents": COUNTS,
    "verify_context": COUNTS,
    "overwrite": st.booleans(),
    "no_kernels": st.booleans(),
    "quiet": st.booleans(),
}
OPTIONS = st.fixed_dictionaries({}, optional=VALUES).map(lambda values: ExportOptions(**values))


def test_the_strategy_knows_every_option() -> None:
    """A new option must be added above, or the round trip would say nothing of it."""
    assert set(VALUES) == {field.name for field in dataclasses.fields(ExportOptions)}


@given(OPTIONS, FILES, FILES)
def test_the_parser_reads_back_every_option(
    options: ExportOptions, model: Path, output: Path
) -> None:
    program, *words = shlex.split(command_line(options, model, output))
    assert program == "minicache-export"
    read = vars(build_parser().parse_args(["export", *words]))
    assert read["model"] == Path(model.name)
    assert read["output"] == Path(output.name)
    for field in dataclasses.fields(ExportOptions):
        value = getattr(options, field.name)
        if field.name in ("cache", "quiet"):  # change nothing of the result
            value = field.default
        if isinstance(value, Path):
            value = Path(value.name)
        assert read[field.name] == value, field.name


@given(OPTIONS, FILES)
def test_no_folder_of_this_machine_is_told(options: ExportOptions, model: Path) -> None:
    assert "/somewhere/private" not in command_line(options, model, Path("/somewhere/private/out"))


def test_defaults_are_left_out() -> None:
    line = command_line(DEFAULT, Path("a/model.onnx"), Path("b/out"))
    assert line == "minicache-export model.onnx -o out"


def test_the_line_is_short_and_quoted() -> None:
    options = ExportOptions(
        ratio=4.0, max_kl=0.015, verify_text=Path("/x/my text.txt"), overwrite=True, quiet=True
    )
    line = command_line(options, Path("-odd.onnx"), Path("out"))
    assert line == (
        "minicache-export ./-odd.onnx -o out --ratio 4 --max-kl 0.015 --text './my text.txt' "
        "--overwrite"
    ).replace("'./my", "'my")
