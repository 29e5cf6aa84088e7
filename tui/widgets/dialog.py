"""The base of every dialog: in front of the screen that it was opened from."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.segment import Segment
from textual.await_complete import AwaitComplete
from textual.command import CommandList, CommandPalette
from textual.css.styles import RulesMap
from textual.events import Click
from textual.geometry import Size
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual

AMPLE = "-ample"
WIDTHS = [(0, "-slim"), (60, AMPLE)]


class Overlay(Screen[ScreenResultType]):
    """What opens in front of a screen. The screen around it stays as it is."""

    DEFAULT_CLASSES = AMPLE  # from the start: a class that comes later costs a layout

    _behind: Behind | None = None

    def render(self) -> RenderableType:
        background = super().render()
        if isinstance(background, BackgroundScreen) and background.color.is_transparent:
            if self._behind is None:
                self._behind = Behind(background.screen)
                layouts = background.screen.screen_layout_refresh_signal
                layouts.subscribe(self, self._look_behind, immediate=True)
            return self._behind  # type: ignore[return-value]  # any visual will do
        return background

    def _look_behind(self, below: object) -> None:
        """Show the screen behind anew, which has another layout."""
        if self._behind is not None:
            self._behind.forget()
            self.refresh()

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        # The second click of two would close the screen below.
        if self.app.screen is not self:
            return AwaitComplete()
        return super().dismiss(result)

    def _screen_resized(self, size: Size) -> None:
        # Its first layout tells the dialog itself of its size, too: no reason for another one.
        if self._compositor.size != size:
            super()._screen_resized(size)


# The first base has the styles.


class Dialog(ModalScreen[ScreenResultType], Overlay[ScreenResultType]):
    """A dialog."""


class Palette(CommandPalette, Overlay[Any]):
    """Textual's command palette."""

    def _on_click(self, event: Click) -> None:  # type: ignore[override]  # as Textual's own
        # Textual asks what is there, and fails where the terminal has shrunk since.
        if not self.size.contains(event.screen_x, event.screen_y):
            event.prevent_default()

    def _action_command_list(self, action: str) -> None:
        # Textual's list fails where it has no room yet, or none at all.
        if any(commands.size for commands in self.query(CommandList)):
            super()._action_command_list(action)


class Behind(Visual):
    """A screen as it is, without what the mouse does on it.

    Textual takes it through Rich segment by segment, to tint it, and does so whenever the dialog
    is painted: half of the time in which one opens.
    """

    def __init__(self, screen: Screen[object]) -> None:
        self._screen = screen
        self._strips: list[Strip] = []

    def forget(self) -> None:
        """Take the screen as it is when it is shown next."""
        self._strips = []

    def render_strips(
        self, width: int, height: int | None, style: Style, options: RenderOptions
    ) -> list[Strip]:
        if not self._strips:
            self._strips = [
                Strip(
                    [Segment(text, look and look.clear_meta_and_links()) for text, look, _ in one],
                    one.cell_length,
                )
                for one in self._screen._compositor.render_strips()
            ]
        return self._strips

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:
        return self._screen.size.height
