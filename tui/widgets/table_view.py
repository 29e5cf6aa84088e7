"""A core table on the screen: sorted and filtered; columns without room are hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content

from sysbench.core.export.text_formats import table_as_markdown
from sysbench.core.tables.cells import (
    NUMBERS,
    Contents,
    columns_of,
    heading_of,
    literal,
    row_writer,
)
from sysbench.core.tables.table import FLEXIBLE_SHARE, Cell, Row, Table, fit_columns
from sysbench.core.tables.trust import PERTURBED_MARK, mark_perturbed
from sysbench.tui.text import truncate, truncate_distinct
from sysbench.tui.theme import Swatch, rich_colour
from sysbench.tui.widgets.virtual_rows import VirtualRows

MEASURED = 1000
"""Most rows whose texts are all made to find a column's width; of more these are looked at, and the
extremes of each column."""
TOLD_APART = 2000
"""Most different texts of a column that are compared to cut them where they differ."""


def sort_key(value: Cell) -> tuple[int, float, str]:
    """A key that sorts unknown values first, then numbers by size, then texts."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, str):
        return (2, 0.0, value.lower())
    return (1, float(value), "")


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

    def __init__(
        self,
        *,
        flexible: str = "",
        order: Sequence[str] = (),
        id: str | None = None,
    ) -> None:
        """
        Args:
            flexible: The column that takes the room that the others leave; empty means the
                table's own.
            order: Columns to show, the most important first; none means those of the table.
            id: The widget's.
        """
        super().__init__(id=id)
        self.table: Table | None = None
        self.sort_column = ""
        self.descending = True
        self.note = ""
        """What marks in the table mean; shown from the next filling on."""
        self._flexible = self._given_flexible = flexible
        self._order = order
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
        self._short: dict[str, str] = {}
        """Texts of the flexible column that are cut where they differ."""

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
        self._flexible = self._given_flexible or table.flexible
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
            cells = contents.cells
            keys: Sequence[Any] = cells if contents.kinds <= NUMBERS else [*map(sort_key, cells)]
            return sorted(matching, key=keys.__getitem__, reverse=self.descending)
        return matching

    @property
    def columns_in_view(self) -> list[str]:
        """Names of the columns that have room, left to right."""
        return [name for name, _ in self._shape]

    @property
    def column_widths(self) -> dict[str, int]:
        """Cells of the columns that have room, left to right."""
        return dict(self._shape)

    @property
    def selected(self) -> int | None:
        """Index into ``table.rows`` of the row under the cursor."""
        return self._matching[self.cursor_row] if self._matching else None

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
                texts = {cell for cell in contents.cells if isinstance(cell, str)}
                ends = [max(texts, key=len)] if texts else contents.ends
                chosen |= {contents.cells.index(cell) for cell in ends}
            looked_at = chosen
        widest = dict.fromkeys(self.table.columns, 0)
        for place in looked_at:
            for name, text in zip(self.table.columns, self._write(rows[place]), strict=True):
                widest[name] = max(widest[name], len(text))
        return widest

    def _fitting(self) -> list[tuple[str, int]]:
        """The columns that fit, with their widths."""
        table = self.table
        if table is None:
            return []
        names = [name for name in self._order or table.shown if name in table.columns]
        is_ranked = bool(self._order) or table.has_priorities
        # A blank column gives its room to others. A column of unknowns goes only where columns
        # are ranked: there are more than fit.
        names = [name for name in names if not self._contents[name].is_blank(unknown=is_ranked)]
        widths = {
            # Two cells more, for the arrow of the sort.
            name: max(len(heading_of(table, name)) + 2, self._widest[name] + self.extra_cells(name))
            for name in names
        }
        fitted = fit_columns(
            table,
            widths,
            (self.size.width or self.app.size.width) - 1,
            numbers=self._numeric,
            flexible=self._flexible,
            priorities=None if table.has_priorities else self._from_the_right(names),
            flexible_share=self.FLEXIBLE_SHARE,
        )
        return [*fitted.items()]

    def _from_the_right(self, names: Sequence[str]) -> dict[str, float]:
        """Priorities by place; the first column, the first number and the flexible one stay."""
        figure = next((name for name in names if name in self._numeric), "")
        stay = {*names[:1], figure, self._flexible}
        return {name: place / len(names) for place, name in enumerate(names) if name not in stay}

    def _fill(self, select: int | None = None) -> None:
        """Rebuild the rows; keep the cursor on the selected row if it is still shown."""
        if self.table is None:
            return
        self._shape = self._fitting()
        self._matching = self._found()
        self._short = self._told_apart()
        columns = [(self._heading(name), width) for name, width in self._shape]
        cursor = self._matching.index(select) if select in self._matching else 0
        self.border_subtitle = Content(self.note)
        self.set_rows(columns, len(self._matching), cursor)

    def _heading(self, name: str) -> Text:
        assert self.table is not None
        arrow = ("▼" if self.descending else "▲") if name == self.sort_column else ""
        justify: Literal["right", "left"] = "right" if name in self._numeric else "left"
        return Text(heading_of(self.table, name) + arrow, justify=justify)

    def get_row_at(self, place: int) -> list[Text]:
        assert self.table is not None
        index = self._matching[place]
        texts = dict(zip(self.table.columns, self._write(self.table.rows[index]), strict=True))
        cells = []
        for name, width in self._shape:
            text = texts[name]
            if name == self._flexible:
                text = self._short.get(text) or truncate(text, width)
            cell = self.cell(name, index, text)
            if name in self._numeric:
                self._note_width(name, text)
                cell.justify = "right"
            cells.append(cell)
        return cells

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
        return dict(zip(texts, truncate_distinct(texts, width), strict=True))

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

    def sort_by_column(self, index: int) -> None:
        name = self.columns_in_view[index]
        if name == self.sort_column:
            self.action_sort_turn()
        else:
            self._sort_by(name)

    def _sort_by(self, name: str) -> None:
        self.sort_column, self.descending = name, name in self._numeric
        self._fill()


SWATCH_WIDTH = 2


class KernelTable(TableView):
    """Rows with the swatch of their category, the same as in the bar above.

    With ``perturbed`` the times are marked and dim: tracing perturbed them too much.
    """

    def __init__(self, looks: Mapping[str, Swatch], *, perturbed: bool) -> None:
        super().__init__()
        self._looks = looks
        self._perturbed = perturbed

    def extra_cells(self, column: str) -> int:
        if column == "category":
            return SWATCH_WIDTH
        return perturbed_room(column, perturbed=self._perturbed)

    def cell(self, column: str, row: int, text: str) -> Text:
        look = self._looks.get(text.removesuffix(" (fused)")) if column == "category" else None
        if look is None:
            return perturbed_cell(column, text, perturbed=self._perturbed)
        return Text.assemble((look.glyph, rich_colour(self.app, look.colour)), " ", text)


def perturbed_cell(column: str, text: str, *, perturbed: bool) -> Text:
    """A cell as it is; marked and dim where it is a time that tracing perturbed."""
    if perturbed and column.endswith("_ns"):
        return Text(mark_perturbed(text), style="dim")
    return Text(text)


def perturbed_room(column: str, *, perturbed: bool) -> int:
    """Cells that the mark of a perturbed time takes."""
    return len(PERTURBED_MARK) if perturbed and column.endswith("_ns") else 0
