"""Texts and views of Studies: heading, grid, selected cell, list, tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

from rich.cells import cell_len
from textual import getters, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from sysbench.core.errors import SysbenchError
from sysbench.core.machine.devices import resolve_device
from sysbench.core.predict.layout_plan import Layout
from sysbench.core.storage import study_files
from sysbench.core.studies.cell_values import Value
from sysbench.core.studies.forecast import Forecast, total_seconds, waiting_forecasts
from sysbench.core.studies.ratios import ways_in
from sysbench.core.studies.schema import Study, load_study
from sysbench.core.studies.study_directory import (
    CellEntry,
    CellStatus,
    directory_of,
    list_studies,
    progress_in,
)
from sysbench.core.studies.study_grid import Cell, expand, short_label
from sysbench.core.studies.study_report import StudyReport
from sysbench.core.tables.cells import literal
from sysbench.core.tables.timing_tables import Figure, digits
from sysbench.tui.live.run_watch import LiveView
from sysbench.tui.live.study_watch import StudyWatch
from sysbench.tui.screens.studies_grid import Grid, GridCell
from sysbench.tui.text import (
    STAGE_WORDS,
    amount,
    forecast_text,
    layout_facts,
    outcome_text,
    truncate,
)
from sysbench.tui.widgets.key_bar import ViewBar, next_name
from sysbench.tui.widgets.plot import LinePlot
from sysbench.tui.widgets.table_view import TableView

Place = tuple[int, int]
"""Row and column."""


class Arrangement(NamedTuple):
    """Labels of rows and columns; by place the cells, one for each repeat."""

    corner: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[Place, Sequence[Cell]]


def arrange(study: Study, cells: Sequence[Cell]) -> Arrangement:
    """Arrange cells in a grid: row axes of the first table down, all others across.

    Without other axes the last row axis goes across.
    """
    varying = [axis for axis in study.axes if len(axis.points) > 1] or [*study.axes[:1]]
    down = [axis for axis in varying if axis.name in study.tables[0].rows]
    across = [axis for axis in varying if axis not in down]
    if not across and len(down) > 1:
        across = [down.pop()]
    rows, columns = (
        {labels: n for n, labels in enumerate(product(*(axis.labels for axis in axes)))}
        for axes in (down, across)
    )
    by_place: dict[Place, list[Cell]] = {}
    for cell in cells:
        row = rows[tuple(cell.point[axis.name] for axis in down)]
        column = columns[tuple(cell.point[axis.name] for axis in across)]
        by_place.setdefault((row, column), []).append(cell)
    row_names, column_names = (
        [" · ".join(map(short_label, labels)) for labels in side] for side in (rows, columns)
    )
    corner = " · ".join(axis.name for axis in down)
    return Arrangement(corner, row_names, column_names, by_place)


NO_VALUE = "–"
LEAST = "▼"
"""Marks a time that is significantly below the others."""
FILLED = "✓"
"""Shown for a finished cell that has tables but no single number."""
_LABELS: tuple[tuple[CellStatus, str], ...] = (
    *(("predicted", "predicted"), ("oom", "OOM"), ("failed", "failed")),
    *(("too-large", "too large"), ("refused", "refused")),
)
_SHOWN = {"waiting": "·", "refused": "refused", "too-large": "too large"}


def study_heading(watch: StudyWatch, report: StudyReport | None) -> Content:
    progress, study = watch.progress, watch.study
    single = [axis for axis in study.axes if len(axis.points) == 1]
    fixed = [f"{axis.name} {short_label(axis.labels[0])}" for axis in single]
    name = " · ".join(filter(None, (study.name, study.variant, *fixed)))
    rounds = f" in {study.repeat} rounds" if study.repeat > 1 else ""
    parts = [f"{progress.done}/{progress.total} cells{rounds}"]
    counts = progress.counts
    parts += [f"{counts[status]} {words}" for status, words in _LABELS if counts[status]]
    if report is not None and not watch.is_over:
        seconds, is_least = total_seconds(waiting_forecasts(progress, report.forecasts))
        left = forecast_text(seconds, is_least=is_least)
        if seconds is not None:
            left = f"ETA {left}" if progress.is_live else f"{left} left"
        parts.append(left)
    if progress.is_live:
        state = ("● running", "$accent")
    elif watch.is_over:
        state = ("✓ done", "$success")
    elif watch.has_begun:
        state = ("‖ paused", "$warning")
    else:
        state = ("○ not started", "$foreground 60%")
    return Content.assemble(
        (f"{literal(name)}  ", "bold"),
        (f"{state[0]}  ", state[1]),
        f"{' · '.join(parts)}  ",
        (literal(study.title), "$foreground 80%"),
    )


@dataclass(frozen=True, slots=True)
class GridTexts:
    """Texts of the grid's cells.

    Attributes:
        chosen: Index of the value to show. By default each cell shows the first that applies;
            values with a unit come before counts.
    """

    watch: StudyWatch
    report: StudyReport | None
    chosen: int | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether some cells are predicted and others are measured."""
        return len({cell.is_predicted for cell in self.watch.cells}) > 1

    def value(self, cell: Cell) -> tuple[int, Value] | None:
        values = enumerate(self.report.values if self.report else ())
        applying = [(index, value) for index, value in values if value.applies(cell)]
        if self.chosen is not None:
            applying = [pair for pair in applying if pair[0] == self.chosen]
        return min(applying, key=lambda pair: not pair[1].shown_unit, default=None)

    def is_best(self, cell: Cell) -> bool:
        """Whether the study's tests found the value to be the lowest along all axes of ways."""
        shown = self.value(cell)
        if self.report is None or shown is None:
            return False
        found = [best for best in self.report.best if best.identity == cell.identity]
        axes = {best.axis for best in found if best.value == shown[0]}
        return bool(axes) and axes == {axis.name for axis in ways_in(self.report.study)}

    def title(self, arrangement: Arrangement) -> str:
        cells = [cell for repeats in arrangement.cells.values() for cell in repeats]
        shown = {pair[1].title for cell in cells if (pair := self.value(cell))}
        title = " · ".join(sorted(shown)) if len(shown) == 1 or self.is_mixed else "cells"
        if not any(map(self.is_best, cells)):
            return title
        ways = " × ".join(axis.name for axis in ways_in(self.watch.study))
        return f"{title} · {LEAST} fastest {ways}, tested"

    def grid(self, arrangement: Arrangement) -> Grid:
        corner, rows, columns, cells = arrangement
        texts = [
            [self.cell(own) if (own := cells.get((row, n))) else None for n in range(len(columns))]
            for row in range(len(rows))
        ]
        return Grid(corner, columns, rows, texts)

    def cell(self, cells: Sequence[Cell]) -> GridCell:
        statuses = [self.watch.progress.statuses[cell.id] for cell in cells]
        first, status, report = cells[0], statuses[0], self.report
        if "running" in statuses:
            view = self.watch.current.view if self.watch.current else None
            doing = "predicting" if first.is_predicted else _progress(view)
            return GridCell("running", f"⟳ {doing}")
        if "oom" in statuses:
            oom = report.ooms.get(cells[statuses.index("oom")].id) if report else None
            requested_bytes = oom.requested_bytes if oom else None
            return GridCell("oom", f"OOM {amount(requested_bytes)}" if requested_bytes else "OOM")
        shown = self.value(first)
        if report and shown:
            index, value = shown
            found = [report.numbers[cell.id][index] for cell in cells if cell.id in report.numbers]
            numbers = [number for number in found if number is not None]
            if numbers:
                text = digits(statistics.median(numbers), value.shown_unit)
                entry = self.watch.entries.get(first.id)
                if entry and entry.predicted:
                    return self._predicted(entry.predicted, text)
                if len(numbers) < len(cells):
                    return GridCell("finished", f"{text} {len(numbers)}/{len(cells)}")
                if self.is_best(first):
                    return GridCell("best", f"{text} {LEAST}")
                return GridCell("finished", text)
        if status == "finished":
            return GridCell("finished", NO_VALUE if shown else FILLED)
        if status == "waiting" and report and report.forecasts[first.id].fits is False:
            return GridCell("waiting", "· OOM?")
        return GridCell(status, _SHOWN.get(status, outcome_text(status)))

    def _predicted(self, layout: Layout, text: str) -> GridCell:
        words = ["predicted"] * self.is_mixed + [layout.verdict] * (layout.verdict != "fits")
        return GridCell("oom" if layout.verdict == "over" else "finished", " ".join([*words, text]))


