"""Tables as data, and the columns that make their rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeGuard, TypeVar

import msgspec

MEANINGS = {
    "a_blocks": "blocks of A at its peak",
    "a_bytes": "bytes of A at its peak",
    "activation_bytes": "saved for backward in the step, also what is not alive at the peak",
    "algorithm_gbs": "bytes over transfer time",
    "allocated_bytes": "bytes in blocks that are in use",
    "b_blocks": "blocks of B at its peak",
    "b_bytes": "bytes of B at its peak",
    "baseline_bytes": "bytes allocated before the recording",
    "block": "number of the block of interleaved rounds",
    "block_bytes": "size of the allocator's block",
    "blocks": "number of blocks",
    "bus_gbs": "bus bandwidth as in nccl-tests",
    "busy_ns": "time in which at least one kernel ran",
    "bytes": "requested bytes",
    "calls": "number of calls",
    "category": "kind of work or memory",
    "change_bytes": "B minus A",
    "ci_high_ms": "upper end of the median's 95 % interval; the maximum below six samples",
    "ci_low_ms": "lower end of the median's 95 % interval; the minimum below six samples",
    "communication_ns": "time in which a collective ran",
    "cpu_percent": "busy share of all host cores",
    "depth": "depth of the row below the root",
    "device": "device of the row",
    "error": "predicted over measured, minus one",
    "exclusive_ns": "time of this row alone; overlaps count once",
    "exposed_communication_ns": "communication in which no other kernel ran",
    "exposed_ns": "communication during which no other kernel ran",
    "file": "file name",
    "flops": "FLOPs; a multiply-add is two",
    "fused": "true if the compiler made one kernel of several operators",
    "gradient_bytes": "bytes of gradients",
    "group": "group of ranks",
    "group_size": "number of ranks in the group",
    "host": "number of the host in this run",
    "host_ns": "time on the host",
    "instances": "number of occurrences",
    "kernels": "kernels launched",
    "kind": "kind of the row",
    "max_ns": "longest call",
    "mean_ns": "time over calls",
    "meanwhile_ns": "device time, launches of any thread included",
    "median_ms": "median step of this process",
    "median_ns": "median call",
    "min_ns": "shortest call",
    "metadata": "text that the user attached to the allocation",
    "module": "path of the module; * is every layer",
    "moved_bytes": "input and output bytes, each once",
    "name": "name of the row",
    "of_roof": "roofline time over measured time",
    "ops": "operators in the fused kernel",
    "optimizer_bytes": "bytes of the optimizer's state",
    "own_cpu_percent": "share of the cores that the round's own processes used",
    "own_ns": "time without the rows inside it",
    "parameter_bytes": "bytes of parameters",
    "peak_allocated_bytes": "highest number of allocated bytes",
    "peak_bytes": "bytes alive at the peak",
    "peak_phase": "phase of the peak",
    "phase": "phase of the step",
    "rank": "number of the process",
    "ranks": "number of ranks",
    "reserved_bytes": "bytes reserved from the driver",
    "round": "number of the round, one fresh process",
    "row": "row of the tree",
    "share": "share of the table's total",
    "side": "A or B",
    "sm_clock_mhz": "median SM clock during the steps",
    "span_ns": "from the first kernel to the last",
    "stack": "stack of the request, innermost frame first",
    "state": "new in B, gone from A, or renamed",
    "std_ns": "standard deviation of the calls",
    "step": "number of the step",
    "temperature_celsius": "median temperature during the steps",
    "total_ns": "sum of the call times",
    "transfer_ns": "exposed communication after the last rank's arrival",
    "waiting_ms": "time without computing until all ranks had reached a collective",
    "waiting_ns": "exposed communication until the last rank's arrival",
}


if TYPE_CHECKING:
    import pandas as pd


Cell = str | int | float | bool | None
"""One value. Null means unknown or not applicable, never zero."""

Row = tuple[Cell, ...]

QUANTITY = "quantity"
"""First column of a table whose rows each have their own unit."""


class ColumnLook(msgspec.Struct, frozen=True, kw_only=True):
    """How a column is shown if space is short.

    Attributes:
        priority: Columns with the highest number are dropped first; zero stays.
        is_flexible: True for the text column that gets the remaining width.
        in_detail: True if screens show it only for the selected row.
        is_kernel: True for names of kernels, which reports and screens shorten.
    """

    priority: int = 0
    is_flexible: bool = False
    in_detail: bool = False
    is_kernel: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows under named columns.

    A column's name is its key in ``record.json`` if it has one, and ends in its unit:
    ``median_ms``, ``total_ns``, ``bytes``; ``share`` is a fraction of one.

    Attributes:
        name: File name of the CSV, argument of ``run.table()``.
        title: What the rows are and what they add up to.
        formats: Number format of each column, such as ``{:.2f}``; empty for the unit's format.
        headings: Column names for people, if they differ from ``columns``.
        units: Units of columns whose names do not end in them.
        sort_keys: Sort values of text columns.
        looks: How columns are shown if space is short.
        about: A sentence about each column; none for columns named by data.
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
        return self.looks.get(column) or ColumnLook()

    @property
    def has_priorities(self) -> bool:
        return any(look.priority for look in self.looks.values())

    @property
    def shown(self) -> list[str]:
        """Columns for people; a flexible column is last unless it is the first."""
        first = self.columns[:1]
        names = [name for name in self.columns if not self.look(name).in_detail]
        return sorted(names, key=lambda name: name == self.flexible and (name,) != first)

    @property
    def flexible(self) -> str:
        """The text column that gets the remaining width, or empty."""
        return next((name for name, look in self.looks.items() if look.is_flexible), "")

    def index(self, name: str) -> int:
        return self.columns.index(name)

    def column(self, name: str) -> list[Cell]:
        index = self.index(name)
        return [row[index] for row in self.rows]

    def mapping(self, row: int) -> dict[str, Cell]:
        return dict(zip(self.columns, self.rows[row], strict=True))

    def mappings(self) -> Iterator[dict[str, Cell]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


FACT_COLUMNS = {
    QUANTITY: "key of the record",
    "value": "its value, in the unit of the row",
    "note": "why there is no value, or what it includes",
}
"""Columns of `facts`, each with a sentence."""


def facts(
    name: str, title: str, values: Mapping[str, Cell], missing: Mapping[str, str] | None = None
) -> Table:
    """Make a table of single quantities; ``note`` says why a value is absent."""
    reasons = missing or {}
    rows = tuple(
        (key, value, reasons.get(key, "") if value is None else "") for key, value in values.items()
    )
    return Table(name=name, title=title, columns=tuple(FACT_COLUMNS), rows=rows, about=FACT_COLUMNS)


def attributes(source: object, *names: str) -> dict[str, Cell]:
    """Return attributes of an object by name, for `facts`."""
    return {name: getattr(source, name) for name in names}


def select(table: Table, names: Sequence[str]) -> Table:
    places = [table.index(name) for name in names]
    return msgspec.structs.replace(
        table,
        columns=tuple(names),
        rows=tuple(tuple(row[place] for place in places) for row in table.rows),
        formats=tuple(table.formats[place] for place in places) if table.formats else (),
    )


def with_column(table: Table, name: str, cells: Sequence[Cell]) -> Table:
    """Return the table with one more column at the end."""
    return msgspec.structs.replace(
        table,
        columns=(*table.columns, name),
        rows=tuple((*row, cell) for row, cell in zip(table.rows, cells, strict=True)),
        formats=(*table.formats, "") if table.formats else (),
    )


def is_number(cell: object) -> TypeGuard[int | float]:
    """Return whether a cell can be summed; booleans cannot."""
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def folded(table: Table, keep: int, label: str, summed: Sequence[str]) -> Table:
    """Sum all rows after the first ``keep`` into one.

    Args:
        label: Column that gets the number of summed rows.
    """
    rest = table.rows[keep:]
    if len(rest) < 2:
        return table
    row = _sum_row(table, rest, {label: f"({len(rest)} more)"}, summed)
    return msgspec.structs.replace(table, rows=(*table.rows[:keep], row))


def with_total(table: Table, label: str, name: str, summed: Sequence[str]) -> Table:
    """Append a row that sums columns, with ``name`` in column ``label``."""
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
    """Convert to a DataFrame with the title in ``attrs["title"]``."""
    import pandas as pd  # lazy: pandas takes 0.4 s and 100 MiB

    frame = pd.DataFrame(list(table.rows), columns=list(table.columns))
    frame.attrs["title"] = table.title
    return frame


Source = TypeVar("Source")
"""Type of a source row: a row of the record, a node, a name."""


@dataclass(frozen=True)
class Column(Generic[Source]):
    """One column of a table.

    Attributes:
        name: As in `Table.columns`. Ends in its unit: ``median_ms``, ``peak_bytes``.
        value: Returns the cell of a source row, or the path of its attribute: ``node.calls``;
            default: its attribute ``name``.
        heading: Name for people; default: made from ``name``.
        unit: Such as ``bytes``, ``ns``, ``share``; default: the end of ``name``.
        format: Number format such as ``{:.4f}``; default: by the unit.
        is_optional: Leave the column out if all its cells are empty.
        priority, is_flexible, in_detail, is_kernel: See `ColumnLook`.
        about: A sentence for `?` and the reference, without a full stop; default: of `MEANINGS`.
    """

    name: str
    value: Callable[[Source], Cell] | str | None = None
    heading: str = ""
    unit: str = ""
    format: str = ""
    is_optional: bool = False
    priority: int = 0
    is_flexible: bool = False
    in_detail: bool = False
    is_kernel: bool = False
    about: str = ""

    @property
    def cell_of(self) -> Callable[[Source], Cell]:
        return self.value if callable(self.value) else attrgetter(self.value or self.name)

    @property
    def meaning(self) -> str:
        return self.about or MEANINGS.get(self.name, "")

    @property
    def look(self) -> ColumnLook:
        return ColumnLook(
            priority=self.priority,
            is_flexible=self.is_flexible,
            in_detail=self.in_detail,
            is_kernel=self.is_kernel,
        )


def columns_for(
    source: type[Source], /, *parts: str | Column[Source]
) -> tuple[Column[Source], ...]:
    """Make columns; a name is that of an attribute of the source rows.

    Raises:
        AttributeError: The type has no such attribute.
    """
    columns = tuple(Column(part) if isinstance(part, str) else part for part in parts)
    for column in columns:
        if not callable(column.value):
            getattr(source, (column.value or column.name).partition(".")[0])
    return columns


def tabulate(
    rows: Iterable[Source],
    *parts: str | Column[Source],
    name: str,
    title: str,
    further: Iterable[Mapping[str, Cell]] = (),
) -> Table:
    """Make a table with one row per source row.

    Args:
        parts: Columns; a name is that of an attribute of the source rows.
        further: Additional rows by column name; missing cells are null.

    Raises:
        ValueError: A further row names an unknown column.
    """
    columns = [Column[Source](part) if isinstance(part, str) else part for part in parts]
    cells = [column.cell_of for column in columns]
    made = [tuple(cell(row) for cell in cells) for row in rows]
    made += [_row_of(columns, named) for named in further]
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
        about={column.name: column.meaning for column in columns if column.meaning},
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
MIN_TEXT = 12
"""Minimum width of a truncated text."""
MAX_SHORT_TEXT = 24
"""Maximum width of a text that is never truncated."""
FLEXIBLE_SHARE = 0.28
EXTRA, WHOLE = 10, 60
"""Columns with at least priority ``EXTRA`` are dropped before the flexible one gets narrower than
``WHOLE``."""
FIRST = 100
"""Columns with at least this priority are dropped before any text is narrowed."""


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
    """Choose columns and widths that fit, in the order of ``widths``.

    Drop columns until the others fit at their minimum, then narrow the widest texts. Columns
    that always stay exceed the width if narrowing is not enough.

    Args:
        table: Its priorities decide which columns are dropped.
        widths: Width of the widest text per column.
        width: Width of a row, with one gap per column.
        numbers: Columns of numbers, which are never truncated.
        flexible: The column that stays and gets the remaining width.
        priorities: Replace those of the table.
        drop: Columns to drop first, before any text is narrowed.
        flexible_share: Minimum share of the width for the flexible column.
    """
    least = {
        name: size if name in numbers or size <= MAX_SHORT_TEXT else min(size, MIN_TEXT)
        for name, size in widths.items()
    }
    if flexible in widths:
        least[flexible] = min(widths[flexible], max(MIN_TEXT, int(width * flexible_share)))
    given = {name: table.look(name).priority for name in widths}
    ranks = {**(given if priorities is None else priorities), flexible: 0}
    whole = max(0, min(widths.get(flexible, 0), WHOLE) - least.get(flexible, 0))
    given_first = (name for name in least if given[name] >= FIRST)
    for name in (*drop, *sorted(given_first, key=given.__getitem__, reverse=True)):
        if _row_width(widths[each] for each in least) > width:
            least.pop(name, None)
    while least:
        last = max(least, key=lambda name: ranks.get(name, 0))
        rank = ranks.get(last, 0)
        if _row_width(least.values()) + (whole if rank >= EXTRA else 0) <= width:
            break
        if not rank:  # none may be dropped: short texts are narrowed where that is enough
            least = {
                name: size if name in numbers else min(size, MIN_TEXT)
                for name, size in least.items()
            }
            if _row_width(least.values()) > width:
                return {name: widths[name] for name in least}
            break
        del least[last]
    fitted = {name: widths[name] for name in least}
    for _ in range(_row_width(fitted.values()) - width):
        longer = (name for name in fitted if fitted[name] > least[name])
        fitted[max(longer, key=fitted.__getitem__)] -= 1
    return fitted


def _row_width(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths)
