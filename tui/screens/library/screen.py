"""Library: every run of this machine, filtered as you type, and a comparison of two."""

from __future__ import annotations

import shlex
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import msgspec
from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import DataTable, Input, Static

from ....core.analysis.verdict.records import verdict_of
from ....core.analysis.verdict.verdict import Verdict
from ....core.errors import SysbenchError
from ....core.formatting import counted
from ....core.machine.null_gpu import WORDS
from ....core.runs.ab.experiment import ExperimentDirectory
from ....core.runs.ab.known import known_noise
from ....core.runs.directory import RunDirectory
from ....core.runs.library import SPEC_COLUMNS, Entry, Library
from ....core.runs.records import load_record
from ....core.tables.table import Table
from ...text import (
    amount,
    day_and_time,
    interval,
    milliseconds,
    outcome_glyph,
    outcome_text,
)
from ...widgets.bars.command_line import CommandLine
from ...widgets.tables.table_view import TableView
from ..base import WorkScreen
from ..compare.text import verdict_lines

COLUMNS = (
    *("when", "model", "step time", "peak", "status", "batch", "context", "precision"),
    *("attention", "step", "optimizer", "compile", "device", "parameters", "run"),
)
FACTORS = (*SPEC_COLUMNS, "device_name")
RECENT_EXPERIMENTS = 5
"""Newest experiments that the palette offers."""
REFRESH_TICKS = 4
"""Paints between two readings of the index: two seconds."""


class RunsTable(TableView):
    """The runs; enter opens one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open", id="library.open", tooltip="Result, or live")
    ]


class LibraryScreen(WorkScreen):
    """All runs, newest first. Enter opens, space marks."""

    CSS_PATH = "screen.tcss"
    BINDING_GROUP_TITLE = "Library"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", id="library.filter", tooltip="Words that must occur"),
        Binding("space", "mark", "Mark", id="library.mark", tooltip="Mark two to compare them"),
        Binding("c", "compare", "Compare", id="library.compare", tooltip="The two marked runs"),
        Binding(
            "b",
            "measure",
            "A/B",
            show=False,
            id="library.measure",
            tooltip="Measure two marked specs in turn, or one and a change of it",
        ),
        Binding("escape", "clear", "Clear", show=False, id="library.clear"),
    ]

    table = getters.query_one(TableView)

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.marked: list[str] = []
        self._library = Library()
        self._ticks = 0

    def body(self) -> ComposeResult:
        yield Input(placeholder="/ to filter: words that must all occur", compact=True, id="filter")
        table = RunsTable(order=COLUMNS)
        table.add_class("panel")
        table.border_title = "Library"
        yield table
        yield Static(id="comparison", classes="panel", markup=False)
        yield CommandLine("sysbench-tui list")

    def on_mount(self) -> None:
        self.query_one("#comparison").border_title = "Compare"
        self._reload()
        self.table.focus()

    def on_screen_resume(self) -> None:
        self._reload()

    def paint(self) -> None:
        super().paint()
        self._ticks += 1
        if self._ticks % REFRESH_TICKS == 0:
            self._reload()

    def _reload(self) -> None:
        """Read the index again, and show it if it has changed."""
        text = self.query_one("#filter", Input).value
        try:
            entries = self._library.entries(text)
        except (SysbenchError, OSError) as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if entries != self.entries or self.table.table is None:
            self.entries = entries
            self._show(text)

    def _show(self, text: str) -> None:
        self.table.show(runs_table(self.entries, self.marked))
        live = sum(entry.live for entry in self.entries)
        count = counted(len(self.entries), "run")
        self.table.border_title = f"Library · {count}" + (f" · {live} live" if live else "")
        if not self.entries:
            why = f"none matches {text!r}" if text else "none yet: F2 starts one"
            self.table.border_subtitle = why
        command = shlex.join(("sysbench-tui", "list", *text.split()))
        self.query_one(CommandLine).show(command)

    @on(Input.Changed, "#filter")
    def _narrow(self) -> None:
        self._reload()

    @on(Input.Submitted, "#filter")
    def _to_table(self) -> None:
        self.table.focus()

    def action_filter(self) -> None:
        self.query_one("#filter", Input).focus()

    def action_clear(self) -> None:
        """Clear the filter; a second time, the marks."""
        box = self.query_one("#filter", Input)
        if box.value:
            box.value = ""
        elif self.marked:
            self.marked = []
            self._marks_changed()
        self.table.focus()

    @property
    def selected(self) -> Entry | None:
        """The run under the cursor."""
        index = self.table.selected
        return None if index is None else self.entries[index]

    @on(DataTable.RowSelected)
    def action_open(self) -> None:
        """Watch the run under the cursor if it is live, else open its result."""
        entry = self.selected
        if entry is None:
            return
        run = self._library.open(entry.id)
        if entry.live:
            self._watch(run)
        else:
            self.app.open_result(run)

    def _watch(self, run: RunDirectory) -> None:
        watch = self.app.watch_run
        if watch is not None and watch.run.id == run.id:
            self.app.action_mode("live")
        else:
            self.app.follow(run)

    def action_mark(self) -> None:
        """Mark the run under the cursor; the last two marks are compared."""
        entry = self.selected
        if entry is None:
            return
        if entry.id in self.marked:
            self.marked.remove(entry.id)
        else:
            self.marked = [*self.marked[-1:], entry.id]
        self._marks_changed()

    def _marks_changed(self) -> None:
        self.table.show(runs_table(self.entries, self.marked))
        pair = self.pair
        panel = self.query_one("#comparison", Static)
        panel.display = bool(pair)
        if len(pair) == 2:
            a, b = pair
            panel.update(Content("\n").join(comparison(a, b)))
            self._judge(a, b)
        elif pair:
            panel.update(
                "A is marked. Mark another run with space to compare; b measures A against a "
                "change of it."
            )
        self.refresh_bindings()

    @property
    def pair(self) -> list[Entry]:
        """The marked runs that are in view, A first."""
        by_id = {entry.id: entry for entry in self.entries}
        return [by_id[run_id] for run_id in self.marked if run_id in by_id]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "compare":
            return len(self.pair) == 2
        return super().check_action(action, parameters)

    def action_compare(self) -> None:
        """Show the two marked runs side by side."""
        from ...live.pair_watch import Pair

        a, b = (self._library.open(entry.id) for entry in self.pair)
        self.app.open_comparison(Pair(a, b))

    def action_measure(self) -> None:
        """Measure the two marked specs in turn; with one mark or none, that spec and a change."""
        from ..compare.start import ask_to_measure

        entries = self.pair or ([self.selected] if self.selected is not None else [])
        if not entries:
            self.notify("Mark a run first: space marks.", markup=False)
            return
        headers = [self._library.open(entry.id).header() for entry in entries]
        ask_to_measure(self.app, headers[0], headers[1] if len(headers) > 1 else None)

    @work(thread=True, group="library.judge", exclusive=True)
    def _judge(self, a: Entry, b: Entry) -> None:
        """Read both records and the library's noise, then show the verdict."""
        try:
            first, second = (load_record(self._library.open(entry.id)) for entry in (a, b))
            known = known_noise(first, second, self._library.root)
        except SysbenchError as error:
            self.app.call_from_thread(self.notify, str(error), severity="error", markup=False)
            return
        self.app.call_from_thread(self._show_verdict, a, b, verdict_of(first, second, known))

    def _show_verdict(self, a: Entry, b: Entry, verdict: Verdict) -> None:
        """Show the verdict unless other runs were marked meanwhile."""
        if self.marked == [a.id, b.id]:
            panel = self.query_one("#comparison", Static)
            width = panel.content_size.width or panel.size.width
            panel.update(Content("\n").join(comparison(a, b, verdict, width)))

    def copyable(self) -> tuple[str, str]:
        return "the runs in view as Markdown", self.table.markdown()

    def explanations(self) -> list[str]:
        return ["timing.step", "memory.peak"]

    def command(self) -> str:
        return self.query_one(CommandLine).command

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        commands: list[tuple[str, str, Any]] = [("library: Filter runs", "", self.action_filter)]
        if self.selected is not None:
            commands += [
                ("library: Open run", "its result, or live if it is", self.action_open),
                ("library: Mark run", "two marked runs are compared", self.action_mark),
                ("library: Measure in turn", "A/B, with a change of the spec", self.action_measure),
            ]
        if len(self.pair) == 2:
            about = "verdict, time and memory row by row"
            commands.append(("library: Compare marked runs", about, self.action_compare))
        from ...live.pair_watch import recent_experiments

        commands += [
            (f"library: Show experiment {directory.id}", "", partial(self._show_pair, directory))
            for directory in islice(recent_experiments(self._library.root), RECENT_EXPERIMENTS)
        ]
        return [*commands, *super().palette_commands()]

    def _show_pair(self, directory: ExperimentDirectory) -> None:
        """Show an experiment's two runs side by side."""
        from ...live.pair_watch import pair_of

        try:
            self.app.open_comparison(pair_of(directory))
        except SysbenchError as error:
            self.notify(str(error), severity="error", markup=False)


