"""A core table on the screen: sorted and filtered; columns without room are hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from rich.text import Text
from textual import events, on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import DataTable
from textual.widgets.data_table import RowKey

from ....core.export.text_formats import table_as_markdown
from ....core.tables.cells import NUMBERS, Contents, columns_of, heading_of, literal, row_writer
from ....core.tables.table import Cell, Row, Table
from ...cutting import cut_off, told_apart
from .virtual_rows import VirtualRows

MEASURED = 1000
"""Most rows whose texts are all made to find a column's width; of more these are looked at, and the
extremes of each column."""
TOLD_APART = 2000
"""Most different texts of a column that are compared to cut them where they differ."""

FLEXIBLE_LEAST, FLEXIBLE_MOST, FLEXIBLE_SHARE = 22, 90, 0.28
CELL_PADDING = 2
CUT_LEAST = 12
"""The fewest cells in which a cut column of text is still worth showing."""


def sort_key(value: Cell) -> tuple[int, float, str]:
    """A key that sorts unknown values first, then numbers by size, then texts."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, str):
        return (2, 0.0, value.lower())
    return (1, float(value), "")


def _extremes(contents: Contents) -> Iterable[Cell]:
    """Cells that are likely the widest of a column."""
    if contents.holds_numbers:
        return contents.ends
    texts = set(contents.cells) - {None}
    return [max(texts, key=lambda text: len(str(text)))] if texts else []


def _sort_keys(contents: Contents) -> Sequence[Any]:
    """`sort_key` of each cell, or where that orders them alike, the cells."""
    return contents.cells if contents.kinds <= NUMBERS else [*map(sort_key, contents.cells)]


def _unwritten(row: Row) -> list[str]:
    return [str(cell) for cell in row]


