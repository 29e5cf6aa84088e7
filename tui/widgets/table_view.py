"""A widget for core tables: sorts, filters, and hides columns that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from rich.text import Text
from textual import events, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from sysbench.core.export.text_formats import table_as_markdown
from sysbench.core.tables.cells import (
    NUMBERS,
    Contents,
    columns_of,
    heading_of,
    literal,
    row_writer,
    short_texts,
)
from sysbench.core.tables.table import FLEXIBLE_SHARE, Cell, Row, Table, fit_columns
from sysbench.core.tables.trust import PERTURBED_MARK, mark_perturbed
from sysbench.tui.keys import give_focus
from sysbench.tui.text import truncate, truncate_distinct
from sysbench.tui.theme import Swatch, rich_colour
from sysbench.tui.widgets.choice import ChoiceScreen
from sysbench.tui.widgets.traces import bar
from sysbench.tui.widgets.virtual_rows import VirtualRows

MAX_MEASURED = 1000
"""Rows that are formatted to find column widths; of longer tables a sample and the extremes."""
MAX_DISTINCT = 2000
"""Distinct texts up to which a column is truncated so that they stay distinct."""


def sort_key(value: Cell) -> tuple[int, float, str]:
    """Sort unknown values first, then numbers, then texts."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, str):
        return (2, 0.0, value.lower())
    return (1, float(value), "")


def _unwritten(row: Row) -> list[str]:
    return [str(cell) for cell in row]


