"""Compare: the verdict on two runs or files, then their time and memory row by row."""

from __future__ import annotations

import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from sysbench.core.compare.comparison import Factor, PhaseChange
from sysbench.core.compare.difference import DifferenceSide, difference, under_verdict
from sysbench.core.compare.nodes import Difference
from sysbench.core.compare.power import ROUNDS_A_BLOCK, ROUNDS_A_PAIR
from sysbench.core.errors import SysbenchError
from sysbench.core.experiments.experiment_report import ExperimentReport
from sysbench.core.export.exports import new_path
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.spec.own_model import is_job
from sysbench.core.tables.cells import literal
from sysbench.core.tables.trust import is_perturbed
from sysbench.tui.commands.comparison_report import read_report, write_report
from sysbench.tui.keys import give_focus
from sysbench.tui.live.pair_watch import Pair, PairWatch, Reading
from sysbench.tui.screens.ask_dialog import ask_before_stopping
from sysbench.tui.screens.compare_rows import (
    BYTE_COLUMNS,
    NOT_TESTED,
    TIME_COLUMNS,
    RowsView,
    show_difference,
)
from sysbench.tui.screens.compare_text import (
    DiffersView,
    StepsView,
    ask_to_measure,
    ended_line,
    side_lines,
    subject_line,
)
from sysbench.tui.screens.compare_verdict import VerdictView
from sysbench.tui.screens.work_screen import WorkScreen, unfold_binding
from sysbench.tui.text import elapsed, significant
from sysbench.tui.widgets.drawing import Drawing
from sysbench.tui.widgets.key_bar import CommandLine, TabBar, tab_bindings

if TYPE_CHECKING:
    from sysbench.tui.screens.timeline_tab import LanesPanel

STEPS_VIEW = "steps"
"""Shown only if both sides mark steps."""
VIEWS = {
    "verdict": "the verdict, its interval, rounds and conditions",
    "time": "the traced step of both runs, row by row",
    "memory": "the peak of both runs, row by row",
    "differs": "settings and machine facts that differ",
    "timeline": "the traced steps of both sides above each other",
    STEPS_VIEW: "marked steps of both sides, one by one",
}
EXPLAINS = {
    "verdict": ("compare.verdict", "compare.interval", "compare.conditions"),
    "time": ("compare.rows",),
    "memory": ("compare.rows", "memory.peak"),
    "differs": ("compare.factors",),
    "steps": ("compare.rows",),
    "timeline": ("timeline.lanes", "timeline.gap"),
}


