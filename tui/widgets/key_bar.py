"""Bars of one line: keys, tabs, views, the command, live devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, Leave, MouseDown, MouseMove
from textual.message import Message
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from sysbench.tui.live.sensors import StripState
from sysbench.tui.text import elapsed

SPARE = (
    "mode('machine')",
    "mode('inspect')",
    "mode('studies')",
    "explain",
    "copy",
    "unfold",
    "mode('result')",
)
"""Actions whose keys are dropped first, in this order; F1 lists them all."""
PALETTE = "command_palette"
LAST = ("quit", "help", PALETTE)
"""Actions whose keys are never dropped: help and the palette lead to all others."""
EDGE = "▏"
"""Mark before the palette's key at the right end."""


class ShownKey(NamedTuple):
    """An active key; ``key`` as Textual names it, ``name`` as users read it."""

    key: str
    name: str
    label: str
    action: str
    is_enabled: bool
    tooltip: str


class KeyBar(Widget, can_focus=False):
    """The active keys that fit on one line; a click presses one.

    Textual's footer would mount a widget for each key whenever the focus moves.
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
        if screen.app.app_focus and self.is_attached and screen is self.screen:
            self.keys = tuple(_keys_of(screen))

    def shown(self) -> list[tuple[int, ShownKey]]:
        """The keys that fit, each with its first column."""
        placed, column = [], 0
        for key in fit_keys(self.keys, self.size.width, self._width):
            if key.action == PALETTE:
                column = max(column, self.size.width - self._width(key))
            placed.append((column, key))
            column += self._width(key)
        return placed

    def _text(self, key: ShownKey) -> tuple[str, str]:
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
    seen: set[str] = set()
    last: dict[str, ShownKey] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        action = binding.action.removeprefix("app.")
        if not (binding.show or action == PALETTE) or action in seen:
            continue
        seen.add(action)
        key = ShownKey(
            binding.key,
            screen.app.get_key_display(binding),
            binding.description,
            action,
            active.enabled,
            active.tooltip or binding.tooltip or binding.description,
        )
        if action in LAST:
            last[action] = key
        else:
            yield key
    yield from (last[action] for action in LAST if action in last)


def fit_keys(
    keys: Sequence[ShownKey], room: int, width: Callable[[ShownKey], int]
) -> list[ShownKey]:
    """Drop keys until the rest fits into ``room`` cells, as measured by ``width``."""
    excess = sum(map(width, keys)) - room
    hidden: set[str] = set()
    for action in dict.fromkeys((*SPARE, *(key.action for key in reversed(keys)))):
        if excess > 0 and action not in LAST:
            hidden.add(action)
            excess -= sum(width(key) for key in keys if key.action == action)
    return [key for key in keys if key.action not in hidden]


class CommandLine(Static):
    def __init__(self, command: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id, classes="command", markup=False)
        self.command = command

    def on_mount(self) -> None:
        self.show(self.command)

    def show(self, command: str) -> None:
        self.command = command
        self.update(Content.assemble(("$ ", "$accent"), command))


KEYS = "1234567890"
"""Keys of the first tabs; further ones have none."""
MIN_NAME_LETTERS = 5
"""Letters that are left of a tab's name on a bar that has space for all but some letters."""
BEFORE, BEHIND = "‹", "›"
"""Marks of labels that do not fit."""


def tab_bindings(area: str, action: str, tabs: Mapping[str, str]) -> list[BindingType]:
    """Bind `KEYS` to an action with a tab's name; ``tabs`` says by name what each shows."""
    return [
        Binding(
            key, f"{action}('{name}')", name.title(), show=False, id=f"{area}.{name}", tooltip=about
        )
        for key, (name, about) in zip(KEYS, tabs.items(), strict=False)
    ]


