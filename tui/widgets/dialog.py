"""The base of every dialog: in front of the screen that it was opened from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from textual.await_complete import AwaitComplete
from textual.content import Content
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widgets import Static

from sysbench.tui.textual_patches import GuardedPalette

AMPLE = "-ample"
WIDTHS = [(0, "-slim"), (60, AMPLE)]


class Overlay(Screen[ScreenResultType]):
    """What opens in front of a screen. The screen around it stays as it is."""

    DEFAULT_CLASSES = AMPLE  # from the start: a class that comes later costs a layout

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        # The second click of two would close the screen below.
        if self.app.screen is not self:
            return AwaitComplete()
        return super().dismiss(result)


# The first base has the styles.


class Dialog(ModalScreen[ScreenResultType], Overlay[ScreenResultType]):
    """A dialog."""


class Palette(GuardedPalette, Overlay[Any]):
    """Textual's command palette."""


Pair = tuple[str, str]

DIALOG_WIDTH, DIALOG_EDGES = 76, 8
"""Cells of a dialog as app.tcss has it, and of them border, padding and scrollbar."""
DIALOG_SHARE = 0.96
"""Most of the screen's width that a dialog takes, as app.tcss has it."""


def dialog_room(screen_width: int) -> int:
    """Cells of a line in a dialog."""
    return min(int(screen_width * DIALOG_SHARE), DIALOG_WIDTH) - DIALOG_EDGES


def hanging(prefix: Content, text: str, width: int, style: str = "") -> list[Content]:
    """The text after its prefix, further lines indented under the first."""
    indent = len(prefix)
    lines = textwrap.wrap(text, max(width - indent, 12)) or [""]
    first = prefix + Content.styled(lines[0], style)
    return [first, *(Content(" " * indent) + Content.styled(line, style) for line in lines[1:])]


def pair_lines(pairs: Sequence[Pair], width: int) -> list[Content]:
    """One or more lines for each pair; all names as wide as the widest."""
    names = max((len(name) for name, _ in pairs), default=0)
    return [
        line
        for name, text in pairs
        for line in hanging(Content.styled(f"{name:<{names}}  ", "$foreground 60%"), text, width)
    ]


class Wrapped(Static):
    """Lines that are wrapped anew when the width changes."""

    _wrapped_to = 0

    def lines(self, width: int) -> Iterable[Content]:
        """The lines at that width."""
        raise NotImplementedError

    def on_resize(self) -> None:
        width = self.content_size.width
        if width != self._wrapped_to:  # shown again, it has the width that it had
            self._wrapped_to = width
            self.update(Content("\n").join(self.lines(width)))


class Facts(Wrapped):
    """A panel of pairs."""

    def __init__(self, title: str, pairs: Iterable[Pair], *, id: str | None = None) -> None:
        super().__init__(id=id, classes="panel", markup=False)
        self.border_title = title
        self.pairs = list(pairs)

    def lines(self, width: int) -> Iterable[Content]:
        return pair_lines(self.pairs, width)