class TableView(VirtualRows):
    """Shows a `Table`. Cells are literal text; rows are indices of ``table.rows``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort", id="table.sort", tooltip="Choose the column to sort by"),
        Binding("S", "sort_turn", "Reverse", show=False, id="table.reverse"),
    ]
    FLEXIBLE_SHARE: ClassVar[float] = FLEXIBLE_SHARE
    """Share of the width that is reserved for the flexible column."""

    def __init__(
        self,
        table: Table | None = None,
        *,
        title: str = "",
        flexible: str = "",
        order: Sequence[str] = (),
        id: str | None = None,
    ) -> None:
        """Show a table once mounted; ``title`` gives it a frame, ``flexible`` takes the remaining
        width.

        ``order`` has the columns to show, the most important first; empty for those of the table.
        """
        super().__init__(id=id)
        if title:
            self.add_class("panel")
            self.border_title = Content(title)
        self.table: Table | None = None
        self._first = table
        self.sort_column = ""
        self.descending = True
        self.perturbed = False
        """Whether times are marked and dim."""
        self.note = ""
        """Legend of the marks in the table; set it before `show`."""
        self._flexible = self._preset_flexible = flexible
        self._order = order
        self._words: list[str] = []
        self._write: Callable[[Row], list[str]] = _unwritten
        self._contents: dict[str, Contents] = {}
        self._numeric: set[str] = set()
        self._widest: dict[str, int] = {}
        """Width of the widest known text of each column."""
        self._haystack: list[str] = []
        """Text of each row for the filter, made on first use."""
        self._matching: Sequence[int] = ()
        self._kernels: dict[str, dict[str, str]] = {}
        """Short forms of kernel names, by column."""
        self._shape: list[tuple[str, int]] = []
        self._short: dict[str, str] = {}
        """Truncated texts of the flexible column."""

    def on_mount(self) -> None:
        if self._first is not None:
            self.show(self._first)

    def show(
        self, table: Table, *, sort: str = "", descending: bool = True, select: int | None = None
    ) -> None:
        before = self.selected if select is None else select
        self.table = table
        self._flexible = self._preset_flexible or table.flexible
        self.sort_column, self.descending = sort, descending
        self._contents = columns_of(table)
        self._write, self._haystack = row_writer(table, self._contents), []
        self._kernels = {
            name: short for name in table.columns if (short := short_texts(table, name))
        }
        self._numeric = {
            name
            for name, contents in self._contents.items()
            if name in table.sort_keys or contents.holds_numbers
        }
        self._widest = self._measure_columns()
        self._fill(before)

    def filter(self, text: str) -> None:
        self._words = text.lower().split()
        self._fill(self.selected)

    @property
    def matching(self) -> Sequence[int]:
        return self._matching

    def _match(self) -> Sequence[int]:
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
            if (sort_keys := self.table.sort_keys.get(self.sort_column)) is not None:
                contents = Contents(sort_keys)
            cells = contents.cells
            keys: Sequence[Any] = cells if contents.kinds <= NUMBERS else [*map(sort_key, cells)]
            return sorted(matching, key=keys.__getitem__, reverse=self.descending)
        return matching

    @property
    def columns_in_view(self) -> list[str]:
        return [name for name, _ in self._shape]

    @property
    def column_widths(self) -> dict[str, int]:
        return dict(self._shape)

    @property
    def selected(self) -> int | None:
        return self._matching[self.cursor_row] if self._matching else None

    def markdown(self) -> str:
        if self.table is None:
            return ""
        rows = tuple(self.table.rows[index] for index in self.matching)
        return table_as_markdown(msgspec.structs.replace(self.table, rows=rows))

    def extra_cells(self, column: str) -> int:
        """Cells that `cell` adds to the text of a column."""
        return len(PERTURBED_MARK) if self._is_marked(column) else 0

    def cell(self, column: str, row: int, text: str) -> Text:
        return Text(mark_perturbed(text), style="dim") if self._is_marked(column) else Text(text)

    def _is_marked(self, column: str) -> bool:
        return self.perturbed and column.endswith("_ns")

    def on_resize(self, event: events.Resize) -> None:
        if self._shape and self._shape != self._fit_columns():
            self._fill(self.selected)

    def _measure_columns(self) -> dict[str, int]:
        """Width of the widest text of each column, in long tables from a sample."""
        assert self.table is not None
        rows = self.table.rows
        sample: Iterable[int] = range(len(rows))
        if len(rows) > MAX_MEASURED:
            chosen = set(range(0, len(rows), len(rows) // MAX_MEASURED))
            for contents in self._contents.values():
                texts = {cell for cell in contents.cells if isinstance(cell, str)}
                ends = [max(texts, key=len)] if texts else contents.ends
                chosen |= {contents.cells.index(cell) for cell in ends}
            sample = chosen
        widest = dict.fromkeys(self.table.columns, 0)
        for place in sample:
            for name, text in self._shown_texts(rows[place]).items():
                widest[name] = max(widest[name], len(text))
        return widest

    def _fit_columns(self) -> list[tuple[str, int]]:
        table = self.table
        if table is None:
            return []
        names = [name for name in self._order or table.shown if name in table.columns]
        is_ranked = bool(self._order) or table.has_priorities
        # Hide blank columns; hide unknown ones only if columns are ranked, as not all will fit.
        names = [name for name in names if not self._contents[name].is_blank(unknown=is_ranked)]
        widths = {
            # Two more cells for the sort arrow.
            name: max(len(heading_of(table, name)) + 2, self._widest[name] + self.extra_cells(name))
            for name in names
        }
        fitted = fit_columns(
            table,
            widths,
            (self.size.width or self.app.size.width) - 1,
            numbers=self._numeric,
            flexible=self._flexible,
            priorities=None if table.has_priorities else self._priorities(names),
            flexible_share=self.FLEXIBLE_SHARE,
        )
        return [*fitted.items()]

    def _priorities(self, names: Sequence[str]) -> dict[str, float]:
        """Hide columns from the right, except the first, the first number and the flexible one."""
        figure = next((name for name in names if name in self._numeric), "")
        stay = {*names[:1], figure, self._flexible}
        return {name: place / len(names) for place, name in enumerate(names) if name not in stay}

    def _fill(self, select: int | None = None) -> None:
        """Rebuild the rows; keep the cursor on the selected row if it is still shown."""
        if self.table is None:
            return
        self._shape = self._fit_columns()
        self._matching = self._match()
        self._short = self._truncate_distinct()
        columns = [(self._heading(name), width) for name, width in self._shape]
        cursor = self._matching.index(select) if select in self._matching else 0
        self.border_subtitle = Content(" · ".join(filter(None, (self.note, self._hidden_order()))))
        self.set_rows(columns, len(self._matching), cursor)

    def _hidden_order(self) -> str:
        """Name the column that the rows are sorted by if it is not in view."""
        name = self.sort_column
        if self.table is None or name not in self.table.columns or name in self.columns_in_view:
            return ""
        return f"sorted by {heading_of(self.table, name)}{self._arrow(name)}"

    def _heading(self, name: str) -> Text:
        assert self.table is not None
        justify: Literal["right", "left"] = "right" if name in self._numeric else "left"
        return Text(heading_of(self.table, name) + self._arrow(name), justify=justify)

    def _arrow(self, name: str) -> str:
        return ("▼" if self.descending else "▲") if name == self.sort_column else ""

    def get_row_at(self, place: int) -> list[Text]:
        assert self.table is not None
        index = self._matching[place]
        texts = self._shown_texts(self.table.rows[index])
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

    def _truncate_distinct(self) -> dict[str, str]:
        """Truncate the texts of the flexible column so that they stay distinct."""
        width = dict(self._shape).get(self._flexible)
        if self.table is None or width is None:
            return {}
        if len(self._matching) <= MAX_DISTINCT:
            rows = (self.table.rows[index] for index in self._matching)
            texts = [self._shown_texts(row)[self._flexible] for row in rows]
        else:
            cells = set(self._contents[self._flexible].cells)
            short = self._kernels.get(self._flexible, {})
            texts = [short.get(cell, literal(cell)) for cell in cells if isinstance(cell, str)]
        if len(texts) > MAX_DISTINCT:
            return {}
        return dict(zip(texts, truncate_distinct(texts, width), strict=True))

    def _shown_texts(self, row: Row) -> dict[str, str]:
        assert self.table is not None
        texts = dict(zip(self.table.columns, self._write(row), strict=True))
        for name, short in self._kernels.items():
            texts[name] = short.get(texts[name], texts[name])
        return texts

    def _note_width(self, name: str, text: str) -> None:
        """Widen the column after this paint if a number does not fit: numbers are never cut."""
        if len(text) > self._widest[name]:
            self._widest[name] = len(text)
            self.call_after_refresh(self._widen)

    def _widen(self) -> None:
        if self._shape != self._fit_columns():
            self._fill(self.selected)

    def action_sort(self) -> None:
        """List the columns; the current one again reverses the order."""
        if self.table is None or not self.table.rows:
            return
        shown = [*self.columns_in_view, *self.table.shown]
        names = [
            name for name in dict.fromkeys(shown) if not self._contents[name].is_blank(unknown=True)
        ]
        current = self.sort_column if self.sort_column in names else names[0]
        headings = [self._heading(name).plain for name in names]
        choices = list(zip(headings, names, strict=True))

        def chosen(name: str | None) -> None:
            if name is not None:
                self.sort_by(name)

        self.app.push_screen(ChoiceScreen("Sort by", choices, current), chosen)

    def action_sort_turn(self) -> None:
        self.descending = not self.descending
        self._fill()

    def sort_by_column(self, index: int) -> None:
        self.sort_by(self.columns_in_view[index])

    def sort_by(self, name: str) -> None:
        """Sort by a column, numbers the largest first; by the current one in reverse."""
        if name == self.sort_column:
            self.action_sort_turn()
            return
        self.sort_column, self.descending = name, name in self._numeric
        self._fill()


class FilterBox(Input):
    def __init__(self) -> None:
        words = "filter (all words must match); esc clears"
        super().__init__(placeholder=words, compact=True, id="filter")
        self.display = False

    def open(self) -> None:
        self.display = True
        give_focus(self)

    def close(self) -> None:
        self.value, self.display = "", False


class Filtered(Vertical):
    """A container whose `FilterBox`, if it has one, narrows what is shown."""

    def narrow(self, words: str) -> None:
        raise NotImplementedError

    def start_focus(self) -> None:
        raise NotImplementedError

    def action_filter(self) -> None:
        for box in self.query(FilterBox):
            box.open()

    def action_clear_filter(self) -> None:
        for box in self.query(FilterBox):
            box.close()
            self.start_focus()

    @on(FilterBox.Changed)
    def _narrow(self, event: FilterBox.Changed) -> None:
        self.narrow(event.value)

    @on(FilterBox.Submitted)
    def _to_rows(self) -> None:
        self.start_focus()


def filter_bindings(area: str) -> list[BindingType]:
    about = "Show rows that contain all words"
    return [
        Binding("slash", "filter", "Filter", id=f"{area}.filter", tooltip=about),
        Binding("escape", "clear_filter", "Clear", show=False, id=f"{area}.clear"),
    ]


SWATCH_WIDTH = 2


WIDE_TABLE, SHARE_BAR = 130, 12
"""Cells of a table from which on its shares have bars, and of a bar."""


class KernelTable(TableView):
    """Kernel rows with the swatch of their category and, on wide screens, a bar of their share."""

    def __init__(self, looks: Mapping[str, Swatch], *, perturbed: bool) -> None:
        super().__init__()
        self._looks = looks
        self.perturbed = perturbed

    def extra_cells(self, column: str) -> int:
        if column == "share":
            return SHARE_BAR + 1 if self.size.width >= WIDE_TABLE else 0
        return SWATCH_WIDTH if column == "category" else super().extra_cells(column)

    def cell(self, column: str, row: int, text: str) -> Text:
        room = self.column_widths.get(column, 0) - SHARE_BAR - 1
        if column == "share" and room >= len(text):
            return self._with_bar(row, f"{text:>{room}}")
        look = self._look(text) if column == "category" else None
        if look is None:
            return super().cell(column, row, text)
        return Text.assemble((look.glyph, rich_colour(self.app, look.colour)), " ", text)

    def _look(self, category: str) -> Swatch | None:
        return self._looks.get(category.removesuffix(" (fused)"))

    def _with_bar(self, row: int, text: str) -> Text:
        assert self.table is not None
        values = self.table.mapping(row)
        share, look = values["share"], self._look(str(values["category"]))
        drawn = bar(share if isinstance(share, float) else 0.0, SHARE_BAR)
        colour = rich_colour(self.app, look.colour) if look else ""
        return Text.assemble((drawn, colour), f" {text}")
