"""Dialogs that save the form as a named profile, and load one."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sysbench.core.errors import SysbenchError
from sysbench.core.record.blocks import PassName
from sysbench.core.spec.profiles import list_profiles, load_profile, save_profile
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.widgets.dialog import Dialog
from sysbench.tui.widgets.options import Options

CANCEL: list[BindingType] = [Binding("escape", "dismiss", "Cancel", id="dialog.cancel")]


class SaveScreen(Dialog[None]):
    """Asks for a name and writes the profile."""

    BINDINGS: ClassVar[list[BindingType]] = CANCEL

    def __init__(self, spec: RunSpec, passes: list[PassName]) -> None:
        super().__init__()
        self._spec = spec
        self._passes = passes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Save as profile"
            dialog.border_subtitle = "enter saves, esc cancels"
            yield Input(placeholder="a name, such as large-bf16", compact=True)
            yield Static(classes="complaint", markup=False)

    @on(Input.Submitted)
    def _save(self, event: Input.Submitted) -> None:
        try:
            path = save_profile(event.value.strip(), self._spec, self._passes)
        except (SysbenchError, OSError) as error:
            self.query_one(".complaint", Static).update(f"✗ {error}")
            return
        self.app.notify(f"Saved {path}", markup=False)
        self.dismiss()


class LoadScreen(Dialog[tuple[RunSpec, list[PassName]]]):
    """Lists the saved profiles; dismisses with the chosen one."""

    BINDINGS: ClassVar[list[BindingType]] = CANCEL

    def compose(self) -> ComposeResult:
        names = list_profiles()
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Load a profile"
            dialog.border_subtitle = "enter loads, esc cancels"
            if names:
                yield Options(*(Option(Content(name), id=name) for name in names))
            else:
                yield Static("No profile is saved yet. Fill the form, then ^s.", markup=False)
            yield Static(classes="complaint", markup=False)

    @on(OptionList.OptionSelected)
    def _load(self, event: OptionList.OptionSelected) -> None:
        try:
            self.dismiss(load_profile(str(event.option.prompt)))
        except (SysbenchError, OSError) as error:
            self.query_one(".complaint", Static).update(f"✗ {error}")
