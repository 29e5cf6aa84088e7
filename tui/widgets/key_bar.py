"""The footer with the keys that work now."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

ShownKey = tuple[Binding, bool, str]


class KeyBar(Footer):
    """Built anew only when it has other keys to show: Textual's own footer is each time that
    the focus moves.

    Keys of the ``spare`` actions have a class of that name: a screen may lack the room.
    """

    spare: ClassVar[tuple[str, ...]] = ("mode('studies')", "mode('inspect')")

    def __init__(self, *, compact: bool) -> None:
        super().__init__(compact=compact)
        self._keys: list[ShownKey] = []

    def compose(self) -> ComposeResult:
        for widget in super().compose():
            if isinstance(widget, FooterKey) and widget.action.removeprefix("app.") in self.spare:
                widget.add_class("-spare")
            yield widget

    def bindings_changed(self, screen: Screen[Any]) -> None:
        if not screen.app.app_focus:
            return
        keys = [
            (binding, enabled, tooltip)
            for _, binding, enabled, tooltip in screen.active_bindings.values()
            if binding.show or binding.system
        ]
        if keys != self._keys:
            self._keys = keys
            super().bindings_changed(screen)
