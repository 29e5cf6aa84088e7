"""Texts and views of Studies: heading, grid, selected cell, list, tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

import msgspec
from textual import getters, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from sysbench.core.machine.devices import resolve_device
from sysbench.core.studies.cell_values import Value
from sysbench.core.studies.forecast import Forecast, total_seconds, waiting_forecasts
from sysbench.core.studies.ratios import ways_in
from sysbench.core.studies.schema import load_study, study_files
from sysbench.core.studies.study_directory import CellStatus, list_studies
from sysbench.core.studies.study_file import Axis, Study
from sysbench.core.studies.study_grid import Cell
from sysbench.core.studies.study_report import StudyReport
from sysbench.core.tables.cells import literal
from sysbench.core.tables.table import Table
from sysbench.core.tables.timing_tables import Figure, digits
from sysbench.tui.live.run_watch import LiveView
from sysbench.tui.live.study_watch import StudyWatch
from sysbench.tui.screens.studies_grid import GridCell
from sysbench.tui.text import STAGE_WORDS, amount, forecast_text, outcome_text
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
    rows, columns = _combinations(down), _combinations(across)
    row_of = {combination: row for row, combination in enumerate(rows)}
    column_of = {combination: column for column, combination in enumerate(columns)}
    cells_by_place: dict[Place, list[Cell]] = {}
    for cell in cells:
        place = (row_of[_point(cell, down)], column_of[_point(cell, across)])
        cells_by_place.setdefault(place, []).append(cell)
    return Arrangement(
        corner=" · ".join(axis.name for axis in down),
        rows=[_label(combination) for combination in rows],
        columns=[_label(combination) for combination in columns],
        cells=cells_by_place,
    )


def fixed_axes(study: Study) -> str:
    return " · ".join(
        f"{axis.name} {short(axis.labels[0])}" for axis in study.axes if len(axis.points) == 1
    )


def short(label: str) -> str:
    """``large`` for ``cs336-2025/large``."""
    return label.rpartition("/")[2]


def _combinations(axes: Sequence[Axis]) -> list[tuple[str, ...]]:
    return list(product(*(axis.labels for axis in axes)))


def _point(cell: Cell, axes: Sequence[Axis]) -> tuple[str, ...]:
    return tuple(cell.point[axis.name] for axis in axes)


def _label(combination: Sequence[str]) -> str:
    return " · ".join(map(short, combination))


NO_VALUE = "–"
LEAST = "▼"
"""Marks a time that is significantly below the others."""
FILLED = "✓"
"""Shown for a finished cell that has tables but no single number."""
_LABELS: tuple[tuple[CellStatus, str], ...] = (
    *(("oom", "OOM"), ("failed", "failed"), ("too-large", "too large"), ("refused", "refused")),
)
_SHOWN = {"waiting": "·", "refused": "refused", "too-large": "too large"}


def study_heading(watch: StudyWatch, report: StudyReport | None) -> Content:
    """``precision · small  ● running  18/20 cells · ETA about 0:41  Title``; cut from the right."""
    progress, study = watch.progress, watch.study
    name = " · ".join(part for part in (study.name, study.variant, fixed_axes(study)) if part)
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
    state, style = _state(watch)
    return Content.assemble(
        (f"{literal(name)}  ", "bold"),
        (f"{state}  ", style),
        f"{' · '.join(parts)}  ",
        (literal(study.title), "$foreground 80%"),
    )


def _state(watch: StudyWatch) -> tuple[str, str]:
    if watch.progress.is_live:
        return "● running", "$accent"
    if watch.is_over:
        return "✓ done", "$success"
    return ("‖ paused", "$warning") if watch.has_begun else ("○ not started", "$foreground 60%")


def shown_value(
    report: StudyReport | None, cell: Cell, chosen: int | None
) -> tuple[Value, int] | None:
    """The value of a cell in the grid, and its index in the report.

    It is the chosen one, else the first that applies; values with a unit come before counts.
    """
    if report is None:
        return None
    applying = [(value, index) for index, value in enumerate(report.values) if value.applies(cell)]
    if chosen is not None:
        return next((pair for pair in applying if pair[1] == chosen), None)
    return min(applying, key=lambda pair: not pair[0].shown_unit, default=None)


def grid_title(report: StudyReport | None, arrangement: Arrangement, chosen: int | None) -> str:
    """The name of the grid's value, or "cells" if cells show different ones."""
    cells = [cell for repeats in arrangement.cells.values() for cell in repeats]
    shown = {pair[0].title for cell in cells if (pair := shown_value(report, cell, chosen))}
    title = shown.pop() if len(shown) == 1 else "cells"
    if report is None or not any(is_best(report, cell, chosen) for cell in cells):
        return title
    ways = " × ".join(axis.name for axis in ways_in(report.study))
    return f"{title} · {LEAST} fastest {ways}, tested"


