"""Studies: the list of studies; grid, tables and plot of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize, ScreenResume
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sysbench.core.errors import SysbenchError
from sysbench.core.studies.forecast import LONG_STUDY_SECONDS, total_seconds, waiting_forecasts
from sysbench.core.studies.study_grid import Cell, with_variant
from sysbench.core.studies.study_report import StudyReport
from sysbench.core.studies.study_text import study_command
from sysbench.tui.keys import give_focus
from sysbench.tui.live.study_watch import StudyWatch
from sysbench.tui.screens.studies_grid import StudyGrid
from sysbench.tui.screens.studies_text import (
    Arrangement,
    GridTexts,
    StudyChoice,
    StudyViews,
    arrange,
    cell_text,
    choices,
    describe,
    literal_lines,
    prompt,
    study_heading,
    suggested_variant,
)
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.text import forecast_text
from sysbench.tui.widgets.choice import Options
from sysbench.tui.widgets.dialog import report_errors
from sysbench.tui.widgets.key_bar import CommandLine, next_name

START_SECONDS = 10.0
"""After this time a runner without its lock has failed; its log has the reason."""


class StudiesScreen(WorkScreen):
    CSS_PATH = "studies_screen.tcss"
    BINDING_GROUP_TITLE = "Studies"
    EXPLAINS = ("study.cell", "study.left", "timing.step", "memory.peak", "prediction.peak")
    AUTO_FOCUS = "#list"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "start", "Start", id="studies.start", tooltip="Measure the empty cells"),
        Binding("p", "pause", "Pause", id="studies.pause", tooltip="Stop; start resumes"),
        Binding("v", "view", "View", id="studies.view", tooltip="Tables, plot, findings"),
        # The footer has no space for the keys below.
        Binding("n", "variant", "Variant", show=False, id="studies.variant", tooltip="Next size"),
        Binding(
            "w", "value", "Value", show=False, id="studies.value", tooltip="Next value in the grid"
        ),
        Binding("e", "export", "Export", show=False, id="studies.export", tooltip="To a file"),
        Binding("escape", "back", "List", show=False, id="studies.back"),
        Binding("y", "copy", "Copy", show=False, id="copy", tooltip="Copy the table"),
        Binding("question_mark", "explain", "Explain", show=False, id="explain"),
    ]

    menu = getters.query_one("#list", OptionList)
    grid = getters.query_one(StudyGrid)
    views = getters.query_one(StudyViews)

    def __init__(self) -> None:
        super().__init__()
        self.followed: StudyWatch | None = None
        self.report: StudyReport | None = None
        self.chosen: int | None = None
        """Index of the value in the grid; None shows each cell's first value."""
        self._choices: dict[str, StudyChoice] = {}
        self._described: Mapping[str, tuple[str, str]] = {}
        """Title and state by key, once they are read."""
        self._key = ""
        self._arrangement: Arrangement | None = None
        self._is_filling = False
        self._changed = 0
        self._ticks_to_start = 0

    def body(self) -> ComposeResult:
        with Horizontal(id="upper"):
            chosen = Options(id="list", classes="panel", markup=False)
            chosen.border_title = "Studies"
            chosen.border_subtitle = "n size  e export"
            yield chosen
            with Vertical(id="study"):
                yield Static(id="heading", markup=False)
                grid = StudyGrid()
                grid.add_class("panel")
                yield grid
                yield Static(id="cell", markup=False)
                yield StudyViews()
        yield CommandLine("sysbench-tui study list")

    def on_mount(self) -> None:
        self._list_choices()

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._write_prompts)

    def on_screen_resume(self, event: ScreenResume) -> None:
        self._list_choices()

    def _list_choices(self) -> None:
        listed = choices()
        self._describe(listed)
        if list(listed) == list(self._choices):
            return
        self._choices = listed
        live = next((key for key, choice in listed.items() if choice.is_live), next(iter(listed)))
        self.menu.clear_options()
        self.menu.add_options([Option(choice.label, id=key) for key, choice in listed.items()])
        self.menu.highlighted = list(listed).index(self._key if self._key in listed else live)

    @work(thread=True, group="studies.list", exclusive=True)
    def _describe(self, listed: Mapping[str, StudyChoice]) -> None:
        described = {key: describe(choice) for key, choice in listed.items()}
        self.call_later(self._show_described, described)

    def _show_described(self, described: Mapping[str, tuple[str, str]]) -> None:
        self._described = described
        self.call_after_refresh(self._write_prompts)

    def _write_prompts(self) -> None:
        """Write the list for its width; a line that stays the same is not painted."""
        if not self.query("#list"):  # the app exits
            return
        width = self.menu.scrollable_content_region.width
        for key, choice in self._choices.items():
            if key in self._described and width:
                text = prompt(choice, self._described[key], width)
                if self.menu.get_option(key).prompt != text:
                    self.menu.replace_option_prompt(key, text)

    @on(OptionList.OptionHighlighted, "#list")
    def _look_at(self, event: OptionList.OptionHighlighted) -> None:
        key = str(event.option_id)
        if key != self._key:
            self._key = key
            self.open(self._choices[key])

    @on(OptionList.OptionSelected, "#list")
    def _enter(self) -> None:
        self.set_class(True, "-entered")
        give_focus(self.grid)

    def action_back(self) -> None:
        self.set_class(False, "-entered")
        give_focus(self.menu)

    def open(self, choice: StudyChoice, variant: str | None = None) -> None:
        """Show a study; a profile in ``variant``, by default the one for this machine."""
        self.followed = self.report = self._arrangement = self.chosen = None
        try:
            study = choice.load()
            if variant is None:
                variant = suggested_variant(study) if choice.is_profile else ""
            study = with_variant(study, variant)
            self.followed = StudyWatch(study)
        except SysbenchError as error:
            self._refuse(str(error))
        else:
            self._begin(self.followed)
        self.refresh_bindings()

    def _refuse(self, reason: str) -> None:
        self.query_one("#study").set_class(True, "-refused")
        self.query_one("#heading", Static).update(literal_lines(f"✗ {reason}"))

    def _begin(self, watch: StudyWatch) -> None:
        self.query_one("#study").set_class(False, "-refused")
        self._arrangement = arrange(watch.study, watch.cells)
        self.query_one(CommandLine).show(self.command())
        self.grid.place = (0, 0)
        self._show_state()
        self._fill()

    def paint(self) -> None:
        super().paint()
        watch = self.followed
        if watch is None or not self.query("#heading"):
            return
        if watch.poll():
            self._fill()
            self._describe(self._choices)
            self.refresh_bindings()
        if watch.changes != self._changed or watch.current is not None:
            self._show_state()
        self._report_failed_start(watch)

    def _report_failed_start(self, watch: StudyWatch) -> None:
        """Show the last log line of a runner that ended before its first cell."""
        if not self._ticks_to_start:
            return
        self._ticks_to_start -= 1
        if watch.progress.is_live:
            self._ticks_to_start = 0
        elif not self._ticks_to_start and (line := watch.last_log_line()):
            self.notify(line, title="The study did not start", severity="error")

    def _fill(self) -> None:
        if self.followed is not None and not self._is_filling:
            self._is_filling = True
            self._compute(self.followed)

    @work(thread=True, group="studies.fill")
    def _compute(self, watch: StudyWatch) -> None:
        changes = watch.changes
        report: StudyReport | str
        try:
            report = watch.report()
        except (SysbenchError, OSError) as error:
            report = str(error)
        self.call_later(self._show_filled, watch, changes, report)

    def _show_filled(self, watch: StudyWatch, changes: int, report: StudyReport | str) -> None:
        self._is_filling = False
        if watch is not self.followed or changes != watch.changes:
            self._fill()
        if watch is not self.followed:
            return
        if isinstance(report, str):
            self.notify(report, title="No tables", severity="error")
            return
        self.report = report
        self._show_state()
        self.views.show(report, self.chosen)

    def _show_state(self) -> None:
        watch, arrangement = self.followed, self._arrangement
        if watch is None or arrangement is None:
            return
        self._changed = watch.changes
        self.query_one("#heading", Static).update(study_heading(watch, self.report))
        texts = GridTexts(watch, self.report, self.chosen)
        self.grid.show(texts.grid(arrangement))
        self.grid.border_title = Content(texts.title(arrangement))
        self._show_cell()

    @on(StudyGrid.Moved)
    def _show_cell(self) -> None:
        cells = self._cells_here()
        if self.followed is not None and cells:
            self.query_one("#cell", Static).update(cell_text(self.followed, self.report, cells))

    def _cells_here(self) -> tuple[Cell, ...]:
        if self._arrangement is None:
            return ()
        return tuple(self._arrangement.cells.get(self.grid.place, ()))

    def action_view(self) -> None:
        self.views.turn()

    def action_value(self) -> None:
        """Show the next value in grid and plot; after the last, each cell's first."""
        if self.report is None:
            return
        columns = enumerate(zip(*self.report.numbers.values(), strict=True))
        measured = (index for index, column in columns if any(n is not None for n in column))
        present = -1 if self.chosen is None else self.chosen
        self.chosen = next((index for index in measured if index > present), None)
        self._show_state()
        self.views.show(self.report, self.chosen)

    def action_variant(self) -> None:
        if self.followed is None:
            return
        study = self.followed.study
        names = ["", *study.variants]
        self.open(self._choices[self._key], next_name(names, study.variant))

    def action_start(self) -> None:
        watch = self.followed
        if watch is None or watch.progress.is_live:
            return
        if self.app.is_busy():
            return
        forecasts = waiting_forecasts(watch.progress, self.report.forecasts) if self.report else ()
        seconds, is_least = total_seconds(forecasts)
        if seconds is None or seconds <= LONG_STUDY_SECONDS:
            self._start("start")
            return
        from sysbench.tui.screens.ask_dialog import ask_before_long  # lazy: first frame

        takes = forecast_text(seconds, is_least=is_least)
        self.app.push_screen(ask_before_long(takes), self._start)

    def _start(self, answer: str | None) -> None:
        watch = self.followed
        if answer != "start" or watch is None:
            return
        with report_errors(self, "Not started"):
            watch.start()
            self._ticks_to_start = round(START_SECONDS * 2)
            self.notify("Started. The study continues if you quit.")

    def action_pause(self) -> None:
        """Stop the runner; the next start repeats the current cell."""
        with report_errors(self, "Not stopped"):
            if self.followed is not None and self.followed.directory.stop():
                self.notify("Stopping. Finished cells are kept.")

    @on(StudyGrid.Chosen)
    def action_open_cell(self) -> None:
        cells = self._cells_here()
        runs = [run for cell in cells if self.followed and (run := self.followed.run_of(cell))]
        if not runs:
            is_predicted = any(cell.is_predicted for cell in cells)
            why = "This cell is predicted: no run." if is_predicted else "This cell has no run yet."
            self.notify(why)
        elif runs[-1].is_live():
            self.app.follow(runs[-1])
        else:
            self.app.open_result(runs[-1])

    def action_export(self) -> None:
        from sysbench.tui.screens.ask_dialog import ask_study_path  # lazy: rare

        if self.report is not None:
            self.app.push_screen(ask_study_path(self.report))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        watch = self.followed
        if action == "start":
            return watch is not None and not watch.progress.is_live and not watch.is_over
        if action == "pause":
            return watch is not None and watch.progress.is_live
        if action == "variant":
            if watch is None:
                return False
            return self._choices[self._key].is_profile and bool(watch.study.variants)
        return super().check_action(action, parameters)

    def command(self) -> str:
        return study_command(self.followed.study) if self.followed else "sysbench-tui study list"

    def copyable(self) -> tuple[str, str]:
        table = self.views.table
        if table.display and table.table is not None:
            return "the table as Markdown", table.markdown()
        return super().copyable()
