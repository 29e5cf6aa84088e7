"""Texts of the Library: the table of runs, two runs side by side, the dialog of a label."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from textual.content import Content
from textual.widgets import Input

from sysbench.core.compare.verdict import Verdict
from sysbench.core.record.record import Record
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
from sysbench.core.tables.overview import overview
from sysbench.core.tables.table import Column, Table, tabulate
from sysbench.tui.run_text import age, spec_text, state_text, usual_settings
from sysbench.tui.screens.compare_text import verdict_contents
from sysbench.tui.screens.summary_tab import overview_contents
from sysbench.tui.text import (
    amount,
    day_and_time,
    interval,
    milliseconds,
    outcome_glyph,
    run_headline,
)
from sysbench.tui.widgets.dialog import InputDialog
from sysbench.tui.widgets.drawing import hanging

IN_VIEW = ("age", "spec", "step time", "peak", "status", "note", "id")
"""Columns on the screen, the most important first. ``id`` is the last part of a run's name."""
QUIET = "$foreground 60%"
FACTORS = (*SPEC_COLUMNS, "device_name", "command")


def runs_table(entries: Sequence[Entry], marked: Sequence[str]) -> Table:
    """The entries as a table; marked ones have a letter before the age.

    Column ``spec`` has the name, the model, and the settings that most runs do not share.
    """
    usual = usual_settings(entries)
    table = tabulate(
        entries,
        Column(
            "age", lambda entry: _mark(entry, marked) + age(entry.created_ns).removesuffix(" ago")
        ),
        Column(
            "spec", lambda entry: " · ".join(filter(None, (entry.name, spec_text(entry, usual))))
        ),
        Column("step time", step_time),
        Column("peak", lambda e: amount(e.peak_bytes) if e.peak_bytes is not None else ""),
        Column("status", lambda entry: f"{outcome_glyph(entry.status)} {state_text(entry)}"),
        "note",
        Column("id", lambda entry: entry.id.rpartition("-")[2]),
        Column("name", about="name that you gave the run"),
        "parameters",
        Column("run", "id"),
        Column("when", lambda entry: day_and_time(entry.created_ns)),
        *("model", "batch", "context", "precision", "attention"),
        Column("step", about="kind of step, such as train"),
        Column("optimizer", lambda entry: entry.optimizer if entry.step == "train" else ""),
        "compile",
        Column("device", "device_name"),
        name="runs",
        title="Runs of this machine, newest first",
    )
    sort_keys = {
        "age": tuple(entry.created_ns for entry in entries),
        "step time": tuple(entry.median_ms for entry in entries),
        "peak": tuple(entry.peak_bytes for entry in entries),
    }
    return msgspec.structs.replace(table, sort_keys=sort_keys)


def usual_text(entries: Sequence[Entry]) -> str:
    """The settings that column ``spec`` omits; may be empty."""
    usual = usual_settings(entries)
    words = [text for key, text in usual.items() if text and key != "model"]
    return literal(f"shared by most rows: {' · '.join(words)}") if words else ""


def _mark(entry: Entry, marked: Sequence[str]) -> str:
    """The letter of a marked run, or the glyph of a state other than finished."""
    if entry.id in marked:
        return f"{'AB'[marked.index(entry.id)]} "
    return f"{' ' if entry.status == 'finished' else outcome_glyph(entry.status)} "


def step_time(entry: Entry) -> str:
    if entry.median_ms is None:
        return ""
    of_rounds = f" of {entry.rounds} rounds" if entry.rounds > 1 else ""
    return f"{milliseconds(entry.median_ms)} {interval(entry.half_width)}{of_rounds}".rstrip()


def preview_lines(record: Record, width: int) -> list[Content]:
    gap = Content("")
    settings = hanging(gap, run_headline(record.spec), width, "bold")
    return [*settings, gap, *overview_contents(overview(record), width)]


def comparison(
    a: Entry, b: Entry, verdict: Verdict | None = None, width: int = 200
) -> list[Content]:
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
        f"{name}: {fields_a[name] or '–'} → {fields_b[name] or '–'}"
        for name in FACTORS
        if fields_a[name] != fields_b[name]
    ]
    text = " · ".join(differing) if differing else "none of the listed settings"
    lines.append(Content.assemble(("differs in ", "$foreground 60%"), text))
    return lines


def ask_for_label(run: RunDirectory, what: str) -> InputDialog:
    """Edit the name or note of a run; an empty text removes it."""
    label = label_known(run.path)

    def keep(text: str) -> str:
        write_label(run.path, msgspec.structs.replace(label, **{what: text}))
        return ""

    longest = MAX_NAME_CHARS if what == "name" else MAX_NOTE_CHARS
    box = Input(literal(getattr(label, what)), max_length=longest, compact=True)
    return InputDialog(f"{what.title()} of {literal(run.id)}", "saves", box, keep)
