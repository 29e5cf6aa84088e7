"""A `DataTable` of any length: a row is made when it is looked at.

Textual's own keeps an object a row and measures each on the interface's thread: ten seconds for
100,000 of them. The containers in which it looks rows up are replaced here by ones that answer from
an order of row numbers and a function that makes the cells of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self, SupportsIndex, overload

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual._two_way_dict import TwoWayDict
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.geometry import Region, Size
from textual.widgets import DataTable
from textual.widgets.data_table import ColumnKey, Row, RowKey

HEIGHT = 1
"""Lines of every row."""


class _Places(TwoWayDict[RowKey, int]):
    """Row numbers, which are the keys, to places in the table and back."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__({})
        self.order = order
        self._place_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.order)

    def __contains__(self, key: object) -> bool:
        return self._place(key) is not None

    def get(self, key: RowKey) -> int | None:
        return self._place(key)

    def get_key(self, value: int) -> RowKey | None:
        return RowKey(str(self.order[value])) if 0 <= value < len(self.order) else None

    def _place(self, key: object) -> int | None:
        text = key.value if isinstance(key, RowKey) else key
        if not isinstance(text, str) or not text.isdecimal():  # the key of the header
            return None
        if isinstance(self.order, range):  # as the table has them: no need to look
            return int(text) if int(text) in self.order else None
        if self.order and not self._place_of:
            self._place_of = {number: place for place, number in enumerate(self.order)}
        return self._place_of.get(int(text))


class _Rows(dict[RowKey, Row]):
    """What is known of each row: its height."""

    def __init__(self, places: _Places) -> None:
        super().__init__()
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __missing__(self, key: RowKey) -> Row:
        if key not in self._places:
            raise KeyError(key)
        return Row(key, HEIGHT)

    def get(self, key: RowKey, default: object = None) -> Row | None:  # type: ignore[override]
        return self[key] if key in self._places else None


class _Cells(dict[RowKey, dict[ColumnKey, Text]]):
    """The cells of each row, made when they are asked for."""

    def __init__(self, places: _Places, cells_of: Callable[[int], dict[ColumnKey, Text]]) -> None:
        super().__init__()
        self._places = places
        self._cells_of = cells_of

    def __len__(self) -> int:
        return len(self._places)

    def __missing__(self, key: RowKey) -> dict[ColumnKey, Text]:
        text = key.value if isinstance(key, RowKey) else key
        return self._cells_of(int(str(text)))

    def get(self, key: RowKey, default: object = None) -> dict[ColumnKey, Text]:
        return self[key]


class _Lines(list[tuple[RowKey, int]]):
    """The row in each line, and the line within it."""

    def __init__(self, places: _Places) -> None:
        super().__init__()
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: SupportsIndex) -> tuple[RowKey, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[RowKey, int]]: ...
    def __getitem__(
        self, index: SupportsIndex | slice
    ) -> tuple[RowKey, int] | list[tuple[RowKey, int]]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        key = self._places.get_key(int(index))
        if key is None:
            raise IndexError(index)
        return key, 0


class _InOrder(list[Row]):
    """The rows from the top: only their heights are asked for, which are all alike."""

    def __init__(self, places: _Places) -> None:
        super().__init__()
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [Row(RowKey(), HEIGHT)] * len(range(len(self))[index])
        key = self._places.get_key(int(index))
        if key is None:
            raise IndexError(index)
        return Row(key, HEIGHT)