def _progress(view: LiveView | None) -> str:
    """``7/10``, ``step 12`` or the worker's stage."""
    if view is None:
        return "starting"
    if view.progress is not None:
        return f"{view.progress[1]}/{view.progress[2]}"
    if view.stage == "measure" and view.step_count:
        total = int(view.spec.get("steps") or 0)
        return f"{view.step_count}/{total}" if total else f"step {view.step_count}"
    return STAGE_WORDS.get(view.stage, "starting").split()[0]


def cell_text(watch: StudyWatch, report: StudyReport | None, cells: Sequence[Cell]) -> Content:
    first = cells[0]
    entry = watch.entries.get(first.id)
    state = outcome_text(watch.progress.statuses[first.id])
    run = f" · {entry.run}" if entry and entry.run else ""
    head = Content.assemble(
        (literal(first.words), "bold"), ("  " + literal(state + run), "$foreground 60%")
    )
    facts = [first.refused] if first.refused else _cell_facts(report, cells, entry)
    return Content("\n").join([head, Content(literal(" · ".join(facts)))])


def _cell_facts(
    report: StudyReport | None, repeats: Sequence[Cell], entry: CellEntry | None
) -> Iterator[str]:
    if entry and entry.predicted:
        yield from layout_facts(entry.predicted)
    numbers = report.numbers if report else {}
    measured = [numbers[repeat.id] for repeat in repeats if repeat.id in numbers]
    for index, value in enumerate(report.values if report else ()):
        known = [number for own in measured if (number := own[index]) is not None]
        if known:
            text = f"{value.name} {value.words(statistics.median(known))}"
            low, high = value.words(min(known)), value.words(max(known))
            yield f"{text}, {low} to {high} in {len(known)} rounds" if known[1:] else text
    if entry and entry.predicted:
        return
    if entry and entry.detail:
        yield entry.detail
    forecast = report.forecasts[repeats[0].id] if report else Forecast()
    if forecast.peak_bytes is not None:
        least = "≥ " if forecast.is_least else ""
        capacity = f" of {amount(forecast.capacity_bytes)}" if forecast.capacity_bytes else ""
        fits = "" if forecast.fits is not False else ": will not fit"
        yield f"predicted peak {least}{amount(forecast.peak_bytes)}{capacity}{fits}"
    if report and not measured:
        yield forecast_text(forecast.seconds)


