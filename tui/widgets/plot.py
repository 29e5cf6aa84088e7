"""Charts, and line plots in braille; few styles per row, so cheap over SSH."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from sysbench.core.tables.cells import literal
from sysbench.core.tables.timing_tables import Figure, Series
from sysbench.tui.theme import rich_colour, swatch
from sysbench.tui.widgets.traces import (
    DOTS_ACROSS,
    DOTS_DOWN,
    GAP,
    LETTERS,
    Canvas,
    Span,
    add_axes,
    centre,
    extent,
    flow_entries,
    join_spans,
    line_rows,
    mark_row,
    place_labels,
)

KINDS = ("axis", "line", "faded", "level", "cursor", "point", "text")


class Chart(Widget):
    """Rows of spans, drawn again when the content or the size changes.

    The kind of a span is one of `KINDS`, a colour such as ``$hue-sky`` or ``$hue-sky dim``, or
    empty.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"chart--{kind}" for kind in KINDS}
    DEFAULT_CSS = """
    Chart {
        height: 1fr;
        min-height: 6;
        & > .chart--axis { color: $foreground 50%; }
        & > .chart--line { color: $accent; }
        & > .chart--faded { color: $foreground 45%; }
        & > .chart--level { color: $warning; }
        & > .chart--cursor { color: $foreground; text-style: bold; }
        & > .chart--point { color: $accent; text-style: bold; }
        & > .chart--text { color: $foreground; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[list[Span]] = []
        self._drawn_for: Size | None = None

    def draw(self, width: int, height: int) -> list[list[Span]]:
        raise NotImplementedError

    def redraw(self) -> None:
        self._drawn_for = None
        self.refresh()

    def render_line(self, y: int) -> Strip:
        if self._drawn_for != self.size:
            self._drawn_for = self.size
            self._rows = self.draw(*self.size)
        spans = self._rows[y] if y < len(self._rows) else []
        own = self.rich_style  # computed at each access
        styles = {kind: self.style_of(kind, own) for kind in {kind for _, kind in spans}}
        segments = [Segment(text, styles[kind]) for text, kind in spans]
        return Strip(segments).adjust_cell_length(self.size.width, own)

    def style_of(self, kind: str, own: Style) -> Style:
        if kind in KINDS:
            return self.get_component_rich_style(f"chart--{kind}")
        colour, _, dim = kind.partition(" ")
        named = rich_colour(self.app, colour) if colour else None
        return own + Style(color=named, dim=bool(dim) or None)


class Plot(Chart):
    """Plots one series over its index; the first ``split`` values are faded."""

    DEFAULT_CSS = "Plot { min-height: 4; }"

    def __init__(self, axis: Callable[[float], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._axis = axis
        self._values: Sequence[float] = ()
        self._marks: Sequence[tuple[int, str]] = ()
        self._split = 0
        self._floor: float | None = None
        self._level: tuple[float, str] | None = None
        self._cursor: int | None = None
        self.room = 0
        """Columns of the series in the last drawing."""

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
        self._values, self._marks, self._split, self._floor = values, marks, split, floor
        self._level, self._cursor, self._axis = level, cursor, axis or self._axis
        self.redraw()

    def draw(self, width: int, height: int) -> list[list[Span]]:
        self.room = 0
        if not self._values or width < 12 or height < 3:
            return []
        low, high = extent([*self._values, *([self._level[0]] if self._level else [])])
        if self._floor is not None:
            low = self._floor
        tall = height - 1
        ticks = {
            row: self._axis(high - (high - low) * row / max(tall - 1, 1))
            for row in (0, tall // 2, tall - 1)
        }
        self.room = room = width - max(map(len, ticks.values())) - 1
        per_column = max(len(self._values) - 1, 1)

        def column(index: int) -> int:
            return min(round(index / per_column * (room - 1)), room - 1)

        border = column(self._split) if self._split else 0
        cursor = None if self._cursor is None else column(self._cursor)
        level_row = -1
        if self._level:
            level_row = min(int((high - self._level[0]) / (high - low) * tall), tall - 1)
        rows = []
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
            rows.append(join_spans(cells))
        marks = mark_row([(column(index), label) for index, label in self._marks], room)
        return add_axes(rows, ticks, axis_spans(marks, cursor), "axis")


def axis_spans(marks: str, cursor: int | None) -> list[Span]:
    cells = [(char, "axis") for char in marks.replace(" ", "─")]
    if cursor is not None:
        cells[cursor] = ("▲", "cursor")
    return join_spans(cells)


def _level_row(row: str, label: str) -> str:
    """A dashed row with a label where the series leaves space."""
    blank = " " * len(label)
    place = row.rfind(blank, 0, len(row) - 1)
    drawn = "┄" * len(row)
    return drawn if place < 0 else f"{drawn[:place]}{label}{drawn[place + len(label) :]}"


class LinePlot(Chart):
    """Shows a `Figure`. Letters distinguish its lines, so that colour is not needed."""

    figure: Figure | None = None

    def show(self, figure: Figure | None) -> None:
        if figure != self.figure:
            self.figure = figure
            self.redraw()

    def draw(self, width: int, height: int) -> list[list[Span]]:
        return figure_rows(self.figure, width, height)


MIN_WIDTH, MIN_HEIGHT = 24, 5
SIDE_FROM, SIDE_WIDTH = 90, 34
TICKS = 5
NO_AXIS = "Nothing to plot: the only axis is not numeric."
NO_VALUES = "Nothing to plot: no finished cells."


def figure_rows(figure: Figure | None, width: int, height: int) -> list[list[Span]]:
    """Title, plot with its axes, legend: at most ``height`` rows of at most ``width`` cells."""
    if figure is None or not figure.drawn:
        reason = NO_AXIS if figure is None else NO_VALUES
        lines = textwrap.wrap(reason, max(width, 1))
        return [[(line, "")] for line in lines[:height]]
    drawn = figure.drawn[: len(LETTERS)]
    head: list[list[Span]] = [[(literal(figure.title)[:width], "")]]
    has_side_legend = width >= SIDE_FROM
    room = min(SIDE_WIDTH - len(GAP[0]), width)
    legend = [_entry(index, series, figure, room) for index, series in enumerate(drawn)]
    below = [] if has_side_legend else flow_entries(legend, width, max(1, height // 4))
    wide = width - (SIDE_WIDTH if has_side_legend else 0)
    tall = height - len(head) - len(below)
    if wide < MIN_WIDTH or tall < MIN_HEIGHT:
        return [*head, *flow_entries(legend, width, height - 1)][:height]
    rows = _plot(figure, drawn, wide, tall)
    if has_side_legend:
        for row, entry in zip(rows, legend, strict=False):
            row += [GAP, *entry]
    return [*head, *rows, *below]


def _entry(index: int, series: Series, figure: Figure, room: int) -> list[Span]:
    """``a small 66.90 ms``: letter, name, last value."""
    name, value = literal(series.name), figure.words(series.known[-1][1])
    left = max(room - cell_len(value) - 3, 0)
    words = f" {set_cell_size(name, min(cell_len(name), left))} {value}"
    text = set_cell_size(words, min(cell_len(words), room - 1))
    return [(LETTERS[index], swatch(index).colour), (text, "")]


def _plot(figure: Figure, drawn: Sequence[Series], width: int, height: int) -> list[list[Span]]:
    up, across = figure.up, figure.across
    ticks = {value: figure.tick(value) for value in up.ticks(min(TICKS, height // 2))}
    canvas = Canvas(width - max(map(len, ticks.values())) - 1, height - 1)
    _draw_lines(canvas, figure, drawn)
    labels = {round((1 - up.part(value)) * (canvas.height - 1)): t for value, t in ticks.items()}

    def marks() -> Iterator[tuple[int, str]]:
        for value in figure.places:
            text = figure.mark(value)
            yield centre(round(across.part(value) * (canvas.width - 1)), text, canvas.width), text

    return add_axes(canvas.rows(), labels, [(place_labels(marks(), canvas.width), "")], "")


def _draw_lines(canvas: Canvas, figure: Figure, drawn: Sequence[Series]) -> None:
    def place(x: float, y: float) -> tuple[float, float]:
        right = figure.across.part(x) * (canvas.width * DOTS_ACROSS - 1)
        return right, (1 - figure.up.part(y)) * (canvas.height * DOTS_DOWN - 1)

    for index, series in enumerate(drawn):
        for piece in series.pieces:
            for begin, end in pairwise(place(*point) for point in piece):
                for column, row in _between(begin, end):
                    canvas.dot(column, row, swatch(index).colour)
    # Backwards, so that the letters of the first line are on top.
    for index, series in reversed(list(enumerate(drawn))):
        for right, down in (place(*point) for point in series.known):
            cell = (LETTERS[index], swatch(index).colour)
            canvas.cells[round(down) // DOTS_DOWN][round(right) // DOTS_ACROSS] = cell


def _between(begin: tuple[float, float], end: tuple[float, float]) -> list[tuple[int, int]]:
    (x0, y0), (x1, y1) = begin, end
    count = max(round(max(abs(x1 - x0), abs(y1 - y0))), 1)
    return [
        (round(x0 + (x1 - x0) * n / count), round(y0 + (y1 - y0) * n / count))
        for n in range(count + 1)
    ]
