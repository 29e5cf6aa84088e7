"""Library: all runs of this machine, and a comparison of two marked ones."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
from rich.text import Text
from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Resize, ScreenResume
from textual.timer import Timer
from textual.widgets import Input, Static

from sysbench.core.compare.compared_records import verdict_of
from sysbench.core.compare.verdict import Verdict
from sysbench.core.errors import SysbenchError
from sysbench.core.experiments.experiment import ExperimentDirectory
from sysbench.core.experiments.noise import known_noise
from sysbench.core.formatting import counted
from sysbench.core.inspection.decoding import bundled_run
from sysbench.core.inspection.entries import bundle_files
from sysbench.core.runs.library import Entry, Library, entry_of
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.core.runs.trash import Trashed, restore, trash_run
from sysbench.core.studies.study_directory import uses_of
from sysbench.core.tables.cells import literal
from sysbench.tui.keys import give_focus
from sysbench.tui.live.pair_watch import Pair, pair_of, recent_experiments
from sysbench.tui.run_text import age
from sysbench.tui.screens.ask_dialog import AskScreen, DialogAnswer
from sysbench.tui.screens.compare_text import ask_to_measure
from sysbench.tui.screens.library_text import (
    IN_VIEW,
    ask_for_label,
    comparison,
    preview_lines,
    runs_table,
    usual_text,
)
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.widgets.dialog import report_errors
from sysbench.tui.widgets.drawing import Folding, hanging, wrap_lines
from sysbench.tui.widgets.key_bar import CommandLine
from sysbench.tui.widgets.table_view import TableView

RECENT_EXPERIMENTS = 5
"""Number of experiments in the palette."""
AGES_FOLLOWED = 200
"""Number of newest runs whose ages are updated."""
REFRESH_TICKS = 4
"""Paints between two reads of the index: two seconds."""


PREVIEW_SECONDS = 0.15
"""Rest of the cursor on a row before its record is read."""


MAX_BUNDLES = 20


class Bundle(NamedTuple):
    """A run of another home, in a file; it is only read."""

    path: Path
    run: RunDirectory
    entry: Entry


class RunsTable(TableView):
    FLEXIBLE_SHARE: ClassVar[float] = 0.2

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open", id="library.open", tooltip="Open the result")
    ]

    def cell(self, column: str, row: int, text: str) -> Text:
        """A cell; of a run without a step time the state, where its column has no room."""
        if column == "step time" and not text and "status" not in self.columns_in_view:
            assert self.table is not None
            text = str(self.table.mapping(row)["status"]).partition(" ")[2]
        return super().cell(column, row, text)


class LibraryScreen(WorkScreen):
    CSS_PATH = "library_screen.tcss"
    AUTO_FOCUS = ""
    BINDING_GROUP_TITLE = "Library"
    EXPLAINS = ("library.columns", "timing.step", "memory.peak")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash",
            "filter",
            "Filter",
            id="library.filter",
            tooltip="Show rows that contain all words",
        ),
        Binding("space", "mark", "Mark", id="library.mark", tooltip="Mark two to compare them"),
        Binding("c", "compare", "Compare", id="library.compare", tooltip="Compare marked runs"),
        Binding(
            "b",
            "measure",
            "A/B",
            show=False,
            id="library.measure",
            tooltip="A/B test of the two marked runs, or of one and a change",
        ),
        Binding("n", "label('name')", "Name", id="library.name", tooltip="Name the run"),
        Binding("m", "label('note')", "Note", show=False, id="library.note", tooltip="Add a note"),
        Binding("x", "delete", "Delete", id="library.delete", tooltip="Move it to the trash"),
        Binding("u", "undo", "Undo", id="library.undo", tooltip="Restore the last deleted run"),
        Binding("escape", "clear", "Clear", show=False, id="library.clear"),
    ]

    table = getters.query_one(TableView)

    def __init__(self) -> None:
        super().__init__()
        self.takes_keys = False
        self.entries: list[Entry] = []
        self.marked: list[str] = []
        self._library = Library()
        self._ticks = 0
        self._ages: list[str] = []
        self._filter = ""
        self._bundles: dict[str, Bundle] = {}
        self._refused: set[Path] = set()
        self._deleted: list[Trashed] = []
        self._rest: Timer | None = None
        self._previewed: Entry | None = None

    def on_resize(self, event: Resize) -> None:
        self._await_rest()  # a wider screen has a preview

    def body(self) -> ComposeResult:
        yield Input(placeholder="/ filter (all words must match)", compact=True, id="filter")
        table = RunsTable(flexible="spec", order=IN_VIEW)
        table.add_class("panel")
        table.border_title = "Library"
        with Horizontal(id="runs"):
            yield table
            with VerticalScroll(id="preview", classes="panel", can_focus=False):
                yield Folding()
        yield Static(id="comparison", classes="panel", markup=False)
        yield CommandLine("sysbench-tui list")

    def on_mount(self) -> None:
        self.query_one("#comparison").border_title = "Compare"
        self._reload()
        give_focus(self.table)
        self.app.call_later(self.take_keys)

    def on_screen_resume(self, event: ScreenResume) -> None:
        self._reload()
        self._read_bundles()

    @work(thread=True, group="library.bundles", exclusive=True)
    def _read_bundles(self) -> None:
        """Read the bundles of this folder, and those that were opened before."""
        found: dict[str, Bundle] = {}
        refused: dict[Path, str] = {}
        try:
            paths = bundle_files(Path.cwd())
        except OSError as error:
            paths, refused = [], {Path("."): str(error)}
        for path in paths[:MAX_BUNDLES]:
            try:
                if run := bundled_run(path):
                    entry = entry_of(load_record(run))
                    entry = msgspec.structs.replace(entry, note=f"read-only: {path.name}")
                    found.setdefault(run.id, Bundle(path, run, entry))
            except (SysbenchError, OSError) as error:
                refused[path] = str(error)
        self.call_later(self._show_bundles, found, refused)

    def _show_bundles(self, found: dict[str, Bundle], refused: dict[Path, str]) -> None:
        for path in refused.keys() - self._refused:
            self.notify(refused[path], severity="warning")
        self._refused |= refused.keys()
        # When the app exits, a screen outlives its widgets for a moment.
        if found != self._bundles and self.query("#filter"):
            self._bundles = found
            self._reload()

    def _run_of(self, entry: Entry) -> RunDirectory:
        bundle = self._bundle_of(entry)
        return bundle.run if bundle else self._library.open(entry.id)

    def _bundle_of(self, entry: Entry) -> Bundle | None:
        """The bundle that a row is of; None for a run of this home."""
        bundle = self._bundles.get(entry.id)
        return bundle if bundle and bundle.entry == entry else None

    def _is_read_only(self, entry: Entry) -> bool:
        """Whether the row is of a bundle, which this notifies of."""
        if bundle := self._bundle_of(entry):
            self.notify(f"{entry.id} is in a bundle, {bundle.path}, which is only read.")
        return bundle is not None

    def paint(self) -> None:
        super().paint()
        self._ticks += 1
        if self._ticks % REFRESH_TICKS == 0:
            self._reload()

    def _reload(self) -> None:
        text = self.query_one("#filter", Input).value
        try:
            bundled = [bundle.entry for bundle in self._bundles.values()]
            entries = self._library.entries(text, bundled)
        except (SysbenchError, OSError) as error:
            self.notify(str(error), severity="error")
            return
        ages = [age(entry.created_ns) for entry in entries[:AGES_FOLLOWED]]
        shown = (self.entries, self._ages, self._filter)
        if (entries, ages, text) != shown or self.table.table is None:
            selected = self.selected
            self.entries, self._ages, self._filter = entries, ages, text
            self._show(text, selected)

    def _show(self, text: str, selected: Entry | None) -> None:
        why = f"no run matches {text!r}; esc shows all" if text else "no runs yet; F2 starts one"
        self.table.note = usual_text(self.entries) if self.entries else why
        places = {entry.id: place for place, entry in enumerate(self.entries)}
        self._fill(places.get(selected.id) if selected is not None else None)
        live = sum(entry.live for entry in self.entries)
        count = counted(len(self.entries), "run")
        self.table.border_title = f"Library · {count}" + (f" · {live} live" if live else "")
        command = shlex.join(("sysbench-tui", "list", *text.split()))
        self.query_one(CommandLine).show(command)

    def _fill(self, select: int | None) -> None:
        table = runs_table(self.entries, [entry.id for entry in self.pair])
        sort, descending = self.table.sort_column, self.table.descending
        self.table.show(table, sort=sort, descending=descending, select=select)

    @on(Input.Changed, "#filter")
    def _narrow(self) -> None:
        self._reload()

    @on(Input.Submitted, "#filter")
    def _to_table(self) -> None:
        give_focus(self.table)

    def action_filter(self) -> None:
        give_focus(self.query_one("#filter", Input))

    def action_clear(self) -> None:
        """Clear the filter; a second time, the marks."""
        box = self.query_one("#filter", Input)
        if box.value:
            box.value = ""
        elif self.marked:
            self.marked = []
            self._marks_changed()
        give_focus(self.table)

    @property
    def selected(self) -> Entry | None:
        index = self.table.selected
        return None if index is None else self.entries[index]

    @on(TableView.RowHighlighted)
    def _await_rest(self) -> None:
        """Show the selected run once the cursor rests on it."""
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(PREVIEW_SECONDS, self._preview)

    def _preview(self) -> None:
        # When the app exits, a screen outlives its widgets for a moment.
        if not any(panel.display for panel in self.query("#preview")):
            return
        entry = self.selected
        if entry == self._previewed:
            return
        self._previewed = entry
        if entry is None:
            self._show_preview(entry, lambda width: ())
        else:
            self._read(entry)

    @work(thread=True, group="library.preview", exclusive=True)
    def _read(self, entry: Entry) -> None:
        try:
            record = load_record(self._run_of(entry))
        except (SysbenchError, OSError) as error:
            reason = literal(str(error))
            lines = partial(hanging, Content.styled("✗ ", "$error"), reason)
        else:
            lines = partial(preview_lines, record)
        self.call_later(self._show_preview, entry, lines)

    def _show_preview(self, entry: Entry | None, lines: Callable[[int], Iterable[Content]]) -> None:
        if entry != self._previewed:
            return
        for panel in self.query("#preview"):
            panel.border_title = literal(entry.id) if entry else ""
            panel.query_one(Folding).show(wrap_lines(lines))

    @on(TableView.RowSelected)
    def action_open(self) -> None:
        entry = self.selected
        if entry is None:
            return
        run = self._run_of(entry)
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
        """Mark or unmark the selected run; only the last two marks stay."""
        entry = self.selected
        if entry is None:
            return
        if entry.id in self.marked:
            self.marked.remove(entry.id)
        else:
            self.marked = [*self.marked[-1:], entry.id]
        self._marks_changed()

    def _marks_changed(self) -> None:
        self._fill(self.table.selected)
        pair = self.pair
        panel = self.query_one("#comparison", Static)
        panel.display = bool(pair)
        if len(pair) == 2:
            a, b = pair
            panel.update(Content("\n").join(comparison(a, b)))
            self._judge(a, b)
        elif pair:
            panel.update(
                "A is marked. Press space on another run to compare them, or b for an A/B test "
                "of A with a changed setting."
            )
        self.refresh_bindings()

    @property
    def pair(self) -> list[Entry]:
        in_view = [entry for entry in self.entries if entry.id in self.marked]
        return sorted(in_view, key=lambda entry: entry.created_ns)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "compare":
            return len(self.pair) == 2
        if action == "undo":
            return bool(self._deleted)
        return super().check_action(action, parameters)

    def action_label(self, what: str) -> None:
        entry = self.selected
        if entry is not None and not self._is_read_only(entry):
            run = self._run_of(entry)
            self.app.push_screen(ask_for_label(run, what), lambda _: self._reload())

    def action_delete(self) -> None:
        """Move the selected run to the trash; ask first if a study or experiment uses it."""
        entry = self.selected
        if entry is None or self._is_read_only(entry):
            return
        uses = uses_of(entry.id, self._library.root)
        if not uses or entry.live:  # deleting a live run fails with the reason
            self._delete(entry.id)
            return
        text = f"{entry.id} is used by {'; '.join(uses)}. Press u to undo."
        answers = (
            DialogAnswer("delete", "Delete it", "x"),
            DialogAnswer("keep", "Keep it", "escape"),
        )
        self.app.push_screen(
            AskScreen("Delete a run that is in use?", text, answers),
            lambda answer: self._delete(entry.id) if answer == "delete" else None,
        )

    def _delete(self, run_id: str) -> None:
        with report_errors(self):
            self._deleted.append(trash_run(self._library.open(run_id), self._library.root))
            place = self.table.selected
            self._reload()
            if place is not None and self.entries and not self.table.sort_column:
                self.table.move_cursor(row=min(place, len(self.entries) - 1))
            self.notify(f"Deleted {run_id}. Press u to undo.")
            self.refresh_bindings()

    def action_undo(self) -> None:
        if not self._deleted:
            return
        with report_errors(self):
            run = restore(self._deleted.pop(), self._library.root)
            self._reload()
            places = [place for place, entry in enumerate(self.entries) if entry.id == run.id]
            self._fill(places[0] if places else self.table.selected)
            self.notify(f"Restored {run.id}.")
            self.refresh_bindings()

    def action_compare(self) -> None:
        a, b = (self._run_of(entry) for entry in self.pair)
        self.app.open_comparison(Pair(a, b))

    def action_measure(self) -> None:
        entries = self.pair or ([self.selected] if self.selected is not None else [])
        if not entries:
            self.notify("Mark a run first (space).")
            return
        headers = [self._run_of(entry).header() for entry in entries]
        ask_to_measure(self.app, headers[0], headers[1] if len(headers) > 1 else None)

    @work(thread=True, group="library.judge", exclusive=True)
    def _judge(self, a: Entry, b: Entry) -> None:
        try:
            first, second = (load_record(self._run_of(entry)) for entry in (a, b))
            known = known_noise(first, second, self._library.root)
        except SysbenchError as error:
            self.app.call_from_thread(self.notify, str(error), severity="error")
            return
        self.app.call_from_thread(self._show_verdict, a, b, verdict_of(first, second, known))

    def _show_verdict(self, a: Entry, b: Entry, verdict: Verdict) -> None:
        if [entry.id for entry in self.pair] == [a.id, b.id]:
            panel = self.query_one("#comparison", Static)
            width = panel.content_size.width or panel.size.width
            panel.update(Content("\n").join(comparison(a, b, verdict, width)))

    def copyable(self) -> tuple[str, str]:
        return "the runs in view as Markdown", self.table.markdown()

    def command(self) -> str:
        return self.query_one(CommandLine).command

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        commands = [
            (f"library: Show experiment {directory.id}", "", partial(self._show_pair, directory))
            for directory in islice(recent_experiments(self._library.root), RECENT_EXPERIMENTS)
        ]
        return [*commands, *super().palette_commands()]

    def _show_pair(self, directory: ExperimentDirectory) -> None:
        with report_errors(self):
            self.app.open_comparison(pair_of(directory))
