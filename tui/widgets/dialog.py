"""Base classes of the dialogs, and text layout of dialogs and panels."""

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
    """Base class of everything that opens in front of a screen."""

    DEFAULT_CLASSES = AMPLE  # from the start, as adding the class later costs a layout

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        # The second of two clicks would close the screen below.
        if self.app.screen is not self:
            return AwaitComplete()
        return super().dismiss(result)


class Dialog(ModalScreen[ScreenResultType], Overlay[ScreenResultType]):
    """Base class of the dialogs; `ModalScreen` comes first for its styles."""


class Palette(GuardedPalette, Overlay[Any]):
    """Textual's command palette."""


Pair = tuple[str, str]

DIALOG_WIDTH, DIALOG_EDGES = 76, 8
"""Width of a dialog in app.tcss; cells of border, padding and scrollbar."""
DIALOG_SHARE = 0.96
"""Maximum share of the screen's width in app.tcss."""


def dialog_room(screen_width: int) -> int:
    return min(int(screen_width * DIALOG_SHARE), DIALOG_WIDTH) - DIALOG_EDGES


def hanging(prefix: Content, text: str, width: int, style: str = "") -> list[Content]:
    """Wrap text after a prefix with a hanging indent."""
    indent = len(prefix)
    lines = textwrap.wrap(text, max(width - indent, 12)) or [""]
    first = prefix + Content.styled(lines[0], style)
    return [first, *(Content(" " * indent) + Content.styled(line, style) for line in lines[1:])]


def pair_lines(pairs: Sequence[Pair], width: int) -> list[Content]:
    """Wrap the texts in a column to the right of the names."""
    names = max((len(name) for name, _ in pairs), default=0)
    return [
        line
        for name, text in pairs
        for line in hanging(Content.styled(f"{name:<{names}}  ", "$foreground 60%"), text, width)
    ]


class Wrapped(Static):
    """Wraps its lines again when the width changes."""

    _wrapped_to = 0

    def lines(self, width: int) -> Iterable[Content]:
        raise NotImplementedError

    def on_resize(self) -> None:
        width = self.content_size.width
        if width != self._wrapped_to:
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
