"""A check box with its state in characters: ``[x] timing``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget


class Tick(Widget, can_focus=True):
    """On or off; enter, space or a click turn it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "turn", "Turn", show=False),
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
        """The box was turned."""

        tick: Tick

    def __init__(self, label: str) -> None:
        super().__init__(id=f"tick-{label}")
        self.label = label

    def render(self) -> Content:
        return Content.assemble(("[x] " if self.value else "[ ] ", "$accent"), self.label)

    def watch_value(self) -> None:
        self.post_message(self.Changed(self))

    def action_turn(self) -> None:
        self.value = not self.value

    def on_click(self) -> None:
        self.action_turn()
