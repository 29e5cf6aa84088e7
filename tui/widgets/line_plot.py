"""A figure of a study on the screen."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from sysbench.core.tables.chart import Figure
from sysbench.tui.theme import rich_colour, swatch
from sysbench.tui.widgets.line_drawing import Span, figure_rows


class LinePlot(Widget):
    """Shows a `Figure`. Letters distinguish its lines; colour only helps."""

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
        """Draw this figure from now on."""
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
