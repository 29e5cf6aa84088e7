"""Line plots in braille with axes and marks; few styles per row, so cheap over SSH."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from sysbench.core.tables.cells import literal
from sysbench.core.tables.timing_tables import Figure, Series
from sysbench.tui.theme import rich_colour, swatch
from sysbench.tui.widgets.traces import extent, line_rows

Draw = Callable[[int, int], Content]
"""Returns the content for a width and a height."""

UNLIMITED_ROWS = 999


class Drawing(Widget):
    """Draws when it is painted, and so always for its current size.

    A label updated by another widget would use the size of the last layout, which is outdated
    for some time after a resize.
    """

    DEFAULT_CSS = """
    Drawing {
        height: 1fr;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._draw: Draw = lambda width, height: Content("")

    def show(self, draw: Draw) -> None:
        self._draw = draw
        self.refresh()

    def render(self) -> Content:
        width, height = self.content_size
        return self._draw(width, height) if width > 0 and height > 0 else Content("")


class Folding(Drawing):
    """A drawing as high as its content, or lower if the stylesheet limits it."""

    DEFAULT_CSS = """
    Folding {
        height: auto;
    }
    """

    def show(self, draw: Draw) -> None:
        super().show(draw)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        lines = str(self._draw(width, UNLIMITED_ROWS)) if width > 0 else ""
        return lines.count("\n") + 1 if lines else 0


def mark_row(marks: Sequence[tuple[int, str]], width: int) -> str:
    """Labels at their columns, ``│label``; a label ends where the next one starts."""
    row = [" "] * width
    ends = [*(column for column, _ in marks[1:]), width]
    for (column, label), end in zip(marks, ends, strict=False):
        if 0 <= column < width:
            text = f"│{label}"[: max(1, min(end, width) - column)]
            row[column : column + len(text)] = text
    return "".join(row)[:width]


class Plot(Widget):
    """Plots one series over its index; the first ``split`` values are faded."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *("plot--axis", "plot--line", "plot--faded", "plot--level", "plot--cursor"),
    }
    DEFAULT_CSS = """
    Plot {
        height: 1fr;
        min-height: 4;
        & > .plot--axis { color: $foreground 50%; }
        & > .plot--line { color: $accent; }
        & > .plot--faded { color: $foreground 45%; }
        & > .plot--level { color: $warning; }
        & > .plot--cursor { color: $foreground; text-style: bold; }
    }
    """

    def __init__(self, axis: Callable[[float], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._axis = axis
        self._values: Sequence[float] = ()
        self._marks: Sequence[tuple[int, str]] = ()
        self._split = 0
        self._floor: float | None = None
        self._level: tuple[float, str] | None = None
        self._cursor: int | None = None
        self._rows: list[list[tuple[str, str]]] = []
        self._room = 0
        self._drawn_for: Size | None = None

    @property
    def room(self) -> int:
        """Columns of the series in the last drawing."""
        return self._room

    def show(
        self,
        values: Sequence[float],
        *,
        marks: Sequence[tuple[int, str]] = (),
        split: int = 0,
        floor: float | None = None,
        level: tuple[float, str] | None = None,
        cursor: int | None = None,
        axis: Callable[[float], str] | None = None,
    ) -> None:
        """Draw a series.

        Args:
            values: The series.
            marks: Index and label of marks on the axis.
            split: Number of faded values at the start.
            floor: Lowest value of the axis.
            level: A value to compare with and its label, drawn as a line.
            cursor: Index of the value at the cursor.
            axis: Formats a value of the axis; None keeps the last one.
        """
        self._values, self._marks, self._split, self._floor = values, marks, split, floor
        self._level, self._cursor, self._axis = level, cursor, axis or self._axis
        self._drawn_for = None
        self.refresh()

    def _draw(self) -> None:
        width, height = self._drawn_for = self.size
        self._rows, self._room = [], 0
        if not self._values or width < 12 or height < 3:
            return
        low, high = extent([*self._values, *([self._level[0]] if self._level else [])])
        if self._floor is not None:
            low = self._floor
        tall = height - 1
        ticks = {
            row: self._axis(high - (high - low) * row / max(tall - 1, 1))
            for row in (0, tall // 2, tall - 1)
        }
        margin = max(map(len, ticks.values()))
        self._room = room = width - margin - 1
        per_column = max(len(self._values) - 1, 1)

        def column(index: int) -> int:
            return min(round(index / per_column * (room - 1)), room - 1)

        border = column(self._split) if self._split else 0
        cursor = None if self._cursor is None else column(self._cursor)
        level_row = -1
        if self._level:
            level_row = min(int((high - self._level[0]) / (high - low) * tall), tall - 1)
        for row, text in enumerate(line_rows(self._values, room, tall, low, high)):
            cells = [
                (char, "line" if place >= border else "faded") for place, char in enumerate(text)
            ]
            if row == level_row and self._level:
                drawn = _level_row(text, f" {self._level[1]} ")
                cells = [
                    (mark, "level") if char == " " else (char, look)
                    for (char, look), mark in zip(cells, drawn, strict=True)
                ]
            if cursor is not None and cells[cursor][0] in " ┄":
                cells[cursor] = ("│", "cursor")
            tick = ticks.get(row, "")
            self._rows.append(
                _joined([(f"{tick:>{margin}}{'┤' if tick else '│'}", "axis"), *cells])
            )
        marks = mark_row([(column(index), label) for index, label in self._marks], room)
        foot = [(char, "axis") for char in marks.replace(" ", "─")]
        if cursor is not None:
            foot[cursor] = ("▲", "cursor")
        self._rows.append(_joined([(" " * margin + "╰", "axis"), *foot]))

    def render_line(self, y: int) -> Strip:
        if self._drawn_for != self.size:
            self._draw()
        if y >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        segments = [
            Segment(text, self.get_component_rich_style(f"plot--{look}"))
            for text, look in self._rows[y]
        ]
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)


def _level_row(row: str, label: str) -> str:
    """A dashed row with a label where the series leaves space."""
    blank = " " * len(label)
    place = row.rfind(blank, 0, len(row) - 1)
    drawn = "┄" * len(row)
    return drawn if place < 0 else f"{drawn[:place]}{label}{drawn[place + len(label) :]}"


def _joined(cells: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join neighbours of the same style, for fewer changes of style per row."""
    return [
        ("".join(text for text, _ in group), look)
        for look, group in groupby(cells, key=lambda cell: cell[1])
    ]


class LinePlot(Widget):
    """Shows a `Figure`. Letters distinguish its lines, so that colour is not needed."""

    DEFAULT_CSS = """
    LinePlot {
        height: 1fr;
        min-height: 6;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.figure: Figure | None = None
        self._rows: list[list[Span]] = []
        self._drawn_for: Size | None = None

    def show(self, figure: Figure | None) -> None:
        if figure != self.figure or self._drawn_for is None:
            self.figure = figure
            self._drawn_for = None
            self.refresh()

    def render_line(self, y: int) -> Strip:
        size = self.content_size
        if self._drawn_for != size:
            self._drawn_for = size
            self._rows = figure_rows(self.figure, *size)
        spans = self._rows[y] if y < len(self._rows) else []
        segments = [Segment(text, self._style(index)) for text, index in spans]
        return Strip(segments).adjust_cell_length(size.width, self.rich_style)

    def _style(self, index: int | None) -> Style:
        if index is None:
            return self.rich_style
        return self.rich_style + Style(color=rich_colour(self.app, swatch(index).colour))


Span = tuple[str, int | None]
"""A text, and the index of its line; None for axes and words."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MIN_WIDTH, MIN_HEIGHT = 24, 5
SIDE_FROM, SIDE_WIDTH = 90, 34
TICKS = 5
GAP = "  "
NO_AXIS = "Nothing to plot: the only axis is not numeric."
NO_VALUES = "Nothing to plot: no finished cells."
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK: Span = (" ", None)


def figure_rows(figure: Figure | None, width: int, height: int) -> list[list[Span]]:
    """Title, plot with its axes, legend: at most ``height`` rows of at most ``width`` cells."""
    if figure is None or not figure.drawn:
        reason = NO_AXIS if figure is None else NO_VALUES
        lines = textwrap.wrap(reason, max(width, 1))
        return [[(line, None)] for line in lines[:height]]
    drawn = figure.drawn[: len(LETTERS)]
    head: list[list[Span]] = [[(literal(figure.title)[:width], None)]]
    has_side_legend = width >= SIDE_FROM
    room = min(SIDE_WIDTH - len(GAP), width)
    legend = [_entry(index, series, figure, room) for index, series in enumerate(drawn)]
    below = [] if has_side_legend else _flowing(legend, width, max(1, height // 4))
    wide = width - (SIDE_WIDTH if has_side_legend else 0)
    tall = height - len(head) - len(below)
    if wide < MIN_WIDTH or tall < MIN_HEIGHT:
        return [*head, *_flowing(legend, width, height - 1)][:height]
    rows = _plot(figure, drawn, wide, tall)
    if has_side_legend:
        for row, entry in zip(rows, legend, strict=False):
            row += [(GAP, None), *entry]
    return [*head, *rows, *below]


def _entry(index: int, series: Series, figure: Figure, room: int) -> list[Span]:
    """``a small 66.90 ms``: letter, name, last value."""
    name, value = literal(series.name), figure.words(series.known[-1][1])
    left = max(room - cell_len(value) - 3, 0)
    words = f" {set_cell_size(name, min(cell_len(name), left))} {value}"
    return [(LETTERS[index], index), (set_cell_size(words, min(cell_len(words), room - 1)), None)]


def _flowing(entries: Sequence[list[Span]], width: int, max_rows: int) -> list[list[Span]]:
    """Wrap the legend's entries into at most ``max_rows`` lines; drop the rest."""
    rows: list[list[Span]] = [[]]
    for entry in entries:
        before, length = (sum(cell_len(text) for text, _ in row) for row in (rows[-1], entry))
        if before and before + len(GAP) + length > width:
            if len(rows) == max_rows:
                break
            rows.append([])
            before = 0
        rows[-1] += [(GAP, None), *entry] if before else entry
    return rows


def _plot(figure: Figure, drawn: Sequence[Series], width: int, height: int) -> list[list[Span]]:
    up = figure.up
    ticks = {value: figure.tick(value) for value in up.ticks(min(TICKS, height // 2))}
    margin = max(map(len, ticks.values()))
    wide, tall = width - margin - 1, height - 1
    labels = {round((1 - up.part(value)) * (tall - 1)): text for value, text in ticks.items()}
    cells = _cells(figure, drawn, wide, tall)
    rows: list[list[Span]] = [
        [(f"{labels.get(row, ''):>{margin}}{'┤' if row in labels else '│'}", None), *cells[row]]
        for row in range(tall)
    ]
    return [*rows, [(" " * margin + "╰" + _axis(figure, wide), None)]]


def _cells(figure: Figure, drawn: Sequence[Series], width: int, height: int) -> list[list[Span]]:
    """Braille lines between the values, and letters at the values."""
    across, up = figure.across, figure.up
    cells = [[_BLANK] * width for _ in range(height)]
    dots: dict[tuple[int, int], int] = {}

    def place(x: float, y: float) -> tuple[float, float]:
        return across.part(x) * (width * 2 - 1), (1 - up.part(y)) * (height * 4 - 1)

    for index, series in enumerate(drawn):
        for piece in series.pieces:
            for begin, end in pairwise(place(*point) for point in piece):
                for column, row in _between(begin, end):
                    cell = (row // 4, column // 2)
                    dots[cell] = dots.get(cell, 0) | _DOTS[row % 4][column % 2]
                    cells[cell[0]][cell[1]] = (chr(0x2800 + dots[cell]), index)
    # Backwards, so that the letters of the first line are on top.
    for index, series in reversed(list(enumerate(drawn))):
        for x, y in series.known:
            right, down = place(x, y)
            cells[round(down) // 4][round(right) // 2] = (LETTERS[index], index)
    return cells


def _between(begin: tuple[float, float], end: tuple[float, float]) -> list[tuple[int, int]]:
    (x0, y0), (x1, y1) = begin, end
    count = max(round(max(abs(x1 - x0), abs(y1 - y0))), 1)
    return [
        (round(x0 + (x1 - x0) * n / count), round(y0 + (y1 - y0) * n / count))
        for n in range(count + 1)
    ]


def _axis(figure: Figure, width: int) -> str:
    cells = ["─"] * width
    end = 0
    for value in figure.places:
        text = figure.mark(value)
        column = round(figure.across.part(value) * (width - 1)) - len(text) // 2
        column = min(max(column, 0), width - len(text))
        if column >= end:
            cells[column : column + len(text)] = text
            end = column + len(text) + 1
    return "".join(cells)
