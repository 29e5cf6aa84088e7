"""The number line shows zero, the estimate and the interval where they are, at any width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sysbench.tui.screens.compare_verdict import (
    ACROSS,
    BEFORE,
    BEYOND,
    DOT,
    ESTIMATE,
    HIGH_END,
    LOW_END,
    MANY,
    UNTESTED,
    ZERO,
    MarkLook,
    NumberLine,
    axis_rows,
    dot_rows,
    evenly_spaced,
    line_over,
    look_row,
)

changes = st.floats(-0.9, 5.0)
widths = st.integers(20, 200)
smallests = st.floats(0.001, 0.2)


@given(st.lists(changes, min_size=3, max_size=3), smallests, st.lists(changes, max_size=30), widths)
def test_an_interval_is_drawn_whole_on_its_own_line(
    ends: list[float], smallest: float, dots: list[float], width: int
) -> None:
    low, change, high = sorted(ends)
    look = MarkLook(change, low, high)
    line = line_over(look, smallest, dots, width)
    row = look_row(line, look, smallest)
    assert len(row) == width
    assert row[line.column(change)] == ESTIMATE
    assert row[line.column(low)] in (LOW_END, HIGH_END, ESTIMATE)
    assert row[line.column(high)] in (HIGH_END, ESTIMATE)
    assert row[line.column(0.0)] in (ZERO, ACROSS, LOW_END, HIGH_END, ESTIMATE)
    assert BEFORE not in row and BEYOND not in row
    assert low <= 0 <= high or ACROSS not in row, "only an interval with zero in it crosses it"
    placed = sorted([low, change, high, 0.0])
    assert [line.column(value) for value in placed] == sorted(map(line.column, placed))


@given(changes, smallests, widths)
def test_an_estimate_without_an_interval_looks_untested(
    change: float, smallest: float, width: int
) -> None:
    look = MarkLook(change, None, None)
    row = look_row(line_over(look, smallest, [], width), look, smallest)
    assert UNTESTED in row and ESTIMATE not in row and LOW_END not in row


@given(st.lists(changes, min_size=1, max_size=60), widths)
def test_every_block_has_its_dot(dots: list[float], width: int) -> None:
    line = NumberLine(-1.0, 6.0, width)
    rows = dot_rows(line, dots, len(dots))
    assert "".join(rows).count(DOT) == len(dots)
    few = dot_rows(line, dots, 2)
    assert len(few) <= 2
    assert (MANY in "".join(few)) == (len(rows) > 2)


def test_an_earlier_wider_interval_leaves_the_line_by_arrows() -> None:
    line = line_over(MarkLook(0.1, 0.05, 0.15), 0.01, [], 60)
    row = look_row(line, MarkLook(0.1, -2.0, 3.0), 0.01)
    assert row[0] == BEFORE and row[-1] == BEYOND
    assert look_row(line, MarkLook(9.0, 8.0, 10.0), 0.01)[-1] == BEYOND


@given(st.floats(-0.99, 0.0), st.floats(0.001, 10.0), widths)
def test_the_axis_has_zero_and_labels_that_do_not_touch(
    low: float, high: float, width: int
) -> None:
    line = NumberLine(low, high, width)
    cells, labels = axis_rows(line)
    assert len(cells) == len(labels) == width
    assert cells[line.column(0.0)] == "┼"
    assert cells.count("┴") + 1 >= len([part for part in labels.split("  ") if part.strip()])


@given(st.integers(0, 300), st.integers(0, 40))
def test_the_last_look_is_always_among_the_rows(count: int, most: int) -> None:
    places = evenly_spaced(count, most)
    assert len(places) <= max(most, 0) and places == sorted(set(places))
    if count and most:
        assert places[-1] == count - 1