class CompareScreen(WorkScreen):
    CSS_PATH = "compare_screen.tcss"
    AUTO_FOCUS = ""
    BINDING_GROUP_TITLE = "Compare"
    BINDINGS: ClassVar[list[BindingType]] = [
        *tab_bindings("compare", "view", VIEWS),
        unfold_binding(is_shown=True),
        Binding("b", "measure", "A/B", id="compare.measure", tooltip="Run an A/B test"),
        Binding(
            "e", "export", "Export", id="compare.export", tooltip="Write this comparison as a page"
        ),
        Binding("x", "stop", "Stop", id="compare.stop", tooltip="Stop the experiment; asks first"),
        Binding("g", "go_on", "Resume", id="compare.resume", tooltip="Resume the experiment"),
    ]

    bar = getters.query_one(TabBar)

    def __init__(self) -> None:
        super().__init__()
        self.pair_watch: PairWatch | None = None
        self.reading: Reading | None = None
        self.is_reading = False
        self._matched: tuple[object, ...] = ()
        self.difference: Difference | None = None
        """The rows in view, under the verdict in view."""
        self._matched_rows: Difference | None = None
        self._is_perturbed = False
        self._lanes: LanesPanel | None = None

    def body(self) -> ComposeResult:
        yield Drawing(id="heading")
        yield Drawing(id="sides")
        yield Static(id="state", markup=False)
        yield TabBar([name for name in VIEWS if name != STEPS_VIEW], tuple(VIEWS))
        with Container(id="place"):
            yield VerdictView(id="verdict")
            yield RowsView(f"Time · {NOT_TESTED}", TIME_COLUMNS, id="time")
            yield RowsView(
                f"Memory · {NOT_TESTED.replace('traced ', '')}", BYTE_COLUMNS, id="memory"
            )
            yield DiffersView(id="differs")
            yield StepsView(id=STEPS_VIEW)
            yield Container(id="timeline")
        yield CommandLine()

    def on_mount(self) -> None:
        self.catch_up()

    @property
    def is_outdated(self) -> bool:
        pair = self.app.compared
        return pair is not None and (self.pair_watch is None or self.pair_watch.pair != pair)

    def catch_up(self) -> None:
        pair = self.app.compared
        if pair is None or not self.is_outdated:
            return
        self.pair_watch, self.reading, self._matched = PairWatch(pair), None, ()
        self.difference = self._matched_rows = None
        a, b = map(literal, pair.names)
        ids = Content(f"A {a}\nB {b}")
        self.query_one("#heading", Drawing).show(lambda width, height: Content(""))
        self.query_one("#sides", Drawing).show(lambda width, height: ids)
        self.query_one("#state", Static).display = False
        self.query_one(VerdictView).show_difference(None)
        self._lanes = None
        self.query_one("#timeline").remove_children()
        self.action_view("verdict")
        self.paint()

    def paint(self) -> None:
        super().paint()
        watch = self.pair_watch
        if watch is None or not self.query("#state"):
            return
        # Do not ask while reading, so that a change in between is seen at the next tick.
        if not self.is_reading and watch.has_changed():
            self.is_reading = True
            self._read(watch)
        self._paint_state()

    @work(thread=True, group="compare.read")
    def _read(self, watch: PairWatch) -> None:
        try:
            self.call_later(self._take_reading, watch, watch.read())
        except SysbenchError as error:
            self.call_later(self._take_reading, watch, None, str(error))

    def _take_reading(self, watch: PairWatch, reading: Reading | None, problem: str = "") -> None:
        self.is_reading = False
        if watch is not self.pair_watch:
            return
        if reading is None:
            line = Content(f"✗ {problem}")
            self.query_one("#heading", Drawing).show(lambda width, height: line)
            return
        self.reading = reading
        watch.directory = reading.directory
        self._show(reading)
        self._show_difference()
        self._match()
        self._paint_state()
        self.refresh_bindings()

    def _show(self, reading: Reading) -> None:
        factors = known_factors(reading)
        # A run against a file has no settings in common.
        of = reading.b if reading.comparison.of_files and reading.a.spec else reading.a
        self.query_one("#heading", Drawing).show(
            lambda width, height: subject_line(of, factors, width)
        )
        self.query_one("#sides", Drawing).show(partial(side_lines, reading.a, reading.b))
        self.query_one(VerdictView).show(reading)
        self.query_one(DiffersView).show(reading.comparison)
        self.query_one(CommandLine).show(self.command())

    def _match(self) -> None:
        """Match the rows of both runs when a block arrives; further rounds do not change them."""
        reading, watch = self.reading, self.pair_watch
        if reading is None or watch is None:
            return
        blocks = (reading.a.kernels, reading.b.kernels, reading.a.memory, reading.b.memory)
        has = tuple(block is not None for block in blocks)
        if has != self._matched:
            self._matched = has
            self._read_rows(watch, reading)

    @work(thread=True, group="compare.rows")
    def _read_rows(self, watch: PairWatch, reading: Reading) -> None:
        runs = watch.pair.runs
        try:
            if runs is not None:
                a, b = map(
                    DifferenceSide,
                    (reading.a, reading.b),
                    map(layer_rows, runs, (reading.a, reading.b)),
                )
            else:
                assert reading.sides is not None
                a, b = reading.sides
            matched = difference(a, b)
        except SysbenchError as error:
            self.call_later(self._take_rows, watch, None, problem=str(error))
            return
        perturbed = any(side.kernels and is_perturbed(side.kernels) for side in (a, b))
        self.call_later(self._take_rows, watch, matched, perturbed=perturbed)

    def _take_rows(
        self,
        watch: PairWatch,
        matched: Difference | None,
        *,
        perturbed: bool = False,
        problem: str = "",
    ) -> None:
        if watch is not self.pair_watch or self.reading is None:
            return
        self._matched_rows, self._is_perturbed = matched, perturbed
        if matched is None:
            for name in ("time", "memory"):
                self.query_one(f"#{name}", RowsView).show(None, [], [], why=problem)
            return
        self._show_difference()

    def _show_difference(self) -> None:
        """Show the rows with what the verdict says of them, which changes with each round."""
        reading, matched = self.reading, self._matched_rows
        if reading is None or matched is None:
            return
        self.difference = rows = under_verdict(matched, reading.a, reading.b, reading.verdict)
        time, memory = self.query_one("#time", RowsView), self.query_one("#memory", RowsView)
        phases = phase_words(reading.comparison.phases)
        show_difference(time, memory, rows, perturbed=self._is_perturbed, phases=phases)
        self.query_one(VerdictView).show_difference(rows, perturbed=self._is_perturbed)
        self.query_one(StepsView).show(rows.steps)
        self.bar.names = [name for name in VIEWS if name != STEPS_VIEW or rows.steps]
        self.bar.refresh()

    def _paint_state(self) -> None:
        line, reading, watch = self.query_one("#state", Static), self.reading, self.pair_watch
        if watch is None or reading is None or reading.report is None:
            return
        if watch.is_live:
            text = self._live_line(watch, reading, reading.report)
        elif reading.report.is_live:
            return  # it has just ended: the next reading has the reason
        else:
            text = ended_line(reading.report, can_go_on=reading.can_go_on)
        line.display = True
        if line.content != text:
            line.update(text)

    def _live_line(self, watch: PairWatch, reading: Reading, report: ExperimentReport) -> Content:
        done = sum(row.counts for row in (*reading.rounds_a, *reading.rounds_b))
        side = watch.live_side()
        if report.method == "duet":
            words = [f"measuring A and B in turns: pair {done // ROUNDS_A_PAIR + 1}"]
        else:
            block, place = divmod(done, ROUNDS_A_BLOCK)
            doing = f"measuring {side}" if side else "between two rounds"
            words = [f"{doing}: block {block + 1}, round {place + 1} of {ROUNDS_A_BLOCK}"]
        run = self.app.watch_run
        if side and run is not None and run.run.id == (report.a if side == "A" else report.b).run:
            words.append(f"{run.view.step_count} steps")
        began = watch.began_seconds()
        if began is not None:
            words.append(f"{elapsed(time.time() - began)} of {report.max_minutes:g} min")
        return Content.assemble(("● ", "$accent"), " · ".join(words))

    def action_view(self, name: str) -> None:
        if name not in self.bar.names:
            return
        for other in VIEWS:
            self.query_one(f"#{other}").display = other == name
        self.bar.active = name
        view = self.query_one(f"#{name}")
        if name == "timeline":
            self._show_timeline()
        elif isinstance(view, RowsView | DiffersView | StepsView):
            view.start_focus()
        else:
            give_focus(view)

    def _show_timeline(self) -> None:
        from sysbench.core.inspection.lanes_reading import LanesReading  # lazy: numpy
        from sysbench.tui.screens.timeline_tab import LanesPanel  # lazy: numpy

        if self.pair_watch is None:
            return
        if self._lanes is None or self._lanes.has_failed:
            self.query_one("#timeline").remove_children()
            pair = self.pair_watch.pair
            titles = (f"{side} {name}" for side, name in zip("AB", pair.names, strict=True))
            readings = map(LanesReading, (pair.a, pair.b))
            self._lanes = LanesPanel(dict(zip(titles, readings, strict=True)))
            self.query_one("#timeline").mount(self._lanes)
        self._lanes.start_focus()

    @on(TabBar.Chosen)
    def _clicked(self, event: TabBar.Chosen) -> None:
        self.action_view(event.name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "stop":
            return self.pair_watch is not None and self.pair_watch.is_live
        if action == "go_on":
            return self.can_go_on
        if action == "measure":
            watch = self.pair_watch
            is_of_runs = watch is not None and watch.pair.runs is not None and not watch.is_live
            can_run = self.reading is not None and not is_job(self.reading.a.spec)
            return can_run and is_of_runs
        if action == "export":
            return self.reading is not None
        return super().check_action(action, parameters)

    @property
    def can_go_on(self) -> bool:
        reading, watch = self.reading, self.pair_watch
        if watch is None or reading is None or watch.is_live:
            return False
        return reading.can_go_on

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        # Folding depends on the screen's height, which need not change a panel's size.
        self.call_after_refresh(self.query_one(VerdictView).paint)

    def action_unfold(self) -> None:
        super().action_unfold()
        self.query_one(VerdictView).paint()

    def action_measure(self) -> None:
        runs = self.pair_watch.pair.runs if self.pair_watch is not None else None
        if runs is not None:
            ask_to_measure(self.app, runs[0].header(), runs[1].header())

    def action_export(self) -> None:
        if self.pair_watch is not None:
            self._export(self.pair_watch.pair)

    @work(thread=True, group="compare.export", exit_on_error=False)
    def _export(self, pair: Pair) -> None:
        try:
            names = "-".join(Path(name).name for name in pair.names)
            path = write_report(read_report(pair.a, pair.b), new_path(f"compare-{names}", ".html"))
        except (SysbenchError, OSError) as error:
            self.app.call_from_thread(
                self.notify, str(error), title="Not written", severity="error"
            )
            return
        self.app.call_from_thread(self.notify, f"Wrote {path}")

    def action_stop(self) -> None:
        directory = self.pair_watch.directory if self.pair_watch else None
        if directory is not None:
            text = "Finished rounds are kept; you can resume it later."
            over = "The experiment has already ended."
            ask_before_stopping(self, "Stop the experiment?", text, directory.stop, over)

    def action_go_on(self) -> None:
        if self.reading is not None and self.reading.directory is not None and self.can_go_on:
            self.reading.directory.start()

    def copyable(self) -> tuple[str, str]:
        if self.bar.active in ("time", "memory"):
            view = self.query_one(f"#{self.bar.active}", RowsView)
            if view.table.display:
                return "the rows in view as Markdown", view.table.markdown()
        return super().copyable()

    def explanations(self) -> list[str]:
        return list(EXPLAINS.get(self.bar.active, ()))

    def subject(self) -> str:
        if self._lanes is not None and self.bar.active == "timeline":
            return self._lanes.in_full()
        return next((view.in_full() for view in self.query(RowsView) if view.display), "")

    def command(self) -> str:
        if self.pair_watch is None:
            return super().command()
        pair, reading = self.pair_watch.pair, self.reading
        words = ["sysbench-tui", "compare", *pair.names]
        if reading is not None and reading.report is not None:
            return reading.report.repeat
        return shlex.join(words)


def known_factors(reading: Reading) -> list[Factor]:
    factors = reading.comparison.factors
    if reading.a.timing is not None and reading.b.timing is not None:
        return factors
    return [factor for factor in factors if factor.a is not None and factor.b is not None]


def phase_words(phases: list[PhaseChange]) -> str:
    """Phase medians of the untraced step in A and B; empty if a run has none."""
    both = [row for row in phases if row.a_ms is not None and row.b_ms is not None]
    words = [
        f"{row.name} {significant(row.a_ms or 0)} → {significant(row.b_ms or 0)}" for row in both
    ]
    return f"Untraced step, medians in ms, A → B: {', '.join(words)}." if words else ""