def is_best(report: StudyReport | None, cell: Cell, chosen: int | None) -> bool:
    """Whether the study's tests found the cell's value to be the lowest along all axes of ways."""
    shown = shown_value(report, cell, chosen)
    if report is None or shown is None:
        return False
    axes = {
        best.axis
        for best in report.best
        if (best.value, best.identity) == (shown[1], cell.identity)
    }
    return bool(axes) and axes == {axis.name for axis in ways_in(report.study)}


def grid_cell(
    watch: StudyWatch, report: StudyReport | None, cells: Sequence[Cell], chosen: int | None
) -> GridCell:
    """The repeats at one place: the median of their values, or their state."""
    statuses = [watch.progress.statuses[cell.id] for cell in cells]
    if "running" in statuses:
        view = watch.current.view if watch.current else None
        return GridCell("running", f"⟳ {_progress(view)}")
    for status, cell in zip(statuses, cells, strict=True):
        if status == "oom":
            oom = report.ooms.get(cell.id) if report else None
            requested_bytes = oom.requested_bytes if oom else None
            return GridCell("oom", f"OOM {amount(requested_bytes)}" if requested_bytes else "OOM")
    numbers = [number for cell in cells if (number := _number(report, cell, chosen)) is not None]
    shown = shown_value(report, cells[0], chosen)
    if numbers and shown:
        text = digits(statistics.median(numbers), shown[0].shown_unit)
        some = f" {len(numbers)}/{len(cells)}" if len(numbers) < len(cells) else ""
        if not some and is_best(report, cells[0], chosen):
            return GridCell("best", f"{text} {LEAST}")
        return GridCell("finished", text + some)
    status = statuses[0]
    if status == "finished":
        return GridCell("finished", NO_VALUE if shown else FILLED)
    if status == "waiting" and report and report.forecasts[cells[0].id].fits is False:
        return GridCell("waiting", "· OOM?")
    return GridCell(status, _SHOWN.get(status, outcome_text(status)))


def _number(report: StudyReport | None, cell: Cell, chosen: int | None) -> float | None:
    shown = shown_value(report, cell, chosen)
    if report is None or shown is None or cell.id not in report.numbers:
        return None
    return report.numbers[cell.id][shown[1]]


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
    """State, values and prediction of the selected cell on two lines."""
    first = cells[0]
    entry = watch.entries.get(first.id)
    status = watch.progress.statuses[first.id]
    parts = [f"{outcome_text(status)}"] + ([entry.run] if entry and entry.run else [])
    head = Content.assemble(
        (literal(first.words), "bold"), ("  " + literal(" · ".join(parts)), "$foreground 60%")
    )
    facts = " · ".join(_cell_facts(watch, report, cells))
    return Content("\n").join([head, Content(literal(facts))])


def _cell_facts(
    watch: StudyWatch, report: StudyReport | None, repeats: Sequence[Cell]
) -> Iterator[str]:
    cell = repeats[0]
    if cell.refused:
        yield cell.refused
        return
    rounds = report.numbers if report else {}
    measured = [rounds[repeat.id] for repeat in repeats if repeat.id in rounds]
    for index, value in enumerate(report.values if report else ()):
        known = [number for numbers in measured if (number := numbers[index]) is not None]
        if known:
            yield _of_rounds(value, known)
    entry = watch.entries.get(cell.id)
    if entry and entry.detail:
        yield entry.detail
    if report:
        yield from _forecast(report.forecasts[cell.id], is_done=bool(measured))


