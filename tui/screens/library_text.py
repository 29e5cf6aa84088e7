"""The runs as a table: what tells them apart, how old they are, and two of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from sysbench.core.compare.verdict import Verdict
from sysbench.core.errors import SysbenchError
from sysbench.core.runs.library import (
    MAX_NAME_CHARS,
    MAX_NOTE_CHARS,
    SPEC_COLUMNS,
    Entry,
    label_known,
    write_label,
)
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.cells import literal
from sysbench.core.tables.table import Table
from sysbench.tui.run_text import age, spec_text, state_text, usual_settings
from sysbench.tui.screens.ask_dialog import CANCEL
from sysbench.tui.screens.compare_text import verdict_contents
from sysbench.tui.text import amount, day_and_time, interval, milliseconds, outcome_glyph
from sysbench.tui.widgets.dialog import Dialog

IN_VIEW = ("age", "spec", "step time", "name", "peak", "status", "note", "parameters", "run")
"""Columns on the screen, the most important first."""
COLUMNS = (
    *IN_VIEW,
    *("when", "model", "batch", "context", "precision", "attention", "step", "optimizer"),
    *("compile", "device"),
)
FACTORS = (*SPEC_COLUMNS, "device_name")


def runs_table(entries: Sequence[Entry], marked: Sequence[str]) -> Table:
    """The entries as a table; marks are letters before the age.

    Its ``spec`` has the settings that most of the runs do not have, and of a single one all.
    """
    usual = usual_settings(entries)
    return Table(
        name="runs",
        title="Runs of this machine, newest first",
        columns=COLUMNS,
        rows=tuple(
            (
                _mark(entry, marked) + age(entry.created_ns),
                spec_text(entry, usual),
                _time_or_state(entry),
                entry.name,
                amount(entry.peak_bytes) if entry.peak_bytes is not None else "",
                f"{outcome_glyph(entry.status)} {state_text(entry)}",
                entry.note,
                entry.parameters,
                entry.id,
                day_and_time(entry.created_ns),
                entry.model,
                entry.batch,
                entry.context,
                entry.precision,
                entry.attention,
                entry.step,
                entry.optimizer if entry.step == "train" else "",
                entry.compile,
                entry.device_name,
            )
            for entry in entries
        ),
        # By time, and by the figures, not by the words for them.
        sort_keys={
            "age": tuple(entry.created_ns for entry in entries),
            "step time": tuple(entry.median_ms for entry in entries),
            "peak": tuple(entry.peak_bytes for entry in entries),
        },
    )


def usual_text(entries: Sequence[Entry]) -> str:
    """The settings that ``spec`` leaves out; blank where it has all."""
    words = [text for text in usual_settings(entries).values() if text]
    return literal(f"unless said: {' · '.join(words)}") if words else ""


def _mark(entry: Entry, marked: Sequence[str]) -> str:
    """A, B, or the state where it is another than finished: in view at every width."""
    if entry.id in marked:
        return f"{'AB'[marked.index(entry.id)]} "
    return f"{' ' if entry.status == 'finished' else outcome_glyph(entry.status)} "


def _time_or_state(entry: Entry) -> str:
    """The step time; of a run without one its state, for which a narrow screen has no column."""
    return step_time(entry) or ("" if entry.status == "finished" else state_text(entry))


def step_time(entry: Entry) -> str:
    """The median with its interval, of the rounds if there are several; blank when not measured."""
    if entry.median_ms is None:
        return ""
    of_rounds = f" of {entry.rounds} rounds" if entry.rounds > 1 else ""
    return f"{milliseconds(entry.median_ms)} {interval(entry.half_width)}{of_rounds}".rstrip()


def comparison(
    a: Entry, b: Entry, verdict: Verdict | None = None, width: int = 200
) -> list[Content]:
    """Two runs side by side: step times with intervals, peaks, verdict, factors that differ."""
    wide = max(22, len(step_time(a)), len(step_time(b)))
    lines = [
        Content.assemble(
            (f"{name} ", "bold $accent"),
            f"{step_time(entry):<{wide}}{amount(entry.peak_bytes):>10}  {entry.id}",
        )
        for name, entry in (("A", a), ("B", b))
    ]
    if verdict is not None:
        lines += verdict_contents(verdict, width)
    fields_a, fields_b = msgspec.structs.asdict(a), msgspec.structs.asdict(b)
    differing = [
        f"{name}: {fields_a[name]} → {fields_b[name]}"
        for name in FACTORS
        if fields_a[name] != fields_b[name]
    ]
    text = " · ".join(differing) if differing else "nothing in the spec's columns here"
    lines.append(Content.assemble(("differs in ", "$foreground 60%"), text))
    return lines


class LabelScreen(Dialog[None]):
    """Shows the text there is; enter keeps the changed one, an empty one takes it away."""

    BINDINGS: ClassVar[list[BindingType]] = CANCEL

    def __init__(self, run: RunDirectory, what: str) -> None:
        super().__init__()
        self._run = run
        self._what = what

    def compose(self) -> ComposeResult:
        text = getattr(label_known(self._run.path), self._what)
        longest = MAX_NAME_CHARS if self._what == "name" else MAX_NOTE_CHARS
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
