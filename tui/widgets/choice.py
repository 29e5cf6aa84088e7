"""Inputs of the forms: choice from a list, tick box, completion of paths and settings.

`Choice` is one widget; Textual's `Select` is seven, and the form must appear quickly.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.reactive import reactive
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from sysbench.core.spec.fields import FIELDS, field_named
from sysbench.core.spec.models import parameters_of_models
from sysbench.tui.widgets.dialog import Dialog
from sysbench.tui.widgets.drawing import Framed


class Options(OptionList):
    """`OptionList` without the error of Textual when paging an invisible list."""

    def action_page_up(self) -> None:
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]


Named = tuple[str, str]
"""The text of a choice, and its value."""


class ChoiceScreen(Dialog[str]):
    def __init__(self, title: str, choices: Sequence[Named], value: str) -> None:
        super().__init__()
        self._title, self._choices, self._value = title, choices, value
        self._typed = ""

    def compose(self) -> ComposeResult:
        with Framed(self._title, "type to find, enter selects, esc cancels", classes="dialog"):
            yield Options(*(Option(Content(label), id=None) for label, _ in self._choices))

    def on_mount(self) -> None:
        values = [value for _, value in self._choices]
        self.query_one(OptionList).highlighted = values.index(self._value)

    def on_key(self, event: Key) -> None:
        """Highlight the choice with the letters typed so far, else with this letter."""
        if not event.is_printable or not event.character or event.character == " ":
            return
        event.stop()
        options = self.query_one(OptionList)
        for typed in (self._typed + event.character, event.character):
            index = _first_with(typed, self._choices)
            if index is not None:
                self._typed, options.highlighted = typed, index
                return
        self._typed = ""

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index][1])


def _first_with(typed: str, choices: Sequence[Named]) -> int | None:
    labels = [label.lower() for label, _ in choices]
    begin = (index for index, label in enumerate(labels) if label.startswith(typed.lower()))
    within = (index for index, label in enumerate(labels) if typed.lower() in label)
    return next(begin, next(within, None))


class Choice(Widget, can_focus=True):
    """Shows the label of one value; left and right change it, enter opens the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", "Previous choice", show=False),
        Binding("right", "turn(1)", "Next choice", show=False),
        Binding("enter,space", "open", "All choices", show=False),
    ]
    DEFAULT_CSS = """
    Choice {
        height: 1;
        padding: 0 1;
        background: $field;
        &:focus { background: $field-focus; }
        &:hover { background: $panel; }
    }
    """

    value: reactive[str] = reactive("", init=False)

    @dataclass
    class Changed(Message):
        choice: Choice

    def __init__(self, title: str, choices: Sequence[Named], value: str, *, id: str) -> None:
        super().__init__(id=id)
        self.title = title
        self.choices = choices
        self.set_reactive(Choice.value, value)

    def render(self) -> Content:
        label = next(label for label, value in self.choices if value == self.value)
        room = max(self.content_size.width - 2, 1)
        if len(label) > room:
            # Drop the figure after a name as a whole: half of it is another figure.
            label = label.split("  ")[0][:room]
        return Content(label.ljust(room)) + Content.styled(" ▾", "$foreground 50%")

    def watch_value(self) -> None:
        self.post_message(self.Changed(self))

    def action_turn(self, by: int) -> None:
        values = [value for _, value in self.choices]
        self.value = values[(values.index(self.value) + by) % len(values)]

    def action_open(self) -> None:
        def picked(value: str | None) -> None:
            if value is not None:
                self.value = value

        self.app.push_screen(ChoiceScreen(self.title, self.choices, self.value), picked)

    def on_click(self) -> None:
        self.action_open()


MAX_NAMES = 10_000
"""Entries of a folder that are read."""


class Completer(Suggester):
    def __init__(self, complete: Callable[[str], str | None]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(self._complete, value)


def path_box(placeholder: str, *, id: str | None = None) -> Input:
    return Input(placeholder=placeholder, compact=True, id=id, suggester=Completer(complete_path))


def complete_path(text: str) -> str | None:
    """Complete a path with the first matching name; None if there is none.

    Folders end in a slash; hidden names need their dot.
    """
    folder, _, begun = text.rpartition("/")
    if not begun:
        return None
    place = os.path.expanduser(folder + "/") if "/" in text else "."
    fitting = []
    try:
        with os.scandir(place) as entries:
            for _, entry in zip(range(MAX_NAMES), entries, strict=False):
                if entry.name.startswith(begun) and entry.name.isprintable():
                    fitting.append(entry.name + "/" * entry.is_dir())
    except (OSError, ValueError):  # ValueError: a zero byte
        return None
    first = min(fitting, default=None)
    return None if first is None else text + first[len(begun) :]


def complete_setting(text: str) -> str | None:
    """Complete the last setting: its key, then its value if there is a list of choices."""
    _, _, last = text.rpartition(" ")
    key, equals, begun = last.partition("=")
    if not last:
        return None
    if not equals:
        names = [f"{field.name}=" for field in FIELDS if field.name.startswith(key)]
        return text + names[0][len(key) :] if names else None
    known = [field for field in FIELDS if field.name == key]
    if not known:
        return None
    choices = list(parameters_of_models()) if key == "model" else list(field_named(key).choices)
    fitting = [choice for choice in choices if choice.startswith(begun)]
    return text + fitting[0][len(begun) :] if fitting else None


class Tick(Widget, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "turn", "Toggle", show=False),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]
    DEFAULT_CSS = """
    Tick {
        width: auto;
        height: 1;
        &:focus { background: $field-focus; }
    }
    """

    value = reactive(True)

    @dataclass
    class Changed(Message):
        tick: Tick

    def __init__(self, label: str, value: bool = True) -> None:
        super().__init__(id=f"tick-{label}")
        self.label = label
        self.set_reactive(Tick.value, value)

    def render(self) -> Content:
        return Content.assemble(("[x] " if self.value else "[ ] ", "$accent"), self.label)

    def watch_value(self) -> None:
        self.post_message(self.Changed(self))

    def action_turn(self) -> None:
        self.value = not self.value

    def on_click(self) -> None:
        self.action_turn()
