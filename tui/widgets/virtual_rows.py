"""A table of any length on Textual's Line API; makes only visible rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size, Spacing
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

CELL_PADDING = 1
"""Blank cells on either side of a column."""
HEADER = -1
"""Row number of the header."""


class VirtualRows(ScrollView, can_focus=True):
    """Rows below a fixed header, with a cursor on one row. Subclasses make the cells."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Select", show=False),
        Binding("up", "move(-1)", "Cursor up", show=False),
        Binding("down", "move(1)", "Cursor down", show=False),
        Binding("pageup", "turn_page(-1)", "Page up", show=False),
        Binding("pagedown", "turn_page(1)", "Page down", show=False),
        Binding("home,ctrl+home", "move_to(0)", "First row", show=False),
        Binding("end,ctrl+end", "move_to(-1)", "Last row", show=False),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *("rows--header", "rows--header-hover", "rows--even"),
        *("rows--cursor", "rows--hover"),
    }
    DEFAULT_CSS = """
    VirtualRows {
        height: 1fr;
        max-height: 100%;
        overflow-x: hidden;
        background: $background;
        color: $foreground;

        & > .rows--header {
            background: $background;
            color: $foreground 60%;
        }
        & > .rows--header-hover {
            background: $panel;
        }
        & > .rows--even {
            background: $surface 60%;
        }
        & > .rows--hover {
            background: $block-hover-background;
        }
        & > .rows--cursor {
            background: $block-cursor-blurred-background;
            color: $block-cursor-blurred-foreground;
            text-style: $block-cursor-blurred-text-style;
        }
        &:focus > .rows--header {
            background-tint: $foreground 5%;
        }
        &:focus > .rows--cursor {
            background: $block-cursor-background;
            color: $block-cursor-foreground;
            text-style: $block-cursor-text-style;
        }
    }
    """

    class RowMessage(Message):
        def __init__(self, rows: VirtualRows) -> None:
            super().__init__()
            self.rows = rows

        @property
        def control(self) -> VirtualRows:
            return self.rows

    class RowHighlighted(RowMessage):
        """The cursor or the rows changed."""

    class RowSelected(RowMessage):
        """Enter or a second click on the selected row."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.row_count = 0
        self.cursor_row = 0
        self._hovered: int | None = None
        self._headed: Sequence[tuple[Text, int]] = ()

    def on_resize(self, event: events.Resize) -> None:
        self.scroll_to_cursor()

    def get_row_at(self, place: int) -> Sequence[Text]:
        """Cells of a row, counted from the top, one per column."""
        raise NotImplementedError

    def sort_by_column(self, index: int) -> None:
        """Handle a click on a column heading."""

    def set_rows(self, columns: Sequence[tuple[Text, int]], count: int, cursor: int = 0) -> None:
        """Show ``count`` rows with these headings and widths; put the cursor on row ``cursor``."""
        self._headed, self.row_count, self._hovered = columns, count, None
        self.virtual_size = Size(0, count + 1)
        self.refresh()
        self._go_to(cursor)
        self.post_message(self.RowHighlighted(self))

    def move_cursor(self, *, row: int) -> None:
        """Put the cursor on a row, clamped to the rows."""
        before, self._hovered = self._hovered, None
        self.refresh_places(before)
        if row != self.cursor_row:
            self._go_to(row)
            self.post_message(self.RowHighlighted(self))

    def _go_to(self, row: int) -> None:
        self.refresh_places(self.cursor_row)
        self.cursor_row = min(max(row, 0), max(self.row_count - 1, 0))
        self.refresh_places(self.cursor_row)
        self.scroll_to_cursor()

    def scroll_to_cursor(self) -> None:
        row = Region(0, self.cursor_row + 1, self.size.width, 1)
        self.scroll_to_region(row, spacing=Spacing(top=1), animate=False, force=True)

    def refresh_places(self, *places: int | None) -> None:
        for place in places:
            if place is not None:
                self.refresh_line(self.scroll_offset.y if place == HEADER else place + 1)

    def render_line(self, y: int) -> Strip:
        place = HEADER if y == 0 else y - 1 + self.scroll_offset.y
        if place >= self.row_count:
            return Strip.blank(self.size.width, self.rich_style)
        style = self.get_component_rich_style
        base, over = self.rich_style, Style.null()
        if place == HEADER:
            base = style("rows--header")
        elif place % 2 == 0:
            base = style("rows--even")
        for is_here, name in (
            (place == self._hovered, "rows--header-hover" if place == HEADER else "rows--hover"),
            (place == self.cursor_row, "rows--cursor"),
        ):
            if is_here:
                base += style(name)
                over = Style(color=base.color)  # overrides the colours of the cells
        cells = self.get_row_at(place) if place != HEADER else [text for text, _ in self._headed]
        return self._strip(cells, base, over)

    def _strip(self, cells: Sequence[Text], base: Style, over: Style) -> Strip:
        console = self.app.console
        segments = []
        for text, (_, width) in zip(cells, self._headed, strict=True):
            if text.cell_len > width:
                text = text.copy()
                text.truncate(width, overflow="ellipsis")
            spare = width - text.cell_len
            left, right = (spare, 0) if text.justify == "right" else (0, spare)
            cell_style = base + console.get_style(text.style, default=Style.null())
            segments.append(Segment(" " * (CELL_PADDING + left), base))
            for part, style, _ in text.render(console, end=""):
                segments.append(Segment(part, cell_style + style + over))
            segments.append(Segment(" " * (right + CELL_PADDING), base))
        return Strip(segments).adjust_cell_length(self.size.width, base).simplify()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._hover(self._place_at(event))

    def on_leave(self) -> None:
        self._hover(None)

    def _hover(self, place: int | None) -> None:
        if place != self._hovered:
            self.refresh_places(self._hovered, place)
            self._hovered = place

    def _place_at(self, event: events.MouseEvent) -> int | None:
        """Row under the mouse, `HEADER`, or None below the rows."""
        offset = event.get_content_offset(self)
        if offset is None:
            return None
        place = HEADER if offset.y == 0 else offset.y - 1 + self.scroll_offset.y
        return place if place < self.row_count else None

    def on_click(self, event: events.Click) -> None:
        place, offset = self._place_at(event), event.get_content_offset(self)
        if place is None or offset is None:
            return
        event.stop()
        if place == HEADER:
            end = 0
            for index, (_, width) in enumerate(self._headed):
                end += width + 2 * CELL_PADDING
                if offset.x < end:
                    return self.sort_by_column(index)
        elif place == self.cursor_row:
            self.action_select_cursor()
        else:
            self.move_cursor(row=place)
        self._hover(place)

    def action_select_cursor(self) -> None:
        if self.row_count:
            self.post_message(self.RowSelected(self))

    def action_move(self, rows: int) -> None:
        self.move_cursor(row=self.cursor_row + rows)

    def action_move_to(self, row: int) -> None:
        """Go to a row; negative ones count from the last."""
        self.move_cursor(row=row % max(self.row_count, 1))

    def action_turn_page(self, sign: int) -> None:
        """Scroll a page; the cursor keeps its height on the screen."""
        rows = sign * (self.scrollable_content_region.height - 1)
        self.scroll_relative(y=rows, animate=False, force=True)
        self.move_cursor(row=self.cursor_row + rows)
