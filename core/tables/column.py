"""Columns as rows of a tuple: a table's cells are made from them, never counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from .table import Cell, Row, Table, select

Source = TypeVar("Source")
"""What a row of the table is made from: a row of the record, a node, a name."""


@dataclass(frozen=True)
class Column(Generic[Source]):
    """One column of a table.

    Attributes:
        name: As in `Table.columns`. It ends in its unit: ``median_ms``, ``peak_bytes``.
        value: The cell of one source row.
        heading: The name for people; empty: made from ``name``.
        unit: How numbers are written, such as ``bytes``, ``ns``, ``share``; empty: the unit at
            the end of ``name``.
        format: How numbers are written instead, such as ``{:.4f}``; empty: by the unit.
        is_optional: Whether a table leaves the column out when no row has anything there.
    """

    name: str
    value: Callable[[Source], Cell]
    heading: str = ""
    unit: str = ""
    format: str = ""
    is_optional: bool = False


def fields_of(source: type[Source], *names: str) -> tuple[Column[Source], ...]:
    """One column for each of these attributes of the source rows, under its own name.

    Raises:
        AttributeError: The type has no such attribute; raised when the columns are declared.
    """
    for name in names:
        getattr(source, name)
    return tuple(Column(name, attrgetter(name)) for name in names)


def tabulate(
    rows: Iterable[Source],
    columns: Sequence[Column[Source]],
    *,
    name: str,
    title: str,
    further: Iterable[Mapping[str, Cell]] = (),
) -> Table:
    """A table with one cell of each column for each source row.

    Args:
        rows: What the rows are made from, in their order.
        columns: In their order.
        name: Of the table.
        title: Of the table.
        further: Rows below the others that no source row stands for, by the names of their
            columns. A column without a name there is null.

    Raises:
        ValueError: A further row names a column that the table does not have.
    """
    made = [tuple(column.value(row) for column in columns) for row in rows]
    made += [_row_of(columns, cells) for cells in further]
    formats = tuple(column.format for column in columns)
    table = Table(
        name=name,
        title=title,
        columns=tuple(column.name for column in columns),
        rows=tuple(made),
        formats=formats if any(formats) else (),
        headings={column.name: column.heading for column in columns if column.heading},
        units={column.name: column.unit for column in columns if column.unit},
    )
    blank = {
        column.name
        for column in columns
        if column.is_optional and all(cell in (None, "") for cell in table.column(column.name))
    }
    return select(table, [name for name in table.columns if name not in blank]) if blank else table


def _row_of(columns: Sequence[Column[Source]], cells: Mapping[str, Cell]) -> Row:
    names = [column.name for column in columns]
    if unknown := cells.keys() - set(names):
        raise ValueError(f"no column {', '.join(sorted(unknown))}")
    return tuple(cells.get(name) for name in names)
