"""A core table on the screen: sorted and filtered; columns without room are hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from rich.text import Text
from textual import events, on
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from ....core.export.text_formats import table_as_markdown
from ....core.tables.cells import cells_as_text, heading_of, is_numeric
from ....core.tables.table import Cell, Table
from ...cutting import told_apart

LIMIT = 500
"""Most rows shown at once: they are formatted on the interface's thread."""

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


def _is_blank(table: Table, column: str, blanks: Sequence[Cell]) -> bool:
    """Whether the column is blank in every row."""
    return bool(table.rows) and all(cell in blanks for cell in table.column(column))


class TableView(DataTable[Text]):
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
        self, *, flexible: str = "", order: Sequence[str] = (), id: str | None = None
    ) -> None:
        """
        Args:
            flexible: The column that takes the room that the others leave.
            order: Columns to show, the most important first; none means all, as they come.
        """
        super().__init__(cursor_type="row", zebra_stripes=True, id=id, header_height=1)
        self.table: Table | None = None
        self.sort_column = ""
        self.descending = True
        self.note = ""
        """What marks in the table mean; shown from the next filling on."""
        self._flexible = flexible
        self._order = order
        self._words: list[str] = []
        self._texts: list[list[str]] = []
        self._shape: list[tuple[str, int]] = []

    def show(self, table: Table, *, sort: str = "", descending: bool = True) -> None:
        """Show this table; without ``sort`` its rows stay in their order."""
        self.table = table
        self.sort_column, self.descending = sort, descending
        self._texts = cells_as_text(table)
        self._fill()

    def filter(self, text: str) -> None:
        """Show only rows in which every word of the text occurs."""
        self._words = text.lower().split()
        self._fill()

    @property
    def matching(self) -> list[int]:
        """Indices of the rows that pass the filter, in the order of the sort."""
        if self.table is None:
            return []
        matching = [
            index
            for index, texts in enumerate(self._texts)
            if all(word in " ".join(texts).lower() for word in self._words)
        ]
        if self.sort_column in self.table.columns:
            column = self.table.column(self.sort_column)
            cells = self.table.sort_keys.get(self.sort_column, column)
            matching.sort(key=lambda index: sort_key(cells[index]), reverse=self.descending)
        return matching

    @property
    def selected(self) -> int | None:
        """Index into ``table.rows`` of the row under the cursor."""
        if not self.row_count:
            return None
        key, _ = self.coordinate_to_cell_key(self.cursor_coordinate)
        return int(str(key.value))

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
            self._fill()

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
        names = [name for name in names if not _is_blank(table, name, blanks)]
        widths: dict[str, int] = {}
        for name in names:
            place = table.index(name)
            widest = max((len(texts[place]) for texts in self._texts), default=0)
            widths[name] = max(len(heading_of(table, name)) + 2, widest + self.extra_cells(name))
        if self._flexible in widths:
            wanted = widths[self._flexible]
            least = max(FLEXIBLE_LEAST, int(room * self.FLEXIBLE_SHARE))
            widths[self._flexible] = min(wanted, least)
        shown: list[tuple[str, int]] = []
        used = 0
        for name in names:
            left = room - used - CELL_PADDING
            if widths[name] > left and shown:
                if left < CUT_LEAST or is_numeric(table, name):
                    break
                widths[name] = left
            used += widths[name] + CELL_PADDING
            shown.append((name, widths[name]))
        if self._flexible in widths:
            spare = max(0, room - used)
            limit = min(wanted, FLEXIBLE_MOST, widths[self._flexible] + spare)
            shown = [(name, limit if name == self._flexible else width) for name, width in shown]
        return shown

    def _fill(self) -> None:
        """Build the visible rows anew; the cursor stays on its row."""
        table = self.table
        if table is None:
            return
        before = self.selected
        self._shape = self._fitting()
        self.clear(columns=True)
        for name, width in self._shape:
            arrow = ("▼" if self.descending else "▲") if name == self.sort_column else ""
            justify = "right" if is_numeric(table, name) else "left"
            label = Text(
                heading_of(table, name) + arrow, justify="right" if justify == "right" else "left"
            )
            self.add_column(label, key=name, width=width)
        places = [(name, table.index(name), width) for name, width in self._shape]
        numeric = {name for name, _ in self._shape if is_numeric(table, name)}
        matching = self.matching
        cut = {
            name: told_apart([self._texts[index][place] for index in matching[:LIMIT]], width)
            for name, place, width in places
            if name == self._flexible
        }
        for number, index in enumerate(matching[:LIMIT]):
            cells = []
            for name, place, width in places:
                text = cut[name][number] if name in cut else self._texts[index][place]
                cell = self.cell(name, index, text)
                if name in numeric:
                    cell.justify = "right"
                cell.truncate(width, overflow="ellipsis")
                cell.no_wrap = True
                cells.append(cell)
            self.add_row(*cells, key=str(index))
        hidden = len(matching) - LIMIT
        self.border_subtitle = (
            f"{hidden} more rows, filter to see them" if hidden > 0 else self.note
        )
        if before is not None and str(before) in {key.value for key in self.rows}:
            self.move_cursor(row=self.get_row_index(str(before)))

    def action_sort_next(self) -> None:
        """Sort by the next visible column."""
        names = [name for name, _ in self._shape]
        index = names.index(self.sort_column) + 1 if self.sort_column in names else 0
        self._sort_by(names[index % len(names)])

    def action_sort_turn(self) -> None:
        """Reverse the order."""
        self.descending = not self.descending
        self._fill()

    @on(DataTable.HeaderSelected)
    def _header_clicked(self, event: DataTable.HeaderSelected) -> None:
        name = str(event.column_key.value)
        if name == self.sort_column:
            self.action_sort_turn()
        else:
            self._sort_by(name)

    def _sort_by(self, name: str) -> None:
        assert self.table is not None
        self.sort_column, self.descending = name, is_numeric(self.table, name)
        self._fill()
