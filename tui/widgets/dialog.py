"""The base of every dialog: in front of the screen that it was opened from."""

from __future__ import annotations

from typing import Any

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, Screen, ScreenResultType

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