def introduction(report: StudyReport) -> Iterator[str]:
    study = report.study
    yield study.title
    if study.source:
        yield f"repeats {study.source}"
    yield report.procedure + (f" · {study.repeat} rounds" if study.repeat > 1 else "")
    for axis in study.axes:
        yield f"{axis.name}: {', '.join(axis.labels)}"
    if study.fixed:
        yield "fixed: " + ", ".join(f"{key}={value}" for key, value in study.fixed.items())
    yield from (f"· {note}" for note in study.notes)


def findings(report: StudyReport) -> Iterator[str]:
    yield from (f"! {caution}" for caution in report.cautions)
    yield from report.sentences
    if not report.sentences:
        compares = any(column.ratio for layout in report.study.tables for column in layout.columns)
        why = (
            "no compared pair of cells is finished" if compares else "this study compares no cells"
        )
        yield f"No findings: {why}."


def literal_lines(text: str) -> Content:
    """Escape text from a file; keep its line breaks."""
    return Content("\n".join(map(literal, text.splitlines())))


WIDE_LIST = 44
"""Cells from which on the list has titles."""
SMALL = "small"
"""The variant for a CPU."""


class StudyChoice(NamedTuple):
    """One line of the list.

    Attributes:
        load: Reads the study; may raise SysbenchError.
        is_profile: Whether it is a file, which can have several sizes; else a started study.
    """

    label: str
    load: Callable[[], Study]
    is_profile: bool = False
    is_live: bool = False


def choices() -> dict[str, StudyChoice]:
    listed = {
        f"file-{name}": StudyChoice(name, partial(load_study, name), is_profile=True)
        for name in study_files()
    }
    for directory in list_studies():
        is_live = directory.is_live()
        label = f"{'●' if is_live else '↳'} {directory.id}"
        listed[f"begun-{directory.id}"] = StudyChoice(label, directory.study, is_live=is_live)
    return listed


