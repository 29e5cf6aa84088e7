"""Columns fit a width: numbers are whole, the least important columns go first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.tables.table import GAP, Column, Table, fit_columns, tabulate

COLUMNS = (
    Column[int]("time_ns", lambda row: row, priority=1),
    Column[int]("calls", lambda row: row, priority=3),
    Column[int]("min_ns", lambda row: row, priority=10),
    Column[int]("module", str, priority=4),
    Column[int]("name", str, priority=2, is_flexible=True),
    Column[int]("ops", str, in_detail=True),
)
TABLE = tabulate([1], *COLUMNS, name="t", title="")
NUMBERS = {"time_ns", "calls", "min_ns"}
WIDTHS = {"time_ns": 8, "calls": 5, "min_ns": 8, "module": 30, "name": 50}


def fitted(width: int) -> dict[str, int]:
    return fit_columns(TABLE, WIDTHS, width, numbers=NUMBERS, flexible=TABLE.flexible)


def test_a_table_lists_what_it_shows_its_flexible_column_last() -> None:
    assert TABLE.shown == ["time_ns", "calls", "min_ns", "module", "name"]
    assert TABLE.flexible == "name" and TABLE.has_priorities
    assert not Table(name="t", title="", columns=("a",), rows=()).has_priorities


def test_columns_go_by_priority_and_texts_are_narrowed() -> None:
    assert fitted(200) == WIDTHS
    assert [*fitted(90)] == ["time_ns", "calls", "module", "name"], "no extra beside a short name"
    assert fitted(90)["time_ns"] == 8
    assert [*fitted(40)] == ["time_ns", "calls", "name"]
    assert [*fitted(28)] == ["time_ns", "name"]


def test_columns_without_priority_stay() -> None:
    plain = Table(name="t", title="", columns=("a", "b"), rows=())
    assert fit_columns(plain, {"a": 40, "b": 40}, 30, numbers={"a"}) == {"a": 40, "b": 40}
    assert fit_columns(plain, {"a": 40, "b": 40}, 30, numbers={"b"}, drop=["b"]) == {"a": 28}


@given(st.integers(1, 300))
def test_what_is_shown_fits_or_is_the_last_column(width: int) -> None:
    widths = fitted(width)
    assert sum(size + GAP for size in widths.values()) <= width or len(widths) <= 1
    assert all(widths[name] == WIDTHS[name] for name in widths if name in NUMBERS)
