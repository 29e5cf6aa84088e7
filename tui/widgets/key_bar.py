"""The footer with the keys that work now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from textual.content import Content
from textual.events import Leave, MouseDown, MouseMove
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget

SPARE = ("mode('inspect')", "mode('studies')", "explain", "copy", "unfold", "mode('result')")
"""Actions whose keys are dropped first, in this order, for want of room; F1 lists them."""
PALETTE = "command_palette"
LAST = ("help", PALETTE)
"""Actions that lead to all others; before their keys the rest is dropped, from its end on."""
EDGE = "▏"
"""Before the key of the palette, which stands at the right end."""


class ShownKey(NamedTuple):
    """A key that works now: as it is pressed, as it is written, and what it does."""

    key: str
    name: str
    label: str
    action: str
    is_enabled: bool
    tooltip: str


class KeyBar(Widget, can_focus=False):
    """The keys that fit, on one line; a click presses one.

    Textual's own footer mounts a widget for each key at each move of the focus.

    Attributes:
        keys: All keys, the palette's last.
        pointed: The key under the mouse.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyBar {
        dock: bottom;
        height: 1;
        background: $panel;
        &:hover {
            pointer: pointer;
        }
        &.-covered {
            text-opacity: 40%;
        }
    }
    """

    compact = reactive(False)
    keys: reactive[tuple[ShownKey, ...]] = reactive(())
    pointed: reactive[ShownKey | None] = reactive(None)

    def __init__(self, *, compact: bool) -> None:
        super().__init__()
        self.set_reactive(KeyBar.compact, compact)

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self.bindings_changed)

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Take the keys of what has the focus now."""
        if screen.app.app_focus and self.is_attached and screen is self.screen:
            self.keys = tuple(_keys_of(screen))

    def shown(self) -> list[tuple[int, ShownKey]]:
        """The keys that fit, each with its first column."""
        placed, column = [], 0
        for key in fitting(self.keys, self.size.width, self._width):
            if key.action == PALETTE:
                column = max(column, self.size.width - self._width(key))
            placed.append((column, key))
            column += self._width(key)
        return placed

    def _text(self, key: ShownKey) -> tuple[str, str]:
        """The key's name and label with the blanks around them."""
        if key.action == PALETTE:
            return f"{EDGE}{key.name}", f" {key.label} "
        return (key.name, f" {key.label} ") if self.compact else (f" {key.name} ", f"{key.label} ")

    def _width(self, key: ShownKey) -> int:
        return Content("".join(self._text(key))).cell_length

    def render(self) -> Content:
        pieces: list[str | Content | tuple[str, str]] = []
        column = 0
        for begin, key in self.shown():
            name, label = self._text(key)
            pieces.append(" " * (begin - column))
            if key.action == PALETTE:
                pieces.append((EDGE, "$foreground 20%"))
                name = name.removeprefix(EDGE)
            pieces += [(name, self._style(key, "bold $footer-key-foreground"))]
            pieces += [(label, self._style(key, "$footer-description-foreground"))]
            column = begin + self._width(key)
        return Content.assemble(*pieces)

    def _style(self, key: ShownKey, style: str) -> str:
        if key is self.pointed:
            style = f"{style} on $block-hover-background"
        return style if key.is_enabled else f"dim {style}"

    def _at(self, column: int) -> ShownKey | None:
        return next(
            (key for begin, key in self.shown() if begin <= column < begin + self._width(key)), None
        )

    def on_mouse_move(self, event: MouseMove) -> None:
        self.pointed = self._at(event.x)

    def on_leave(self, event: Leave) -> None:
        self.pointed = None

    def watch_pointed(self, pointed: ShownKey | None) -> None:
        self.tooltip = pointed.tooltip if pointed else None

    def on_mouse_down(self, event: MouseDown) -> None:
        key = self._at(event.x)
        if key is not None and key.is_enabled:
            self.app.simulate_key(key.key)
        elif key is not None:
            self.app.bell()


def _keys_of(screen: Screen[Any]) -> Iterator[ShownKey]:
    """The first key of each action that has one to show; the palette's comes last."""
    seen: set[str] = set()
    palette = None
    for one in screen.active_bindings.values():
        binding = one.binding
        action = binding.action.removeprefix("app.")
        if not (binding.show or action == PALETTE) or action in seen:
            continue
        seen.add(action)
        key = ShownKey(
            binding.key,
            screen.app.get_key_display(binding),
            binding.description,
            action,
            one.enabled,
            one.tooltip or binding.tooltip or binding.description,
        )
        if action == PALETTE:
            palette = key
        else:
            yield key
    if palette is not None:
        yield palette


def fitting(
    keys: Sequence[ShownKey], room: int, width: Callable[[ShownKey], int]
) -> list[ShownKey]:
    """The keys without the spare ones that have no room.

    Args:
        room: Cells of the bar.
        width: Gives the cells of a key.
    """
    excess = sum(map(width, keys)) - room
    hidden: set[str] = set()
    for action in dict.fromkeys((*SPARE, *(key.action for key in reversed(keys)))):
        if excess > 0 and action not in LAST:
            hidden.add(action)
            excess -= sum(width(key) for key in keys if key.action == action)
    return [key for key in keys if key.action not in hidden]
