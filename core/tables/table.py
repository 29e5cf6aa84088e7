"""Tables as data, and the columns that their rows are made from: no cell is counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

import msgspec

if TYPE_CHECKING:
    import pandas as pd


Cell = str | int | float | bool | None
"""One value. Null is "not known" or "does not apply", never zero."""

Row = tuple[Cell, ...]

QUANTITY = "quantity"
"""First column of a table whose rows have each their own unit, read from the row's name."""


class ColumnLook(msgspec.Struct, frozen=True, kw_only=True):
    """How a column is shown where there is no room for all.

    Attributes:
        priority: Where room is short the columns with the highest number go first; those with
            zero stay.
        is_flexible: Whether the column of texts stays and takes the room that the others leave.
        in_detail: Whether screens show it only for the row under the cursor.
    """

    priority: int = 0
    is_flexible: bool = False
    in_detail: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows under named columns.

    A column's name is its key in ``record.json`` where it has one, and ends in its unit:
    ``median_ms``, ``total_ns``, ``bytes``; ``share`` is a fraction of one.

    Attributes:
        name: Short name: the file name of the CSV, the argument of ``run.table()``.
        title: What the table holds and what its rows add up to, in a line.
        columns: Their names.
        rows: As many cells each as there are columns.
        formats: Format of each column's numbers, such as ``{:.2f}``; empty, or an empty one: by
            the unit at the end of the column's name.
        headings: Names for people, by column; a column without one is named by its name.
        units: Units by column, where a column's name does not end in it.
        sort_keys: Values by which a column of texts is sorted, row by row.
        looks: How columns are shown where there is no room for all.
        about: A sentence about each column; none for a column that is named by the data.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    formats: tuple[str, ...] = ()
    headings: dict[str, str] = {}
    units: dict[str, str] = {}
    sort_keys: dict[str, Row] = {}
    looks: dict[str, ColumnLook] = {}
    about: dict[str, str] = {}

    def look(self, column: str) -> ColumnLook:
        """How the column is shown where there is no room for all."""
        return self.looks.get(column) or ColumnLook()

    @property
    def has_priorities(self) -> bool:
        """Whether the columns are ranked for pages without room for all."""
        return any(look.priority for look in self.looks.values())

    @property
    def shown(self) -> list[str]:
        """The columns for people, in their order; a flexible one that is not the first is last, as
        its texts may be longer than any page."""
        first = self.columns[:1]
        names = [name for name in self.columns if not self.look(name).in_detail]
        return sorted(names, key=lambda name: name == self.flexible and (name,) != first)

    @property
    def flexible(self) -> str:
        """The column of texts that takes the room that the others leave; empty without one."""
        return next((name for name, look in self.looks.items() if look.is_flexible), "")

    def index(self, name: str) -> int:
        """Position of the column's cell in each row.

        Raises:
            ValueError: The table has no such column.
        """
        return self.columns.index(name)

    def column(self, name: str) -> list[Cell]:
        """All cells of one column, top to bottom."""
        index = self.index(name)
        return [row[index] for row in self.rows]

    def mapping(self, row: int) -> dict[str, Cell]:
        """The cells of one row by the names of their columns."""
        return dict(zip(self.columns, self.rows[row], strict=True))

    def mappings(self) -> Iterator[dict[str, Cell]]:
        """The rows, top to bottom, each with its cells by the names of their columns."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


FACT_COLUMNS = {
    QUANTITY: "key of the record",
    "value": "its value, in the unit of the row",
    "note": "why there is no value, or what it includes",
}
"""The columns of `facts`, each with a sentence about it."""


def facts(
    name: str, title: str, values: Mapping[str, Cell], missing: Mapping[str, str] | None = None
) -> Table:
    """A table of single quantities; ``note`` has the reason for an absent value."""
    reasons = missing or {}
    rows = tuple(
        (key, value, reasons.get(key, "") if value is None else "") for key, value in values.items()
    )
    return Table(name=name, title=title, columns=tuple(FACT_COLUMNS), rows=rows, about=FACT_COLUMNS)


def select(table: Table, names: Sequence[str]) -> Table:
    """The table with these of its columns, in this order."""
    places = [table.index(name) for name in names]
    return msgspec.structs.replace(
        table,
        columns=tuple(names),
        rows=tuple(tuple(row[place] for place in places) for row in table.rows),
        formats=tuple(table.formats[place] for place in places) if table.formats else (),
    )


def with_column(table: Table, name: str, cells: Sequence[Cell]) -> Table:
    """The table with one more column, the last."""
    return msgspec.structs.replace(
        table,
        columns=(*table.columns, name),
        rows=tuple((*row, cell) for row, cell in zip(table.rows, cells, strict=True)),
        formats=(*table.formats, "") if table.formats else (),
    )


def is_number(cell: object) -> TypeGuard[int | float]:
    """True for a cell that can be summed; a boolean cannot."""
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def folded(table: Table, keep: int, label: str, summed: Sequence[str]) -> Table:
    """The first ``keep`` rows, and the others as one row that sums some columns.

    ``label`` names the column that gets the count of folded rows.
    """
    rest = table.rows[keep:]
    if len(rest) < 2:
        return table
    row = _sum_row(table, rest, {label: f"({len(rest)} more)"}, summed)
    return msgspec.structs.replace(table, rows=(*table.rows[:keep], row))


def with_total(table: Table, label: str, name: str, summed: Sequence[str]) -> Table:
    """The table with one more row, called ``name`` in column ``label``, that sums columns."""
    row = _sum_row(table, table.rows, {label: name}, summed)
    return msgspec.structs.replace(table, rows=(*table.rows, row))


def _sum_row(
    table: Table, rows: Sequence[Row], texts: Mapping[str, str], summed: Sequence[str]
) -> Row:
    def cell(index: int, column: str) -> Cell:
        if column not in summed:
            return texts.get(column)
        return sum(value for row in rows if is_number(value := row[index]))

    return tuple(cell(index, column) for index, column in enumerate(table.columns))


def to_frame(table: Table) -> pd.DataFrame:
    """The table as a DataFrame, its title in ``attrs["title"]``."""
    # The import costs 0.4 s and 100 MiB: only a caller that needs a frame pays for it.
    import pandas as pd

    frame = pd.DataFrame(list(table.rows), columns=list(table.columns))
    frame.attrs["title"] = table.title
    return frame


Source = TypeVar("Source")
"""The type that a row of the table is made from: a row of the record, a node, a name."""


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
        priority, is_flexible, in_detail: See `ColumnLook`.
        about: A sentence about the column for `?` and the reference, without a full stop.
    """

    name: str
    value: Callable[[Source], Cell]
    heading: str = ""
    unit: str = ""
    format: str = ""
    is_optional: bool = False
    priority: int = 0
    is_flexible: bool = False
    in_detail: bool = False
    about: str = ""

    @property
    def look(self) -> ColumnLook:
        """How it is shown where there is no room for all."""
        return ColumnLook(
            priority=self.priority, is_flexible=self.is_flexible, in_detail=self.in_detail
        )


