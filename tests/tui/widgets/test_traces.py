"""Drawing arithmetic: nothing measured is lost, nothing exceeds its room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sysbench.tui.widgets.stack_bar import bar_shares
from sysbench.tui.widgets.traces import (
    bar,
    block_rows,
    columns,
    extent,
    gauge,
    line_rows,
    mark_row,
    resample,
)

values = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=300)
widths = st.integers(1, 120)


@given(values, widths)
def test_columns_keep_the_extremes_of_a_series(series: list[float], count: int) -> None:
    found = columns(series, count)
    assert len(found) == count
    if len(series) >= count:
        assert min(low for low, _ in found) == min(series)
        assert max(high for _, high in found) == max(series)


@given(values, widths, st.integers(1, 20))
def test_a_line_fills_its_room_and_touches_every_column(
    series: list[float], width: int, height: int
) -> None:
    rows = line_rows(series, width, height, *extent(series))
    assert [len(row) for row in rows] == [width] * height
    assert all(any(row[column] != " " for row in rows) for column in range(width))


@given(values)
def test_the_extent_holds_the_series_and_is_never_empty(series: list[float]) -> None:
    low, high = extent(series)
    assert 0 <= low <= min(series)
    assert high > low and high >= max(series)


@given(st.lists(st.none() | st.floats(0, 10), min_size=1, max_size=200), widths)
def test_fitting_keeps_the_highest_value(series: list[float | None], count: int) -> None:
    found = resample(series, count)
    assert len(found) == count
    if len(series) >= count:
        known = [value for value in series if value is not None]
        assert max((v for v in found if v is not None), default=None) == max(known, default=None)


def test_blocks_distinguish_missing_from_zero() -> None:
    assert block_rows([None, 0.0, 0.5, 1.0], 1, 0.0, 1.0) == ["·▁▄█"]
    assert block_rows([0.25, 1.0], 2, 0.0, 1.0) == [" █", "▄█"]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20).filter(any), st.integers(1, 200))
def test_shares_of_a_bar_sum_to_its_width(amounts: list[float], width: int) -> None:
    cells = bar_shares(amounts, width)
    assert sum(cells) == width
    assert all(count >= 0 for count in cells)


@given(st.floats(-1, 3), st.integers(0, 60))
def test_bars_and_gauges_have_their_width(share: float, width: int) -> None:
    assert len(bar(share, width)) == width
    assert len(gauge(share, width)) == width


def test_a_mark_is_whole_or_shortened_or_left_away() -> None:
    assert mark_row([(0, "warm-up"), (4, "measured")], 12) == "│   │meas   "
    assert mark_row([(0, "forward"), (8, "backward"), (12, "loss")], 15) == "│forward│bwd│  "
    assert mark_row([], 3) == "   "
