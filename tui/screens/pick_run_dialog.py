"""Dialog that asks for another run, with a filter over the library's rows."""

from __future__ import annotations

from collections.abc import Callable

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sysbench.core.runs.library import Entry, Library
from sysbench.tui.screens.profiles_dialog import CANCEL
from sysbench.tui.text import amount, day_and_time, milliseconds
from sysbench.tui.widgets.dialog import Dialog
from sysbench.tui.widgets.options import Options

MOST = 200


class PickRunScreen(Dialog[str]):
    """Lists runs, the newest first; dismisses with the id of the chosen one."""

    BINDINGS = CANCEL

    def __init__(self, title: str, wanted: Callable[[Entry], bool]) -> None:
        super().__init__()
        self._title = title
        self._entries = [entry for entry in Library().entries() if wanted(entry)]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            dialog.border_subtitle = "enter picks, esc cancels"
            if self._entries:
                yield Input(placeholder="words that must occur", compact=True)
                yield Options()
            else:
                yield Static(
                    "There is no other run to choose. esc, then F2 measures one.", markup=False
                )

    def on_mount(self) -> None:
        self._list("")

    @on(Input.Changed)
    def _narrow(self, event: Input.Changed) -> None:
        self._list(event.value)

    def _list(self, text: str) -> None:
        words = text.lower().split()
        rows = [(entry.id, entry_text(entry)) for entry in self._entries]
        fitting = [
            Option(Content(row), id=run_id)
            for run_id, row in rows
            if all(word in f"{row} {run_id}".lower() for word in words)
        ]
        for options in self.query(OptionList):
            options.clear_options()
            options.add_options(fitting[:MOST])
            options.highlighted = 0 if fitting else None

    @on(Input.Submitted)
    def _take_first(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


def entry_text(entry: Entry) -> str:
    """The settings that decide a run's numbers, and the numbers, on one line."""
    size = f"{entry.model} B{entry.batch} ctx {entry.context} {entry.precision} {entry.step}"
    figures = f"{milliseconds(entry.median_ms)}  {amount(entry.peak_bytes)}"
    return f"{day_and_time(entry.created_ns)}  {size}  {figures}"