class VirtualRows(DataTable[Text]):
    """A table of lines whose cells are made for the rows in view only."""

    _places = _Places(())
    _made_for: Size | None = None

    def on_resize(self, event: Resize) -> None:
        if event.size == self._made_for:
            event.prevent_default()  # it is shown again: Textual would make all rows anew
        self._made_for = event.size

    def clear(self, columns: bool = False) -> Self:
        """Take all rows away, with ``columns`` the columns too."""
        self._places = _Places(())
        self.rows, self._data = {}, {}
        return super().clear(columns)

    def set_rows(self, order: Sequence[int], cells_of: Callable[[int], Sequence[Text]]) -> None:
        """Put rows into a table that was cleared and has its columns.

        Args:
            order: Numbers of the rows from the top, each once; their keys are these as text.
            cells_of: Makes the cells of the row of that number, one a column.
        """
        keys = [column.key for column in self.ordered_columns]
        self._places = _Places(order)
        self.rows = _Rows(self._places)
        self._row_locations = self._places
        self._data = _Cells(
            self._places, lambda number: dict(zip(keys, cells_of(number), strict=True))
        )
        self._require_update_dimensions = True
        self._update_count += 1
        self.check_idle()

    @property
    def ordered_rows(self) -> list[Row]:
        """The rows from the top."""
        return _InOrder(self._places)

    @property
    def _y_offsets(self) -> list[tuple[RowKey, int]]:
        return _Lines(self._places)

    def _render_line_in_row(
        self,
        row_key: RowKey,
        line_no: int,
        base_style: Style,
        cursor_location: Coordinate,
        hover_location: Coordinate,
    ) -> tuple[list[list[Segment]], list[list[Segment]]]:
        """A row of texts that have room: Textual's way takes any object, and ten times as long."""
        line = None
        place = self._places.get(row_key)
        if place is not None and self.cursor_type == "row" and not self.fixed_columns:
            line = self._line_of_texts(
                place,
                base_style,
                is_under_cursor=cursor_location.row == place,
                is_under_mouse=hover_location.row == place,
            )
        if line is None:
            return super()._render_line_in_row(
                row_key, line_no, base_style, cursor_location, hover_location
            )
        return [], [line]

    def _line_of_texts(
        self, place: int, base_style: Style, *, is_under_cursor: bool, is_under_mouse: bool
    ) -> list[Segment] | None:
        """The row across the whole width; None if a cell is longer than its column is wide."""
        above, over = self._get_styles_to_render_cell(
            is_header_cell=False,
            is_row_label_cell=False,
            is_fixed_style_cell=place < self.fixed_rows,
            hover=is_under_mouse,
            cursor=is_under_cursor,
            show_cursor=self.show_cursor,
            show_hover_cursor=self._show_hover_cursor,
            has_css_foreground_priority=self.cursor_foreground_priority == "css",
            has_css_background_priority=self.cursor_background_priority == "css",
        )
        of_row = self._get_row_style(place, base_style)
        below = of_row + Style.from_meta({"row": place, "column": 0}) + above
        blank = below + over
        console = self.app.console
        line = []
        taken = 0
        for column, text in zip(self.ordered_columns, self.get_row_at(place), strict=True):
            width = column.get_render_width(self)
            taken += width
            spare = width - 2 * self.cell_padding - text.cell_len
            if spare < 0:
                return None
            left, right = (spare, 0) if text.justify == "right" else (0, spare)
            own = below + console.get_style(text.style, default=Style.null())
            line.append(Segment(" " * (self.cell_padding + left), blank))
            for part, style, _ in text.render(console, end=""):
                line.append(Segment(part, own + style + over))
            line.append(Segment(" " * (right + self.cell_padding), blank))
        outside = (
            of_row + above + Style.from_meta({"row": place, "column": 0, "out_of_bounds": True})
        )
        line.append(Segment(" " * max(0, self.size.width - taken), outside))
        return line

    def _get_row_region(self, row_index: int) -> Region:
        """Where a row is, without the sum over all that are above it."""
        if not self.is_valid_row_index(row_index):
            return Region(0, 0, 0, 0)
        width = sum(column.get_render_width(self) for column in self.columns.values())
        top = row_index * HEIGHT + (self.header_height if self.show_header else 0)
        return Region(0, top, max(self.size.width, width), HEIGHT)
