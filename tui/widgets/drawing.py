"""Widgets that draw text for their current size, and the layout of such text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence

from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

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

    def __init__(
        self, draw: Draw | None = None, *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._draw: Draw = draw or (lambda width, height: Content(""))

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


Pair = tuple[str, str]
"""A name and its text."""


class Framed(Vertical):
    def __init__(
        self, title: str, hint: str = "", *, id: str | None = None, classes: str = "panel"
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.border_title, self.border_subtitle = Content(title), hint


class Facts(Folding):
    def __init__(self, title: str, pairs: Iterable[Pair], *, id: str | None = None) -> None:
        self.pairs = list(pairs)
        lines = wrap_lines(lambda width: pair_lines(self.pairs, width))
        super().__init__(lines, id=id, classes="panel")
        self.border_title = title


def wrap_lines(lines: Callable[[int], Iterable[Content]]) -> Draw:
    return lambda width, height: Content("\n").join(lines(width))


def first_fitting(lines: Iterable[Content], width: int) -> Content:
    """The first line that fits; else the last one."""
    for line in lines:
        if line.cell_length <= width:
            break
    return line


def hanging(prefix: Content, text: str, width: int, style: str = "") -> list[Content]:
    indent = len(prefix)
    lines = textwrap.wrap(text, max(width - indent, 12)) or [""]
    first = prefix + Content.styled(lines[0], style)
    return [first, *(Content(" " * indent) + Content.styled(line, style) for line in lines[1:])]


def pair_lines(pairs: Sequence[Pair], width: int) -> list[Content]:
    names = max((len(name) for name, _ in pairs), default=0)
    return [
        line
        for name, text in pairs
        for line in hanging(Content.styled(f"{name:<{names}}  ", "$foreground 60%"), text, width)
    ]