def field_of(source: type[Source], name: str, **facts: Any) -> Column[Source]:
    """A column for an attribute of the source rows, under its own name.

    Args:
        facts: Other arguments of `Column`.

    Raises:
        AttributeError: The type has no such attribute; raised when the column is declared.
    """
    getattr(source, name)
    return Column(name, attrgetter(name), **facts)


def fields_of(source: type[Source], /, **abouts: str) -> tuple[Column[Source], ...]:
    """One column for each of these attributes of the source rows, under its own name.

    Args:
        abouts: A sentence about each column, by the attribute's name.

    Raises:
        AttributeError: The type has no such attribute; raised when the columns are declared.
    """
    return tuple(field_of(source, name, about=about) for name, about in abouts.items())


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
        rows: The source rows, in their order.
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
        looks={column.name: column.look for column in columns if column.look != ColumnLook()},
        about={column.name: column.about for column in columns if column.about},
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


GAP = 2
"""Cells between two columns."""
LEAST_TEXT = 12
"""Cells that a truncated text keeps."""
SHORT_TEXT = 24
"""Most cells of a text that is never truncated."""
FLEXIBLE_SHARE = 0.28
"""Share of the width that the flexible column keeps."""
EXTRA, WHOLE = 10, 60
"""Columns with this priority and above go before the flexible one has fewer cells than this."""


def fit_columns(
    table: Table,
    widths: Mapping[str, int],
    width: int,
    *,
    numbers: Collection[str],
    flexible: str = "",
    priorities: Mapping[str, float] | None = None,
    drop: Sequence[str] = (),
    flexible_share: float = FLEXIBLE_SHARE,
) -> dict[str, int]:
    """Cells of each column that has room, in the order of ``widths``.

    Columns go until the others have their fewest cells, then the widest texts are narrowed. If the
    columns that always stay are wider, they are returned as wide as they are.

    Args:
        table: Its priorities decide which columns go.
        widths: Cells of the widest text of each column.
        width: Cells of a row, with a gap for each column.
        numbers: Columns of numbers, which are never truncated.
        flexible: The column that stays and takes the room that the others leave.
        priorities: These in place of the table's.
        drop: Columns that go before any other, the first one first, and before any text is
            narrowed.
        flexible_share: Share of the width that the flexible column keeps.
    """
    least = {
        name: size if name in numbers or size <= SHORT_TEXT else min(size, LEAST_TEXT)
        for name, size in widths.items()
    }
    if flexible in widths:
        least[flexible] = min(widths[flexible], max(LEAST_TEXT, int(width * flexible_share)))
    given = {name: table.look(name).priority for name in widths}
    ranks = {**(given if priorities is None else priorities), flexible: 0}
    whole = max(0, min(widths.get(flexible, 0), WHOLE) - least.get(flexible, 0))
    for name in drop:
        if _taken(widths[each] for each in least) > width:
            least.pop(name, None)
    while least:
        last = max(least, key=lambda name: ranks.get(name, 0))
        rank = ranks.get(last, 0)
        if _taken(least.values()) + (whole if rank >= EXTRA else 0) <= width:
            break
        if not rank:
            return {name: widths[name] for name in least}
        del least[last]
    fitted = {name: widths[name] for name in least}
    for _ in range(_taken(fitted.values()) - width):
        longer = (name for name in fitted if fitted[name] > least[name])
        fitted[max(longer, key=fitted.__getitem__)] -= 1
    return fitted


def _taken(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths)
