"""Dialog that asks for the name of a run, or a note on it."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from sysbench.core.errors import SysbenchError
from sysbench.core.runs.labels import (
    LONGEST_NAME,
    LONGEST_NOTE,
    label_known,
    write_label,
)
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.cells import literal
from sysbench.tui.screens.profiles_dialog import CANCEL
from sysbench.tui.widgets.dialog import Dialog


class LabelScreen(Dialog[None]):
    """Shows the text there is; enter keeps the changed one, an empty one takes it away."""

    BINDINGS: ClassVar[list[BindingType]] = CANCEL

    def __init__(self, run: RunDirectory, what: str) -> None:
        super().__init__()
        self._run = run
        self._what = what

    def compose(self) -> ComposeResult:
        text = getattr(label_known(self._run.path), self._what)
        longest = LONGEST_NAME if self._what == "name" else LONGEST_NOTE
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = Content(f"{self._what.title()} of {literal(self._run.id)}")
            dialog.border_subtitle = "enter keeps, esc cancels"
            yield Input(literal(text), max_length=longest, compact=True)
            yield Static(classes="complaint", markup=False)

    @on(Input.Submitted)
    def _keep(self, event: Input.Submitted) -> None:
        label = label_known(self._run.path)
        changed = msgspec.structs.replace(label, **{self._what: event.value.strip()})
        try:
            write_label(self._run.path, changed)
        except (SysbenchError, OSError) as error:
            self.query_one(".complaint", Static).update(f"✗ {error}")
            return
        self.dismiss()


def ask_for_label(run: RunDirectory, what: str) -> LabelScreen:
    """The dialog for a run's ``name`` or ``note``."""
    return LabelScreen(run, what)