def describe(choice: StudyChoice) -> tuple[str, str]:
    """Return the title of a study, and the state of a started one: ``✓ 15/15``, ``‖ 3/15 small``.

    Both are empty for a file that cannot be read: opening it gives the reason.
    """
    try:
        study = choice.load()
        if choice.is_profile:
            return study.title, ""
        progress = progress_in(directory_of(study), expand(study))
    except SysbenchError:
        return "", ""
    is_over = progress.done == progress.total
    glyph = "●" if progress.is_live else "✓" if is_over else "‖"
    counts = f"{glyph} {progress.done}/{progress.total}"
    return study.title, " ".join(filter(None, (counts, study.variant)))


def prompt(choice: StudyChoice, described: tuple[str, str], width: int) -> Content:
    """A line of the list; from `WIDE_LIST` on with a second line for the title."""
    title, state = (literal(text) for text in described)
    label = truncate(choice.label, width)
    room = width - cell_len(label) - 1
    line = Content(label)
    if state and cell_len(state) <= room:
        line += Content.styled(f"{state:>{room + 1}}", "$foreground 70%")
    if width < WIDE_LIST or not title:
        return line
    return line + Content.styled(f"\n  {truncate(title, width - 2)}", "$foreground 60%")


def suggested_variant(study: Study) -> str:
    """The small variant, if there is one, on a machine without a CUDA device; else ""."""
    if SMALL not in study.variants or resolve_device("auto") != "cpu":
        return ""
    return "" if all(cell.is_predicted for cell in expand(study)) else SMALL


PLOT, FINDINGS, NOTES = "plot", "findings", "notes"


class StudyViews(Vertical):
    bar = getters.query_one(ViewBar)
    table = getters.query_one(TableView)
    plot = getters.query_one(LinePlot)
    words = getters.query_one("#words", VerticalScroll)

    def __init__(self) -> None:
        super().__init__()
        self._report: StudyReport | None = None
        self._chosen: int | None = None

    def compose(self) -> ComposeResult:
        yield ViewBar(())
        with Horizontal(id="lower"):
            table = TableView()
            table.add_class("panel")
            yield table
            yield LinePlot()
            with VerticalScroll(id="words"):
                yield Static(markup=False)

    def show(self, report: StudyReport, chosen: int | None) -> None:
        """Show a report; ``chosen`` is the index of the plotted value, None the first one."""
        is_other = self._report is None or self._report.study.name != report.study.name
        self._report, self._chosen = report, chosen
        self.bar.names = [*(table.name for table in report.shown), PLOT, FINDINGS, NOTES]
        if is_other or self.bar.active not in self.bar.names:
            self.bar.active = self.bar.names[0]
        self.bar.refresh()
        self._show()

    def turn(self) -> None:
        if self.bar.names:
            self.turn_to(next_name(self.bar.names, self.bar.active))

    def turn_to(self, name: str) -> None:
        self.bar.active = name
        self._show()

    @on(ViewBar.Chosen)
    def _clicked(self, event: ViewBar.Chosen) -> None:
        self.turn_to(event.name)

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        report, view = self._report, self.bar.active
        if report is None:
            return
        table = next((table for table in report.shown if table.name == view), None)
        is_roomy = self.screen.has_class("-roomy")
        figure = self._figure(report)
        self.table.display = table is not None or (is_roomy and bool(report.shown))
        self.plot.display = view == PLOT or (is_roomy and table is not None and figure is not None)
        is_new = not any(n is not None for row in report.numbers.values() for n in row)
        self.words.display = view in (FINDINGS, NOTES) or (is_roomy and is_new)
        if is_new and figure is None:
            self.plot.display = view == PLOT
        self.screen.set_class(view == PLOT, "-plotting")
        if table is None and self.table.table not in report.shown:
            table = next(iter(report.shown), None)
        if table is not None and table != self.table.table:
            self.table.note = " · ".join(report.legends.get(table.name, ()))
            self.table.show(table)
        self.plot.show(figure)
        lines = findings(report) if view == FINDINGS else introduction(report)
        self.words.query_one(Static).update(literal_lines("\n".join(lines)))

    def _figure(self, report: StudyReport) -> Figure | None:
        if self._chosen is None:
            return next(iter(report.figures), None)
        name = report.values[self._chosen].title
        return next((figure for figure in report.figures if figure.name == name), None)
