"""The launcher against a fake CUDA driver: what it loads, what it launches, and its refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugins.gpu.fake_driver import ARGUMENTS, KEY, LAUNCH, drive, make_kernel, write_kernels


@pytest.mark.parametrize(
    ("capability", "image"),
    [
        (80, "sm_80"),
        (86, "sm_86"),
        (87, "sm_87"),
        (89, "sm_89"),
        (90, "sm_90"),
        (100, "sm_100"),
        (103, "ptx_80"),
        (120, "sm_120"),
        (121, "ptx_80"),
    ],
)
def test_each_device_gets_its_image(
    launcher_tools: Path, tmp_path: Path, capability: int, image: str
) -> None:
    """A cubin where there is one; what is newer, or of another family, gets PTX."""
    pack = write_kernels(tmp_path, make_kernel())
    lines = [f"pack {pack}", "context 1", LAUNCH]
    answers, calls = drive(launcher_tools, lines, log=tmp_path / "log", capability=capability)
    assert answers == ["ok"] * 3
    assert calls[0] == f"ctx1 load {image}_hint1"


@pytest.mark.parametrize(
    ("capability", "architectures", "image"),
    [
        (89, (80, 86, 87, 90), "sm_86"),
        (86, (80, 87), "sm_80"),
        (87, (80, 86), "ptx_80"),  # Tegra does not run the cubins of cards
        (89, (87,), "ptx_80"),
        (80, (86,), "ptx_80"),
        (103, (100,), "ptx_80"),  # sm_100a runs on 10.0 alone
    ],
)
def test_a_pack_of_few_architectures(
    launcher_tools: Path,
    tmp_path: Path,
    capability: int,
    architectures: tuple[int, ...],
    image: str,
) -> None:
    """A cubin of an earlier card runs on later cards of the same generation."""
    pack = write_kernels(tmp_path, make_kernel(architectures=architectures))
    lines = [f"pack {pack}", "context 1", LAUNCH]
    _, calls = drive(launcher_tools, lines, log=tmp_path / "log", capability=capability)
    assert calls[0] == f"ctx1 load {image}_hint1"


def test_a_launch_is_passed_on_exactly(launcher_tools: Path, tmp_path: Path) -> None:
    """Grid, block, shared memory, stream, arguments, and null pointers for Triton's scratch."""
    pack = write_kernels(tmp_path, make_kernel(shared=90000))
    lines = [f"pack {pack}", "context 1", LAUNCH, LAUNCH]
    answers, calls = drive(launcher_tools, lines, log=tmp_path / "log", capability=90)
    assert answers == ["ok"] * 4
    launch = (
        "ctx1 launch sm_90_hint1 grid 2,3,4 block 128,1,1 shared 90000 stream 51 extra 0 "
        "arguments p:10000 i:-3 i:32 l:6000000000 f:0.5 p:0 p:0"
    )
    load = ["ctx1 load sm_90_hint1", "ctx1 function scale", "ctx1 attribute 8=90000"]
    assert calls == [*load, launch, launch, "ctx1 unload sm_90_hint1"]


def test_little_shared_memory_is_not_asked_for(launcher_tools: Path, tmp_path: Path) -> None:
    """Only more than 48 KiB needs the attribute."""
    pack = write_kernels(tmp_path, make_kernel(shared=49152))
    _, calls = drive(launcher_tools, [f"pack {pack}", "context 1", LAUNCH], log=tmp_path / "log")
    assert not any("attribute" in call for call in calls)


def test_empty_grids_launch_nothing(launcher_tools: Path, tmp_path: Path) -> None:
    """Any of the three may be zero; nothing is loaded either."""
    pack = write_kernels(tmp_path, make_kernel())
    lines = [f"launch {KEY}|hint=1 {grid} {ARGUMENTS}" for grid in ("0 1 1", "1 0 1", "1 1 0")]
    answers, calls = drive(
        launcher_tools, [f"pack {pack}", "context 1", *lines], log=tmp_path / "log"
    )
    assert answers == ["ok"] * 5
    assert calls == []


@pytest.mark.parametrize(
    "arguments", ["p:10008 i:1 i:32 l:1 f:1", "p:10000 i:1 i:40 l:1 f:1"], ids=["pointer", "int"]
)
def test_what_is_not_divisible_takes_the_other_variant(
    launcher_tools: Path, tmp_path: Path, arguments: str
) -> None:
    """hint=0 where the pack has it, else an error that names kernel and argument."""
    launch = f"launch {KEY}|hint=1 1 1 1 {arguments}"
    both = write_kernels(tmp_path / "both", make_kernel(), make_kernel(hint=0))
    lines = [f"pack {both}", "context 1", launch]
    answers, calls = drive(launcher_tools, lines, log=tmp_path / "log")
    assert answers[-1] == "ok"
    assert calls[0] == "ctx1 load sm_80_hint0"

    one = write_kernels(tmp_path / "one", make_kernel())
    for hint in (0, 1):
        launch = f"launch {KEY}|hint={hint} 1 1 1 {arguments}"
        answers, _ = drive(launcher_tools, [f"pack {one}", "context 1", launch])
        name, what = ("out_ptr", "aligned to") if "10008" in arguments else ("capacity", "multiple")
        assert f"argument '{name}' of kernel '{KEY}|hint=1' is not a" in answers[-1]
        assert what in answers[-1]


