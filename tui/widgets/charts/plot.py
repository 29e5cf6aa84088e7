"""A line plot in braille with an axis and marks: few styles a row, so cheap over SSH."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from .traces import extent, line_rows


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

    COMPONENT_CLASSES: ClassVar[set[str]] = {"plot--axis", "plot--line", "plot--faded"}
    DEFAULT_CSS = """
    Plot {
        height: 1fr;
        min-height: 4;
        & > .plot--axis { color: $foreground 50%; }
        & > .plot--line { color: $accent; }
        & > .plot--faded { color: $foreground 45%; }
    }
    """

    def __init__(self, axis: Callable[[float], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._axis = axis
        self._values: Sequence[float] = ()
        self._marks: Sequence[tuple[int, str]] = ()
        self._split = 0
        self._floor: float | None = None
        self._rows: list[tuple[str, str]] = []
        self._border = 0
        self._drawn_for: Size | None = None

    def show(
        self,
        values: Sequence[float],
        *,
        marks: Sequence[tuple[int, str]] = (),
        split: int = 0,
        floor: float | None = None,
    ) -> None:
        """Draw this series. Marks are (index, label); ``floor`` fixes the lowest value."""
        self._values, self._marks, self._split, self._floor = values, marks, split, floor
        self._drawn_for = None
        self.refresh()

    def _draw(self) -> None:
        """Compute all rows once for this size; `render_line` only cuts them."""
        width, height = self._drawn_for = self.size
        self._rows = []
        if not self._values or width < 12 or height < 3:
            return
        low, high = extent(self._values)
        if self._floor is not None:
            low = self._floor
        tall = height - 1
        ticks = {
            row: self._axis(high - (high - low) * row / max(tall - 1, 1))
            for row in (0, tall // 2, tall - 1)
        }
        margin = max(map(len, ticks.values()))
        room = width - margin - 1
        per_column = max(len(self._values) - 1, 1)

        def column(index: int) -> int:
            return min(round(index / per_column * (room - 1)), room - 1)

        self._border = column(self._split) if self._split else 0
        for row, text in enumerate(line_rows(self._values, room, tall, low, high)):
            tick = ticks.get(row, "")
            self._rows.append((f"{tick:>{margin}}{'┤' if tick else '│'}", text))
        marks = mark_row([(column(index), label) for index, label in self._marks], room)
        self._rows.append((" " * margin + "╰", marks.replace(" ", "─")))

    def render_line(self, y: int) -> Strip:
        if self._drawn_for != self.size:
            self._draw()
        if y >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        axis, line, faded = (
            self.get_component_rich_style(f"plot--{name}") for name in ("axis", "line", "faded")
        )
        margin, text = self._rows[y]
        if y == len(self._rows) - 1:
            segments = [Segment(margin + text, axis)]
        else:
            cut = self._border
            segments = [
                Segment(margin, axis),
                Segment(text[:cut], faded),
                Segment(text[cut:], line),
            ]
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)
