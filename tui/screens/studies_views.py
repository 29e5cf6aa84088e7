"""The views below a study's grid: tables, plot, conclusions, notes."""

from __future__ import annotations

import msgspec
from textual import getters, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import Static

from sysbench.core.studies.study_report import Report
from sysbench.core.tables.chart import Figure
from sysbench.core.tables.table import Table
from sysbench.tui.screens.studies_text import introduction, literal_lines, said
from sysbench.tui.widgets.line_plot import LinePlot
from sysbench.tui.widgets.tab_bar import ViewBar, after
from sysbench.tui.widgets.table_view import TableView

PLOT, FINDINGS, NOTES = "plot", "findings", "notes"


class StudyViews(Vertical):
    """One view of a report at a time; where there is room, the plot next to a table."""

    bar = getters.query_one(ViewBar)
    table = getters.query_one(TableView)
    plot = getters.query_one(LinePlot)
    words = getters.query_one("#words", VerticalScroll)

    def __init__(self) -> None:
        super().__init__()
        self._report: Report | None = None
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

    def show(self, report: Report, chosen: int | None) -> None:
        """Show this report. ``chosen`` is the index of the value that the plot draws; None takes
        the first that can be drawn."""
        is_other = self._report is None or self._report.study.name != report.study.name
        self._report, self._chosen = report, chosen
        self.bar.names = [*(table.name for table in report.shown), PLOT, FINDINGS, NOTES]
        if is_other or self.bar.active not in self.bar.names:
            self.bar.active = self.bar.names[0]
        self.bar.refresh()
        self._show()

    def turn(self) -> None:
        """Show the next view."""
        if self.bar.names:
            self.bar.active = after(self.bar.names, self.bar.active)
            self._show()

    @property
    def shown_table(self) -> Table | None:
        """The table in view, with the rows that match the search."""
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
        lines = said(report) if view == FINDINGS else introduction(report.study)
        self.words.query_one(Static).update(literal_lines("\n".join(lines)))

    def _figure(self, report: Report) -> Figure | None:
        names = [value.title for value in report.values]
        figures = {figure.name: figure for figure in report.figures}
        chosen = names[self._chosen] if self._chosen is not None else next(iter(figures), "")
        return figures.get(chosen)