class TableView(VirtualRows):
    """Shows a `Table`. All cells are literal text. Row keys are indices of ``table.rows``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "s", "sort_next", "Sort", show=False, id="table.sort", tooltip="Sort by the next column"
        ),
        Binding("S", "sort_turn", "Reverse", show=False, id="table.reverse"),
    ]
    FLEXIBLE_SHARE: ClassVar[float] = FLEXIBLE_SHARE
    """Share of the width that the flexible column gets before any other."""

    DEFAULT_CSS = """
    TableView {
        scrollbar-size-horizontal: 0;
        &:focus { background-tint: $foreground 0%; }
    }
    """

    def __init__(
        self,
        *,
        flexible: str = "",
        order: Sequence[str] = (),
        needed: Sequence[str] = (),
        id: str | None = None,
    ) -> None:
        """
        Args:
            flexible: The column that takes the room that the others leave.
            order: Columns to show, the most important first; none means all, as they come.
            needed: Columns for which those before them in the order give way; none means the
                first of numbers, or the flexible one where the table begins with a number.
            id: The widget's.
        """
        super().__init__(cursor_type="row", zebra_stripes=True, id=id, header_height=1)
        self.table: Table | None = None
        self.sort_column = ""
        self.descending = True
        self.note = ""
        """What marks in the table mean; shown from the next filling on."""
        self._flexible = flexible
        self._order = order
        self._needed = needed
        self._words: list[str] = []
        self._write: Callable[[Row], list[str]] = _unwritten
        self._contents: dict[str, Contents] = {}
        self._numeric: set[str] = set()
        self._widest: dict[str, int] = {}
        """Cells of the widest text seen in each column."""
        self._haystack: list[str] = []
        """The rows as the filter looks through them, made when it is used."""
        self._matching: Sequence[int] = ()
        self._shape: list[tuple[str, int]] = []

    def show(
        self, table: Table, *, sort: str = "", descending: bool = True, select: int | None = None
    ) -> None:
        """Show this table.

        Args:
            table: The table.
            sort: Column to sort by; without one the rows stay in their order.
            descending: Whether the largest come first.
            select: Row to put the cursor on; None leaves it on the row of the number it is on.
        """
        before = self.selected if select is None else select
        self.table = table
        self.sort_column, self.descending = sort, descending
        self._contents = columns_of(table)
        self._write, self._haystack = row_writer(table, self._contents), []
        self._numeric = {
            name
            for name, contents in self._contents.items()
            if name in table.sort_keys or contents.holds_numbers
        }
        self._widest = self._measured()
        self._fill(before)

    def filter(self, text: str) -> None:
        """Show only rows in which every word of the text occurs."""
        self._words = text.lower().split()
        self._fill(self.selected)

    @property
    def matching(self) -> Sequence[int]:
        """Indices of the rows that pass the filter, in the order of the sort."""
        return self._matching

    def _found(self) -> Sequence[int]:
        """`matching`, found anew."""
        if self.table is None:
            return ()
        matching: Sequence[int] = range(len(self.table.rows))
        if self._words:
            self._haystack = self._haystack or [
                " ".join(self._write(row)).lower() for row in self.table.rows
            ]
            matching = [
                index
                for index, text in enumerate(self._haystack)
                if all(word in text for word in self._words)
            ]
        if self.sort_column in self._contents:
            contents = self._contents[self.sort_column]
            if (given := self.table.sort_keys.get(self.sort_column)) is not None:
                contents = Contents(given)
            keys = _sort_keys(contents)
            return sorted(matching, key=keys.__getitem__, reverse=self.descending)
        return matching

    @property
    def columns_in_view(self) -> list[str]:
        """Names of the columns that have room, left to right."""
        return [name for name, _ in self._shape]

    @property
    def selected(self) -> int | None:
        """Index into ``table.rows`` of the row under the cursor."""
        return self._matching[self.cursor_row] if self.row_count else None

    def markdown(self) -> str:
        """The rows in view, all columns, as Markdown."""
        if self.table is None:
            return ""
        rows = tuple(self.table.rows[index] for index in self.matching)
        return table_as_markdown(msgspec.structs.replace(self.table, rows=rows))

    def extra_cells(self, column: str) -> int:
        """Cells that `cell` adds to the text of a column."""
        return 0

    def cell(self, column: str, row: int, text: str) -> Text:
        """A cell as it is painted; subclasses may add a swatch."""
        return Text(text)

    def on_resize(self, event: events.Resize) -> None:
        if self._shape and self._shape != self._fitting():
            self._fill(self.selected)

    def _measured(self) -> dict[str, int]:
        """Cells of the widest text of each column, as far as it is known without making all."""
        assert self.table is not None
        rows = self.table.rows
        looked_at: Iterable[int] = range(len(rows))
        if len(rows) > MEASURED:
            chosen = set(range(0, len(rows), len(rows) // MEASURED))
            for contents in self._contents.values():
                chosen |= {contents.cells.index(cell) for cell in _extremes(contents)}
            looked_at = chosen
        widest = dict.fromkeys(self.table.columns, 0)
        for place in looked_at:
            for name, text in zip(self.table.columns, self._write(rows[place]), strict=True):
                widest[name] = max(widest[name], len(text))
        return widest

    def _is_blank(self, column: str, blanks: Sequence[Cell]) -> bool:
        """Whether the column is blank in every row."""
        cells = self._contents[column].cells
        return bool(cells) and all(cell in blanks for cell in cells)

    def _fitting(self) -> list[tuple[str, int]]:
        """The columns that fit, with their widths."""
        table = self.table
        if table is None:
            return []
        room = (self.size.width or self.app.size.width) - 1
        names = [name for name in self._order or table.columns if name in table.columns]
        # A blank column gives its room to others. A column of unknowns goes only where an order
        # of importance is given: there are more columns than fit.
        blanks: tuple[Cell, ...] = ("", None) if self._order else ("",)
        names = [name for name in names if not self._is_blank(name, blanks)]
        widths: dict[str, int] = {}
        for name in names:
            widest = self._widest[name] + self.extra_cells(name)
            widths[name] = max(len(heading_of(table, name)) + 2, widest)
        if self._flexible in widths:
            wanted = widths[self._flexible]
            least = max(FLEXIBLE_LEAST, int(room * self.FLEXIBLE_SHARE))
            widths[self._flexible] = min(wanted, least)
        owed = self._room_owed(names, widths)
        shown: list[tuple[str, int]] = []
        used, is_full = 0, False
        for name in names:
            if is_full and name not in owed:
                continue
            owed.pop(name, None)
            left = room - used - CELL_PADDING - sum(owed.values())
            if widths[name] > left:
                if left >= CUT_LEAST and name not in self._numeric:
                    widths[name] = left
                elif shown:
                    is_full = True
                    continue
            used += widths[name] + CELL_PADDING
            shown.append((name, widths[name]))
        if self._flexible in widths:
            spare = max(0, room - used)
            limit = min(wanted, FLEXIBLE_MOST, widths[self._flexible] + spare)
            shown = [(name, limit if name == self._flexible else width) for name, width in shown]
        return shown

    def _room_owed(self, names: Sequence[str], widths: Mapping[str, int]) -> dict[str, int]:
        """Cells that are kept for the needed columns: all of a number, the least of a text."""
        figures = [name for name in names if name in self._numeric]
        # A table that begins with a text has its rows' names in sight, else the flexible one has.
        begins_with_text = figures[:1] != [*names[:1]]
        needed = self._needed or (figures[:1] if begins_with_text else [self._flexible])
        return {
            name: CELL_PADDING
            + (widths[name] if name in self._numeric else min(widths[name], CUT_LEAST))
            for name in needed
            if name in widths
        }

    def _fill(self, select: int | None = None) -> None:
        """Show the rows anew, the cursor on that row where it is in view, else on the first."""
        table = self.table
        if table is None:
            return
        self._shape = self._fitting()
        self.clear(columns=True)
        for name, width in self._shape:
            arrow = ("▼" if self.descending else "▲") if name == self.sort_column else ""
            justify = "right" if name in self._numeric else "left"
            label = Text(
                heading_of(table, name) + arrow, justify="right" if justify == "right" else "left"
            )
            self.add_column(label, key=name, width=width)
        self._matching = self._found()
        places = [(name, table.index(name), width) for name, width in self._shape]
        short = self._told_apart()

        def cells_of(index: int) -> list[Text]:
            """The cells of a row."""
            texts = self._write(table.rows[index])
            cells = []
            for name, place, width in places:
                text = texts[place]
                if name in self._numeric:
                    self._note_width(name, text)
                if name == self._flexible:
                    text = short.get(text) or cut_off(text, width)
                cell = self.cell(name, index, text)
                if name in self._numeric:
                    cell.justify = "right"
                cell.truncate(width, overflow="ellipsis")
                cell.no_wrap = True
                cells.append(cell)
            return cells

        self.set_rows(self._matching, cells_of)
        self.border_subtitle = Content(self.note)
        place = self._row_locations.get(RowKey(str(select))) if select is not None else None
        if place:
            self.move_cursor(row=place)
        elif self.row_count:
            self._highlight_row(0)

    def _told_apart(self) -> dict[str, str]:
        """The texts of the flexible column, cut where they differ from each other."""
        width = dict(self._shape).get(self._flexible)
        if self.table is None or width is None:
            return {}
        if len(self._matching) <= TOLD_APART:
            place = self.table.index(self._flexible)
            texts = [self._write(self.table.rows[index])[place] for index in self._matching]
        else:
            cells = set(self._contents[self._flexible].cells)
            texts = [literal(cell) for cell in cells if isinstance(cell, str)]
        if len(texts) > TOLD_APART:
            return {}
        return dict(zip(texts, told_apart(texts, width), strict=True))

    def _note_width(self, name: str, text: str) -> None:
        """Widen the column after this paint if a number has no room in it: none is ever cut."""
        if len(text) > self._widest[name]:
            self._widest[name] = len(text)
            self.call_after_refresh(self._widen)

    def _widen(self) -> None:
        if self._shape != self._fitting():
            self._fill(self.selected)

    def action_sort_next(self) -> None:
        """Sort by the next visible column."""
        names = self.columns_in_view
        index = names.index(self.sort_column) + 1 if self.sort_column in names else 0
        self._sort_by(names[index % len(names)])

    def action_sort_turn(self) -> None:
        """Reverse the order, and go to the first row of it."""
        self.descending = not self.descending
        self._fill()

    def action_scroll_home(self) -> None:
        """Go to the first row: the columns always fit."""
        self.action_scroll_top()

    def action_scroll_end(self) -> None:
        """Go to the last row."""
        self.action_scroll_bottom()

    @on(DataTable.HeaderSelected)
    def _header_clicked(self, event: DataTable.HeaderSelected) -> None:
        name = str(event.column_key.value)
        if name == self.sort_column:
            self.action_sort_turn()
        else:
            self._sort_by(name)

    def _sort_by(self, name: str) -> None:
        self.sort_column, self.descending = name, name in self._numeric
        self._fill()
