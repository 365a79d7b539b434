"""Plan files: what an export wrote is read again, and mistakes made by hand are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter.plan import Group, Plan
from minicache.exporter.plan_file import read_plan, write_plan
from minicache.runtime.errors import OutputError, PlanError

MINIMAL = {
    "groups": [
        {
            "layers": [0, 1],
            "code_heads": 2,
            "key_bits_per_element": 4.0,
            "value_bits_per_element": 3.0,
        },
        {"layers": [2]},
    ]
}


def read(folder: Path, data: Any, capacity: int = 512) -> Plan:
    path = folder / "plan.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return read_plan(path, capacity)


def edited(**changes: Any) -> dict[str, Any]:
    """The minimal plan with other fields; ``group_`` ones in its first group."""
    plan = json.loads(json.dumps(MINIMAL))
    for name, value in changes.items():
        if name.startswith("group_"):
            plan["groups"][0][name.removeprefix("group_")] = value
        else:
            plan[name] = value
    return dict(plan)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    bits=st.lists(st.floats(0.5, 9.0), min_size=12, max_size=12),
    window=st.integers(0, 64),
    sinks=st.integers(0, 8),
    weights=st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=3),
)
def test_what_was_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    bits: list[float],
    window: int,
    sinks: int,
    weights: list[float],
) -> None:
    """To the last digit of the bits, which decide how many components get them."""
    groups, first = [], 0
    for number, size in enumerate(sizes):
        layers = tuple(range(first, first + size))
        first += size
        pair = bits[2 * number], bits[2 * number + 1]
        groups.append(
            Group(
                layers,
                "subspace",
                code_heads=2,
                key_bits_per_element=pair[0],
                value_bits_per_element=pair[1],
            )
        )
    sensitivities = {"key": tuple(weights), "value": tuple(weights[::-1])}
    plan = Plan("subspace", tuple(groups), 512, window, sinks, 32, sensitivities)
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    write_plan(plan, path)
    assert read_plan(path, 512) == plan


def test_a_plan_by_hand_needs_only_the_groups(tmp_path: Path) -> None:
    """A group with code heads is coded, one without is exact; all else is as usual."""
    plan = read(tmp_path, MINIMAL)
    assert [group.mode for group in plan.groups] == ["subspace", "exact"]
    assert plan == Plan(
        "subspace",
        (
            Group(
                (0, 1),
                "subspace",
                code_heads=2,
                key_bits_per_element=4.0,
                value_bits_per_element=3.0,
            ),
            Group((2,)),
        ),
        512,
    )


def test_the_capacity_is_the_exports(tmp_path: Path) -> None:
    """A plan is good for any: the file's is where it came from."""
    assert read(tmp_path, edited(max_sequence_length=4096), 128).max_sequence_length == 128


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{'groups': []}", "is not JSON"),
        ("[1]", 'no list "groups"'),
        ("{}", 'no list "groups"'),
        ('{"groups": {}}', 'no list "groups"'),
        ('{"groups": []}', "no list"),
        ('{"groups": [[0]]}', 'group 0 has no list "layers"'),
        ('{"groups": [{"layers": 0}]}', 'group 0 has no list "layers"'),
        (edited(speed=9), "speed"),
        (edited(group_bits=4), "bits"),
        (edited(group_layers=[0, 0]), "do not cover each layer once: [0, 0, 2]"),
        (edited(group_layers=[0, 2]), "do not cover each layer once: [0, 2, 2]"),
        (edited(group_layers=[0]), "do not cover each layer once: [0, 2]"),
        (edited(group_layers=["0", "1"]), "layers"),
        (edited(group_layers=[0.0, 1.0]), "layers"),
        (edited(group_layers=[]), "layer"),
        (edited(group_code_heads=0), "no code_heads"),
        (edited(group_code_heads="2"), "code_heads"),
        (edited(group_key_bits_per_element="4"), "key_bits_per_element"),
        (edited(group_value_bits_per_element=None), "value_bits_per_element"),
        (edited(group_mode="exact"), "an exact group holds one layer"),
        (edited(group_mode="best"), "best"),
        (edited(window=-1), "the window is -1"),
        (edited(window="64"), "window"),
        (edited(slack=0), "the rewind slack is 0"),
        (edited(sensitivities=[1, 2]), "sensitivities"),
        (edited(sensitivities={"key": 3}), "sensitivities"),
        (edited(sensitivities={"key": ["a", 1, 1], "value": [1, 1, 1]}), "sensitivities"),
        (edited(group_retention=[1]), "retention"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path: Path, content: Any, words: str) -> None:
    with pytest.raises(PlanError) as error:
        read(tmp_path, content)
    assert words in str(error.value)
    assert "plan.json" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["none.json", "folder"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(PlanError, match=f"{name}' cannot be read .*give the plan.json"):
        read_plan(tmp_path / name, 512)


def test_bytes_that_are_no_text_are_no_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(PlanError, match="is not JSON"):
        read_plan(tmp_path / "plan.json", 512)


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    plan = read(tmp_path, MINIMAL)
    with pytest.raises(OutputError, match="cannot write"):
        write_plan(plan, tmp_path / "none" / "plan.json")