def _of_rounds(value: Value, numbers: Sequence[float]) -> str:
    """``step median 16.12 ms, 13.50 ms to 22.50 ms in 8 rounds``."""
    text = f"{value.name} {value.words(statistics.median(numbers))}"
    if len(numbers) < 2:
        return text
    low, high = value.words(min(numbers)), value.words(max(numbers))
    return f"{text}, {low} to {high} in {len(numbers)} rounds"


def _forecast(forecast: Forecast, *, is_done: bool) -> Iterator[str]:
    if forecast.peak_bytes is not None:
        least = "≥ " if forecast.is_least else ""
        capacity = f" of {amount(forecast.capacity_bytes)}" if forecast.capacity_bytes else ""
        fits = "" if forecast.fits is not False else ": will not fit"
        yield f"predicted peak {least}{amount(forecast.peak_bytes)}{capacity}{fits}"
    if not is_done:
        yield forecast_text(forecast.seconds)


def introduction(study: Study) -> Iterator[str]:
    yield study.title
    if study.source:
        yield f"repeats {study.source}"
    yield f"passes: {', '.join(study.passes)}" + (
        f" · {study.repeat} rounds" if study.repeat > 1 else ""
    )
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


SMALL = "small"
"""The variant for a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyChoice:
    """One line of the list.

    Attributes:
        load: Reads the study; may raise SysbenchError.
        is_profile: Whether it is a file, which can have several sizes; else a started study.
        is_live: Whether it is running.
    """

    label: str
    load: Callable[[], Study]
    is_profile: bool = False
    is_live: bool = False


def choices() -> dict[str, StudyChoice]:
    """The lines by key: profiles, then started studies, newest first."""
    profiles = {
        f"file-{name}": StudyChoice(label=name, load=partial(load_study, name), is_profile=True)
        for name in study_files()
    }
    begun = {}
    for directory in list_studies():
        is_live = directory.is_live()
        label = f"{'●' if is_live else '↳'} {directory.id}"
        begun[f"begun-{directory.id}"] = StudyChoice(
            label=label, load=directory.study, is_live=is_live
        )
    return profiles | begun


def suggested_variant(study: Study) -> str:
    """The small variant, if there is one, on a machine without a CUDA device; else ""."""
    return SMALL if SMALL in study.variants and resolve_device("auto") == "cpu" else ""


PLOT, FINDINGS, NOTES = "plot", "findings", "notes"


class StudyViews(Vertical):
    """Shows one view of a report; on wide screens the plot next to a table."""

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
            self.bar.active = next_name(self.bar.names, self.bar.active)
            self._show()

    @property
    def shown_table(self) -> Table | None:
        """The visible table with the rows that match the filter."""
        table = self.table.table
        if table is None or not self.table.display:
            return None
        return msgspec.structs.replace(
            table, rows=tuple(table.rows[index] for index in self.table.matching)
        )

    @on(ViewBar.Chosen)
    def _clicked(self, event: ViewBar.Chosen) -> None:
        self.bar.active = event.name
        self._show()

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
        self.words.display = view in (FINDINGS, NOTES)
        self.screen.set_class(view == PLOT, "-plotting")
        if table is None and self.table.table not in report.shown:
            table = next(iter(report.shown), None)
        if table is not None and table != self.table.table:
            self.table.note = " · ".join(report.legends.get(table.name, ()))
            self.table.show(table)
        self.plot.show(figure)
        lines = findings(report) if view == FINDINGS else introduction(report.study)
        self.words.query_one(Static).update(literal_lines("\n".join(lines)))

    def _figure(self, report: StudyReport) -> Figure | None:
        names = [value.title for value in report.values]
        figures = {figure.name: figure for figure in report.figures}
        chosen = names[self._chosen] if self._chosen is not None else next(iter(figures), "")
        return figures.get(chosen)
