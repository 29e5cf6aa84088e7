"""A line plot in braille with an axis and marks: few styles a row, so cheap over SSH."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import ClassVar

from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from sysbench.tui.widgets.traces import extent, line_rows


def mark_row(marks: Sequence[tuple[int, str]], width: int) -> str:
    """Labels at their columns, ``│label``; a label stops where the next one begins."""
    row = [" "] * width
    ends = [*(column for column, _ in marks[1:]), width]
    for (column, label), end in zip(marks, ends, strict=False):
        if 0 <= column < width:
            text = f"│{label}"[: max(1, min(end, width) - column)]
            row[column : column + len(text)] = text
    return "".join(row)[:width]


class Plot(Widget):
    """One series over its index. The first ``split`` values are drawn faded."""

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
        """Columns of the series when it was drawn last."""
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
        """Draw this series.

        Args:
            values: In their order.
            marks: Index and label.
            split: Values at the beginning that are faded.
            floor: The lowest value of the axis.
            level: A value to compare with, drawn as a line with its label.
            cursor: Index of a value to point at.
            axis: Words of a value on the axis, from now on.
        """
        self._values, self._marks, self._split, self._floor = values, marks, split, floor
        self._level, self._cursor, self._axis = level, cursor, axis or self._axis
        self._drawn_for = None
        self.refresh()

    def _draw(self) -> None:
        """Compute all rows once for this size; `render_line` only cuts them."""
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
    """A line through a row of the series, with its label where nothing of the series is."""
    blank = " " * len(label)
    place = row.rfind(blank, 0, len(row) - 1)
    drawn = "┄" * len(row)
    return drawn if place < 0 else f"{drawn[:place]}{label}{drawn[place + len(label) :]}"


def _joined(cells: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one look as one text: few changes of style a row."""
    return [
        ("".join(text for text, _ in group), look)
        for look, group in groupby(cells, key=lambda cell: cell[1])
    ]
