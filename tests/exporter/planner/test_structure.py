"""Structures: every layer in one group of its kind, groups as even as the size allows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter.planner.structure import Structure, structures


@dataclass(frozen=True)
class FakeLayer:
    kind: int = 0
    num_kv_heads: int = 4


KINDS = st.lists(st.integers(0, 2), min_size=1, max_size=24)


@given(kinds=KINDS, size=st.integers(1, 8))
def test_groups_cut_each_kind_in_order_and_evenly(kinds: list[int], size: int) -> None:
    """As few groups of a kind as the size allows, whose sizes differ by at most one."""
    groups = Structure(size).groups([FakeLayer(kind) for kind in kinds])
    assert groups == sorted(groups)
    for kind in set(kinds):
        own = [group for group in groups if kinds[group[0]] == kind]
        members = [layer for layer, other in enumerate(kinds) if other == kind]
        assert [layer for group in own for layer in group] == members
        assert len(own) == -(-len(members) // size)
        lengths = [len(group) for group in own]
        assert max(lengths) <= size and max(lengths) - min(lengths) <= 1


def test_alternating_kinds_are_grouped_across_each_other() -> None:
    """The neighbour of a layer is the next one of its kind."""
    layers = [FakeLayer(index % 2) for index in range(8)]
    assert Structure(3).groups(layers) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert Structure(4).groups(layers) == [(0, 2, 4, 6), (1, 3, 5, 7)]


@given(kinds=KINDS, most=st.integers(1, 8), heads=st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_structures_are_all_different_cuts(kinds: list[int], most: int, heads: int) -> None:
    """No cut is tried twice, none is larger than asked for, and the smallest is always there."""
    layers = [FakeLayer(kind, heads) for kind in kinds]
    found = structures(layers, most, "any")
    cuts = [(one.joint_heads, tuple(one.groups(layers))) for one in found]
    assert len(set(cuts)) == len(cuts)
    assert all(one.group_size <= most for one in found)
    assert (1, tuple((layer,) for layer in range(len(layers)))) in cuts


@pytest.mark.parametrize(
    ("choice", "heads", "expected"),
    [
        ("apart", 6, {6}),
        ("joint", 6, {1}),
        ("any", 6, {1, 2, 3, 6}),
        ("any", 1, {1}),
        ("any", 5, {1, 5}),
    ],
)
def test_code_heads_are_divisors_of_the_kv_heads(
    choice: str, heads: int, expected: set[int]
) -> None:
    layers = [FakeLayer(0, heads)] * 3
    assert {one.code_heads(layers[0]) for one in structures(layers, 2, choice)} == expected


def test_names_tell_structures_apart() -> None:
    """Names are the keys of journals."""
    found = structures([FakeLayer()] * 6, 6, "any")
    assert len({one.name for one in found}) == len(found)
