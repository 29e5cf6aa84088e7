"""Keys that arrive in one write are handled in order."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Event, Key
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList

from sysbench.tui.keys import KeyQueue
from tests.tui.conftest import until
from tests.tui.emulated import Emulated

TAB, ENTER, BACKSPACE = b"\t", b"\r", b"\x7f"


def test_fields_are_filled_in_one_write(emulated: Emulated) -> None:
    emulated.wait_for("memory limit")
    emulated.program.press(TAB + 3 * BACKSPACE + b"512" + TAB + b"64")
    emulated.wait_for("│ batch         512 ")
    emulated.wait_for("│ context       64 ")
    emulated.wait_for("batch=512 context=64")


def test_a_list_takes_what_is_typed_while_it_opens(emulated: Emulated) -> None:
    emulated.wait_for("memory limit")
    emulated.program.press(ENTER + b"2.7" + ENTER)
    emulated.wait_for("$ sysbench-tui run cs336-2025/2.7B")


class Slow(OptionList):
    gate: ClassVar[asyncio.Event | None] = None

    def action_select(self) -> None:
        parent = self.parent
        assert isinstance(parent, Vertical)
        # The message about the choice has to wait there.
        parent.call_next(self.gate.wait if self.gate else partial(asyncio.sleep, 0.1))
        super().action_select()


class Question(ModalScreen[None]):
    def compose(self) -> ComposeResult:
        with Vertical():
            yield Slow("yes")

    def on_option_list_option_selected(self) -> None:
        self.dismiss()


class Asking(App[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f8", "ask", "Ask")]

    def __init__(self) -> None:
        super().__init__()
        self.keys = KeyQueue(self)

    def compose(self) -> ComposeResult:
        yield Input()

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key) and not event.is_forwarded:
            await self.keys.pass_on(event, super().on_event)
        else:
            await super().on_event(event)

    def action_ask(self) -> None:
        self.push_screen(Question())


async def test_a_key_after_a_dialog_is_for_the_screen_behind_it() -> None:
    app = Asking()
    async with app.run_test() as pilot:
        for key in ("f8", "enter", "x"):
            app.post_message(Key(key, key if key == "x" else None))
        await until(pilot, lambda: app.screen_stack[0].query_one(Input).value == "x")


async def test_a_key_waits_for_a_screen_that_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose processors are busy: it went to the screen that was still there."""
    gate = asyncio.Event()
    monkeypatch.setattr(Slow, "gate", gate)
    monkeypatch.setattr("sysbench.tui.keys.ANSWER_SECONDS", 0.0)
    app = Asking()
    async with app.run_test() as pilot:
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, Question))
        app.post_message(Key("enter", None))
        await asyncio.sleep(0.05)
        app.post_message(Key("x", "x"))
        await asyncio.sleep(0.05)
        gate.set()
        await until(pilot, lambda: app.screen_stack[0].query_one(Input).value == "x")
