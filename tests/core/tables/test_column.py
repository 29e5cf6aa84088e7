"""Columns as rows: a table has a cell of each, and one more column needs no other edit."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.export.page_run_page import run_page
from sysbench.core.export.text_formats import record_as_markdown, table_as_csv
from sysbench.core.record.record import KernelRow
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables import kernel_tables
from sysbench.core.tables.cells import cells_as_text
from sysbench.core.tables.section_tables import tables_of
from sysbench.core.tables.table import (
    Cell,
    Column,
    Table,
    columns_for,
    select,
    tabulate,
    with_column,
)
from sysbench.tui.commands.text_lines import table_lines
from tests.factories import table_named

NAMES = st.lists(
    st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1, max_size=6),
    min_size=1,
    max_size=6,
    unique=True,
)
CELLS: st.SearchStrategy[Cell] = st.none() | st.integers(-5, 5) | st.text(max_size=3)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Column[int]], int, list[dict[str, Cell]], Table]:
    """Columns, the number of source rows, further rows, and the table of them all."""
    columns = [
        Column[int](
            name,
            draw(st.lists(CELLS, min_size=5, max_size=5)).__getitem__,
            heading=draw(st.sampled_from(["", "a heading"])),
            unit=draw(st.sampled_from(["", "bytes", "share"])),
            format=draw(st.sampled_from(["", "{:.4f}"])),
            is_optional=draw(st.booleans()),
        )
        for name in draw(NAMES)
    ]
    count = draw(st.integers(0, 5))
    named = st.sampled_from([column.name for column in columns])
    further = draw(st.lists(st.dictionaries(named, CELLS), max_size=3))
    table = tabulate(range(count), *columns, name="t", title="", further=further)
    return columns, count, further, table


@given(tables())
def test_every_row_has_a_cell_of_each_column(
    made: tuple[list[Column[int]], int, list[dict[str, Cell]], Table],
) -> None:
    columns, count, further, table = made
    assert len(table.rows) == count + len(further)
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert len(table.formats) in (0, len(table.columns))
    kept = [column for column in columns if column.name in table.columns]
    assert table.columns == tuple(column.name for column in kept)
    for column in kept:
        cells = [column.cell_of(row) for row in range(count)]
        assert table.column(column.name) == cells + [row.get(column.name) for row in further]
    for column in columns:
        if column.name not in table.columns:
            assert column.is_optional
            assert {column.cell_of(row) for row in range(count)} <= {None, ""}
    if table.columns and table.columns[0] != "quantity":
        assert all(len(texts) == len(table.columns) for texts in cells_as_text(table))


@given(tables())
def test_a_selection_keeps_cells_and_formats_with_their_columns(
    made: tuple[list[Column[int]], int, list[dict[str, Cell]], Table],
) -> None:
    *_, table = made
    turned = select(table, table.columns[::-1])
    assert all(turned.column(name) == table.column(name) for name in table.columns)
    assert turned.formats == table.formats[::-1]
    assert [*turned.mappings()] == [*table.mappings()]
    longer = with_column(table, "last one", range(len(table.rows)))
    assert select(longer, table.columns) == table


def test_a_further_row_cannot_name_a_column_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no column byte"):
        tabulate([], *[Column("bytes", lambda row: row)], name="t", title="", further=[{"byte": 1}])


def test_a_field_that_a_row_does_not_have_is_an_error_before_any_table_is_made() -> None:
    columns = columns_for(KernelRow, Column("share", about="share of the step"), "calls")
    assert [column.name for column in columns] == ["share", "calls"]
    assert [column.meaning for column in columns] == ["share of the step", "number of calls"]
    with pytest.raises(AttributeError, match="shares"):
        columns_for(KernelRow, "shares")
    with pytest.raises(AttributeError, match="shares"):
        columns_for(KernelRow, Column("shares", about="share of the step"))


def test_an_optional_column_is_left_out_only_where_nothing_is_known() -> None:
    columns = [Column[int]("bytes", lambda row: row)]
    columns.append(Column("half", lambda row: row // 2 if row > 9 else None, is_optional=True))
    assert tabulate([1, 2], *columns, name="t", title="").rows == ((1,), (2,))
    assert tabulate([1, 10], *columns, name="t", title="").rows == ((1, None), (10, 5))


@pytest.fixture
def with_made_up_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel table with one more row among its columns, and nothing else changed."""
    made_up = Column[KernelRow](
        "made_up", lambda row: row.share / row.calls, heading="share a call", unit="share"
    )
    columns = (*kernel_tables.KERNEL_COLUMNS, made_up)
    monkeypatch.setattr(kernel_tables, "KERNEL_COLUMNS", columns)


@pytest.mark.usefixtures("with_made_up_column")
def test_a_made_up_column_appears_wherever_the_table_does(gpu_run: RunDirectory) -> None:
    record = gpu_run.record()
    table = table_named(record, "kernels")
    kernel = next(cells for cells in table.mappings() if cells["calls"])
    share, calls = kernel["share"], kernel["calls"]
    assert isinstance(share, float) and isinstance(calls, float)
    assert kernel["made_up"] == share / calls
    assert table.column("made_up")[-1] is None, "nothing was running there"
    shown = f"{100 * share / calls:.1f} %"
    heads, *lines = ("".join(text for text, _ in line) for line in table_lines(table, 500))
    assert "share a call" in heads
    assert any(shown in line for line in lines)
    head, first, *_ = csv.reader(io.StringIO(table_as_csv(table).decode()))
    assert head[-1] == "made_up"
    assert float(first[-1]) == pytest.approx(share / calls)
    markdown = record_as_markdown(record)
    assert "| share a call |" in markdown
    assert f"| {shown} |" in markdown
    page = run_page(record, tables_of(record))
    assert '<th class="number">share a call</th>' in page
    assert f'<td class="number">{shown}</td>' in page
