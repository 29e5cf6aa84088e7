"""Branches of a difference: unique paths, shares that add up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.nodes import TimeNode
from sysbench.tui.screens.compare_rows import (
    ChangeBranch,
    change_bar,
    change_branches,
)


def _whole(children: list[TimeNode]) -> TimeNode:
    return TimeNode(
        kind="step",
        name="step",
        state="both",
        a_ns=sum(child.a_ns for child in children),
        b_ns=sum(child.b_ns for child in children),
        children=children,
    )


def _leaf(name: str, phase: str, a_ns: int, b_ns: int) -> TimeNode:
    return TimeNode(kind="operator", name=name, state="both", phase=phase, a_ns=a_ns, b_ns=b_ns)


amounts = st.integers(0, 10**9)
leaves = st.builds(
    _leaf, st.sampled_from(["mm", "exp"]), st.sampled_from(["", "forward"]), amounts, amounts
)
trees = st.recursive(leaves, lambda below: st.lists(below, min_size=1, max_size=4).map(_whole))


def branches(root: ChangeBranch) -> Iterator[ChangeBranch]:
    yield root
    for child in root.children:
        yield from branches(child)


@given(st.lists(trees, min_size=1, max_size=6).map(_whole))
def test_no_two_rows_have_one_path_and_shares_add_up(root: TimeNode) -> None:
    every = list(branches(change_branches(root)))
    assert len({branch.path for branch in every}) == len(every)
    for branch in every:
        assert len(change_bar(branch.part)) == len(change_bar(0.0))
        if branch.children and branch.share is not None:
            below = sum(child.share or 0.0 for child in branch.children)
            assert below == pytest.approx(branch.share, abs=0.001 * (len(branch.children) + 1))


def test_rows_of_changes_that_cancel_have_no_share() -> None:
    root = _whole([_leaf("mm", "", 100, 200), _leaf("exp", "", 200, 101)])
    assert all(branch.share is None for branch in branches(change_branches(root)))


def test_siblings_of_one_name_are_distinguished_by_their_phase() -> None:
    root = _whole([_leaf("mm", "forward", 1, 5), _leaf("mm", "backward", 2, 5)])
    texts = [branch.text for branch in change_branches(root).children]
    assert texts == ["mm · forward", "mm · backward"]


def test_a_bar_has_its_zero_in_the_middle() -> None:
    less, more = change_bar(-0.5), change_bar(0.5)
    assert less == more[::-1] and less.index("│") == len(less) // 2