def runs_table(entries: list[Entry], marked: list[str]) -> Table:
    """The entries as a table; marks are letters before the time."""
    return Table(
        name="runs",
        title="Runs of this machine, newest first",
        columns=COLUMNS,
        rows=tuple(
            (
                _mark(entry, marked) + day_and_time(entry.created_ns),
                entry.model,
                step_time(entry),
                amount(entry.peak_bytes) if entry.peak_bytes is not None else "",
                f"{outcome_glyph(entry.status)} {outcome_text(entry.status)}",
                entry.batch,
                entry.context,
                entry.precision,
                entry.attention,
                entry.step,
                entry.optimizer if entry.step == "train" else "",
                entry.compile,
                entry.device_name,
                entry.parameters,
                entry.id,
            )
            for entry in entries
        ),
    )


def _mark(entry: Entry, marked: list[str]) -> str:
    letter = "AB"[marked.index(entry.id)] if entry.id in marked else ("●" if entry.live else " ")
    return f"{letter} "


def step_time(entry: Entry) -> str:
    """The median with its interval, of the rounds if there are several; blank when not measured.

    Of a null GPU its mark: there is no room beside for why the time means nothing.
    """
    if entry.median_ms is None:
        return ""
    if entry.is_null:
        return WORDS
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
        lines += verdict_lines(verdict, width)
    fields_a, fields_b = msgspec.structs.asdict(a), msgspec.structs.asdict(b)
    differing = [
        f"{name}: {fields_a[name]} → {fields_b[name]}"
        for name in FACTORS
        if fields_a[name] != fields_b[name]
    ]
    text = " · ".join(differing) if differing else "nothing in the spec's columns here"
    lines.append(Content.assemble(("differs in ", "$foreground 60%"), text))
    return lines