def test_the_plain_variant_is_taken_when_named(launcher_tools: Path, tmp_path: Path) -> None:
    """Also for arguments that would do for the other one."""
    pack = write_kernels(tmp_path, make_kernel(), make_kernel(hint=0))
    lines = [f"pack {pack}", "context 1", f"launch {KEY}|hint=0 1 1 1 {ARGUMENTS}"]
    _, calls = drive(launcher_tools, lines, log=tmp_path / "log")
    assert calls[0] == "ctx1 load sm_80_hint0"


def test_each_context_has_modules_and_tables_of_its_own(
    launcher_tools: Path, tmp_path: Path
) -> None:
    """Loaded and uploaded once in each, and released in each."""
    pack = write_kernels(tmp_path, make_kernel())
    lines = [f"pack {pack}", "context 1", LAUNCH, "context 2", LAUNCH, LAUNCH, "table 7 8 9"]
    answers, calls = drive(launcher_tools, [*lines, "context 1", "close"], log=tmp_path / "log")
    assert answers[6] == "ok 11000 11000"
    table = ["allocate 12 at 11000", "copy to 11000: 7 8 9", "synchronise 0"]
    kinds = [re.sub(r"^(ctx\d launch) .*", r"\1", call) for call in calls]
    first, second = (
        [f"ctx{i} load sm_80_hint1", f"ctx{i} function scale", f"ctx{i} launch"] for i in (1, 2)
    )
    assert kinds == [
        *first,
        *second,
        "ctx2 launch",
        *(f"ctx2 {call}" for call in table),
        "ctx2 free 11000",
        "ctx1 unload sm_80_hint1",
        "ctx2 unload sm_80_hint1",
    ]


def test_a_context_that_is_gone_is_left_alone(launcher_tools: Path, tmp_path: Path) -> None:
    """Its modules and memory went with it, also where a new one has its address."""
    pack = write_kernels(tmp_path, make_kernel())
    lines = [f"pack {pack}", "context 1", LAUNCH, "table 1", "destroy 1"]
    _, calls = drive(launcher_tools, [*lines, "close"], log=tmp_path / "log")
    assert not any("unload" in call or "free" in call for call in calls)
    again = [*lines, "context 1", LAUNCH, "close"]
    _, calls = drive(launcher_tools, again, log=tmp_path / "log")
    assert len([call for call in calls if " load " in call]) == 2
    assert [call for call in calls if "unload" in call or "free" in call] == [
        "ctx1 unload sm_80_hint1"
    ]


def test_prepare_loads_ahead(launcher_tools: Path, tmp_path: Path) -> None:
    """The launch that follows loads nothing."""
    pack = write_kernels(tmp_path, make_kernel())
    lines = [f"pack {pack}", "context 1", LAUNCH.replace("launch", "prepare"), LAUNCH]
    _, calls = drive(launcher_tools, lines, log=tmp_path / "log")
    kinds = [call.split()[1] for call in calls]
    assert kinds == ["load", "function", "launch", "unload"]


def test_a_launch_can_be_checked_without_a_driver(launcher_tools: Path, tmp_path: Path) -> None:
    """Whether the pack has its kernel, and its grid is one."""
    pack = write_kernels(tmp_path, make_kernel())
    wrong = (LAUNCH.replace(KEY, "none"), LAUNCH.replace("2 3 4", "2 65536 4"))
    lines = [line.replace("launch", "require") for line in (LAUNCH, *wrong)]
    answers, _ = drive(launcher_tools, [f"pack {pack}", *lines], driver=False)
    assert answers[1] == "ok"
    assert "has no kernel 'none|hint=1'" in answers[2]
    assert "would get 65536 blocks along y" in answers[3]


def test_a_copy_is_enqueued(launcher_tools: Path, tmp_path: Path) -> None:
    """On the stream; a failure says how many bytes."""
    pack = write_kernels(tmp_path, make_kernel())
    lines = [f"pack {pack}", "driver", "context 1", "copy 20000 30000 64"]
    answers, calls = drive(launcher_tools, lines, log=tmp_path / "log")
    assert answers == ["ok"] * 4
    assert calls == ["ctx1 copy 64 from 30000 to 20000 stream 51"]
    answers, _ = drive(launcher_tools, lines, fail="cuMemcpyDtoDAsync_v2:2")
    assert "64 bytes cannot be copied on the GPU (CUDA_ERROR_OUT_OF_MEMORY" in answers[3]
