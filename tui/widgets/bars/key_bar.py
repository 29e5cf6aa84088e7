"""The footer with the keys that work now."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

ShownKey = tuple[Binding, bool, str]

SPARE = ("mode('inspect')", "mode('studies')", "explain", "copy", "unfold", "mode('result')")
"""Actions whose keys are dropped first, in this order, for want of room; F1 lists them."""
LAST = ("help", "command_palette")
"""Actions that lead to all others; before their keys the rest is dropped, from its end on."""


class KeyBar(Footer):
    """The keys that fit. Rebuilt only when the keys change; Textual's own footer is rebuilt at
    each move of the focus."""

    def __init__(self, *, compact: bool) -> None:
        super().__init__(compact=compact)
        self._keys: list[ShownKey] = []

    def compose(self) -> ComposeResult:
        # Textual's keys are compact until they are mounted and ask the bar: each is then styled
        # two or three times. That of the palette never asks.
        for part in super().compose():
            if isinstance(part, FooterKey) and not part.has_class("-command-palette"):
                part.set_reactive(FooterKey.compact, self.compact)
                part.set_class(self.compact, "-compact")
            yield part

    async def recompose(self) -> None:
        await super().recompose()
        self._fit()

    def on_resize(self, event: Resize) -> None:
        self._fit()

    def _fit(self) -> None:
        """Hide spare keys until the others fit."""
        keys = list(self.query(FooterKey))
        excess = sum(map(_width, keys)) - self.size.width
        hidden: set[str] = set()
        rest = [_action(key) for key in reversed(keys)]
        for action in dict.fromkeys((*SPARE, *rest)):
            if excess > 0 and action not in LAST:
                hidden.add(action)
                excess -= sum(_width(key) for key in keys if _action(key) == action)
        for key in keys:
            key.display = _action(key) not in hidden

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


def _action(key: FooterKey) -> str:
    return key.action.removeprefix("app.")


def _width(key: FooterKey) -> int:
    return key.render().cell_len + key.gutter.width + key.styles.margin.width
