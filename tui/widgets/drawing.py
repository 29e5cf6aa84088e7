"""Lines drawn to the room that they have."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

Draw = Callable[[int, int], Content]
"""Makes the content for so many columns and rows."""

ENOUGH = 999
"""Rows that no content lacks."""


class Drawing(Widget):
    """Draws when it is painted, and so always at its present size.

    A label that another widget fills has the room of the last layout: after a change of size,
    on a busy machine long after it, it is filled for a room that it no longer has.
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
        """Draw this from now on."""
        self._draw = draw
        self.refresh()

    def render(self) -> Content:
        width, height = self.content_size
        return self._draw(width, height) if width > 0 and height > 0 else Content("")


class Folding(Drawing):
    """As high as its content, or as the stylesheet allows: it draws less in fewer rows."""

    DEFAULT_CSS = """
    Folding {
        height: auto;
    }
    """

    def show(self, draw: Draw) -> None:
        """Draw this from now on, in as many rows as it takes."""
        super().show(draw)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        lines = str(self._draw(width, ENOUGH)) if width > 0 else ""
        return lines.count("\n") + 1 if lines else 0
