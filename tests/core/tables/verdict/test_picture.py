"""The picture of an interval: always as wide, its marks in the order of the numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.analysis.verdict.verdict import Verdict
from sysbench.core.tables.verdict.picture import CELLS, interval_line
from sysbench.tui.glyphs import to_ascii

shares = st.floats(-0.9, 9)


def verdict(change: float | None, low: float | None, high: float | None) -> Verdict:
    return Verdict(verdict="not decidable", why="", change=change, low=low, high=high)


def test_a_line_by_hand() -> None:
    line = interval_line(verdict(0.01, -0.005, 0.015), cells=17)
    assert line == "-2 % ┄┄┄┄┊┄┤─│───●─├┄┄ +2 %"
    assert to_ascii(line) == "-2 % ....:.|-|---*-|.. +2 %"


def test_without_an_interval_there_is_only_the_change_and_without_that_nothing() -> None:
    assert interval_line(verdict(-0.03, None, None), 11) == "-5 % ┄┄●┄┊│┊┄┄┄┄ +5 %"
    assert interval_line(verdict(None, None, None)) == ""


@given(shares, st.floats(0, 2), st.floats(0, 2))
def test_every_line_is_as_wide_and_its_marks_are_in_order(
    change: float, below: float, above: float
) -> None:
    line = interval_line(verdict(change, max(-0.99, change - below), change + above))
    left, axis, right = (line.split(" % ")[0], line.split(" % ")[1].split(" +")[0], line)
    assert len(axis) == CELLS
    assert left.startswith("-") and right.endswith("%")
    assert axis.count("●") == 1
    places = [axis.find(mark) for mark in "┤●├" if mark in axis]
    assert places == sorted(places)
    assert to_ascii(line).isascii() and len(to_ascii(line)) == len(line)


@given(st.floats(1e-6, 9), st.floats(1e-6, 1))
def test_an_interval_beyond_zero_is_drawn_beyond_it(low: float, width: float) -> None:
    axis = interval_line(verdict(low + width / 2, low, low + width))
    zero = axis.find("│")
    assert zero < 0 or axis.find("●") > zero  # a mark nearer than a cell covers the zero
