"""A question with a few answers, one key each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Key
from textual.widgets import Button, Static

from sysbench.tui.widgets.dialog import Dialog


class Answer(NamedTuple):
    """One answer: the value that the screen dismisses with, its text, its key."""

    name: str
    label: str
    key: str


class AskScreen(Dialog[str]):
    """Dismisses with the name of the answer; escape gives the last one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, text: str, answers: Sequence[Answer]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self.answers = answers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            yield Static(self._text, markup=False)
            with Horizontal(classes="buttons"):
                for answer in self.answers:
                    key = "esc" if answer.key == "escape" else answer.key
                    yield Button(f"{answer.label} ({key})", id=answer.name, compact=True)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id)

    def on_key(self, event: Key) -> None:
        for answer in self.answers:
            if event.key == answer.key:
                event.stop()
                self.dismiss(answer.name)


def ask_before_leaving() -> AskScreen:
    """Ask what to do with the live run; dismisses with ``leave``, ``stop`` or ``stay``."""
    text = (
        "It lives in its own process: leaving does not end it. "
        "Start sysbench-tui again to watch it."
    )
    answers = (
        Answer("leave", "Leave it running", "l"),
        Answer("stop", "Stop it", "s"),
        Answer("stay", "Stay", "escape"),
    )
    return AskScreen("A run is live", text, answers)


def ask_before_queueing() -> AskScreen:
    """Ask whether a run shall wait for the live one; dismisses with ``queue`` or ``stay``."""
    text = "This one can wait for the device, and begins when it is free."
    answers = (Answer("queue", "Queue it", "q"), Answer("stay", "Do not start", "escape"))
    return AskScreen("A run is live", text, answers)


def ask_before_stopping() -> AskScreen:
    """Ask whether to end the live run; dismisses with ``stop`` or ``stay``."""
    text = "What it measured so far is kept; the run ends as cancelled."
    answers = (Answer("stop", "Stop it", "s"), Answer("stay", "Let it run", "escape"))
    return AskScreen("Stop the run?", text, answers)
