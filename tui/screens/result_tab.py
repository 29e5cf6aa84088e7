"""The base of a result's tabs: a record, a blank state with its reason, copy, explain."""

from __future__ import annotations

from typing import Any

from textual.containers import Vertical
from textual.widgets import Static

from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.result_registry import Tab
from sysbench.tui.text import outcome_text


class ResultTab(Vertical):
    """The base of the tabs. Subclasses compose from `self.record` and may override the rest."""

    def __init__(self, row: Tab, run: RunDirectory, record: Record) -> None:
        super().__init__()
        self.row = row
        self.run = run
        self.record = record

    @property
    def is_blank(self) -> bool:
        """Whether the record has nothing for this tab."""
        return bool(self.row.block) and getattr(self.record, self.row.block) is None

    def blank(self) -> Static:
        """The reason why there is nothing to show, and the key that helps."""
        reason = blank_reason(self.record, self.row.block, self.row.filled_by)
        return Static(f"{reason}\n\n{self._remedy()}", classes="blank", markup=False)

    def _remedy(self) -> str:
        if not self.record.spec:
            return "o: another file"
        if self.record.status == "running":
            return "F3: watch the run"
        what = "to turn compile on" if self.row.block == "compile" else "to measure it again"
        return f"a: the form with this spec, {what}"

    def start_focus(self) -> None:
        """Put the focus where the keys of the tab work."""
        first = next((widget for widget in self.query("*") if widget.focusable), None)
        if first is not None:
            give_focus(first)

    def copyable(self) -> tuple[str, str] | None:
        """The name and the text that `y` copies, or None for the command."""
        return None

    def subject(self) -> str:
        """The row in view, for `?`; empty when there is none."""
        return ""

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        """Commands of this tab."""
        return []


def blank_reason(record: Record, block: str, name: str) -> str:
    """One sentence on why a block is absent, as the record has it."""
    if block in record.missing:
        return f"Nothing here: {record.missing[block]}"
    ended = record.pass_named(name)
    if ended is None:
        if record.status == "running":
            return f"Nothing here yet: the {name} pass has not ended."
        return f"Nothing here: this run had no {name} pass."
    return f"Nothing here: the {name} pass ended as {outcome_text(ended.outcome)}. {ended.detail}"