class TabBar(Widget):
    """``[1 Summary] 2 Timing …``: the active tab in brackets; a click posts `Chosen`."""

    DEFAULT_CSS = """
    TabBar {
        height: 1;
        background: $panel 50%;
    }
    """

    active = reactive("")

    @dataclass
    class Chosen(Message):
        name: str

    def __init__(self, names: Sequence[str], order: Sequence[str] = ()) -> None:
        """Show tabs; those of ``order`` have the key of their place in it, also if not all show."""
        super().__init__()
        self.names = names
        self.order = order

    def _all_labels(self) -> list[tuple[str, str]]:
        """Every name with its label, with fewer blanks on a narrow bar."""
        letters = sum(map(len, self.names))
        room = (self.size.width - letters) // max(1, len(self.names))
        space, joint = (" " if room >= cells else "" for cells in (4, 3))
        labels = []
        for name in self.names:
            place = (self.order or self.names).index(name)
            label = f"{KEYS[place : place + 1]}{joint}{name.title()}"
            labels.append((name, f"[{label}]" if name == self.active else f" {label}{space}"))
        return self._with_shorter_name(labels)

    def _with_shorter_name(self, labels: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Cut the longest name that is not shown, if all labels fit then."""
        others = [name for name in self.names if name != self.active]
        longest = max(others, key=len, default="")
        excess = _width(labels) - self.size.width
        if not 0 < excess <= len(longest) - MIN_NAME_LETTERS:
            return labels
        return [(name, label[:-excess] if name == longest else label) for name, label in labels]

    def _labels(self) -> list[tuple[str, str]]:
        """The labels that fit, always with the active one; drops those before it first."""
        labels = self._all_labels()
        if _width(labels) <= self.size.width:
            return labels
        active = [*self.names].index(self.active) if self.active in self.names else 0
        room = self.size.width - 1
        first, last = 0, len(labels)
        while first < active and _width(labels[first : active + 1]) > room:
            first += 1
        while last > active + 1 and _width(labels[first:last]) > room:
            last -= 1
        shown = labels[first:last]
        if first and first < active:
            shown[0] = (shown[0][0], BEFORE + shown[0][1][1:])
        return shown

    def render(self) -> Content:
        labels = self._labels()
        content = Content.assemble(
            *(
                (label, "bold $accent on $accent 20%" if name == self.active else "$foreground 60%")
                for name, label in labels
            )
        )
        if labels and labels[-1][0] != self.names[-1]:
            content = content.append(Content.styled(BEHIND, "$foreground 60%"))
        return content

    def on_click(self, event: Click) -> None:
        begin = 0
        for name, label in self._labels():
            if begin <= event.x < begin + len(label):
                self.post_message(self.Chosen(name))
            begin += len(label)


class ViewBar(TabBar):
    """``[Table] Tree …``: a tab bar without numbers."""

    def _all_labels(self) -> list[tuple[str, str]]:
        return [
            (name, f"[{name.title()}]" if name == self.active else f" {name.title()} ")
            for name in self.names
        ]


def _width(labels: list[tuple[str, str]]) -> int:
    """Cells of the labels without the trailing blank."""
    return len("".join(label for _, label in labels).rstrip())


def next_name(names: Sequence[str], name: str) -> str:
    return names[(names.index(name) + 1) % len(names)]


SEPARATOR = " │ "


class LiveStrip(Widget):
    """The live run, if any, then devices and host; drops parts from the right."""

    DEFAULT_CSS = """
    LiveStrip {
        dock: top;
        height: 1;
        background: $panel;
        color: $foreground 80%;
    }
    """

    def __init__(self, state: StripState) -> None:
        super().__init__()
        self.state = state
        self._painted = Content("")

    def paint(self) -> None:
        if self._content() != self._painted:
            self.refresh()

    def render(self) -> Content:
        self._painted = self._content()
        return self._painted

    def _content(self) -> Content:
        room = self.size.width - 1
        pieces: list[Content] = []
        live = self._live_part()
        used = 0
        for number, text in enumerate([*live, *self.state.parts()]):
            width = len(text) + (len(SEPARATOR) if pieces else 0)
            if used + width > room:
                break
            used += width
            if pieces:
                pieces.append(Content.styled(SEPARATOR, "$border-blurred"))
            style = "$accent bold" if number < len(live) else ""
            pieces.append(Content.styled(text, style))
        return Content(" ") + Content("").join(pieces)

    def _live_part(self) -> list[str]:
        watch = self.state.watch
        if watch is None or watch.over:
            return []
        view = watch.view
        doing = "" if view.is_job else view.current or "starting"
        where = " ".join(filter(None, (doing, view.round_text, elapsed(watch.seconds))))
        return [f"● {view.spec.get('model', 'run')} {where}"]
