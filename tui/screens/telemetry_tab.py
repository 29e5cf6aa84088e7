"""Telemetry: each series over the run with its stages, then a summary."""

from __future__ import annotations

from functools import partial

import msgspec
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from sysbench.core.errors import DamagedFileError
from sysbench.core.export.text_formats import table_as_markdown
from sysbench.core.machine.sample import Sample
from sysbench.core.record.events import PassStarted, TelemetrySampled
from sysbench.core.record.record import Telemetry
from sysbench.core.record.timing import limiting_reasons
from sysbench.core.tables.timing_tables import telemetry_table
from sysbench.tui.live.run_watch import mark_of
from sysbench.tui.screens.result_views import ResultTab
from sysbench.tui.widgets.drawing import Drawing
from sysbench.tui.widgets.table_view import TableView
from sysbench.tui.widgets.telemetry_rows import telemetry_lines


class TelemetryTab(ResultTab[Telemetry]):
    """Plots of all samples above a table of the measured part."""

    def content(self, telemetry: Telemetry) -> ComposeResult:
        with Vertical(classes="panel", id="series") as series:
            series.border_title = "Whole run"
            yield Drawing()
        if reasons := ", ".join(limiting_reasons(telemetry.clock_reasons)):
            yield Static(f"! GPU clocks were limited by: {reasons}", markup=False)
        for name, why in telemetry.missing.items():
            if name.startswith("device") and "." not in name:  # the whole device
                yield Static(f"! no GPU telemetry: {why}", markup=False)
        for other in telemetry.other_processes:
            who = f"{other.get('name', '?')}, pid {other.get('pid', '?')}"
            yield Static(f"! another process used the device: {who}", markup=False)
        if telemetry.series:
            title = "Measured part of the timing pass"
            yield TableView(telemetry_table(telemetry), title=title)
        else:
            yield Static(
                "No sample in the measured part, which was shorter than the sampling interval of "
                f"{telemetry.interval_seconds:g} s.",
                markup=False,
            )

    def fill(self, telemetry: Telemetry) -> None:
        self.samples: list[Sample] = []
        self.marks: list[tuple[int, str]] = []
        try:
            self._read_events()
        except (DamagedFileError, msgspec.ValidationError) as error:
            self.notify(str(error), title="No series", severity="warning", markup=False)
        device = str(self.record.spec.get("device", "auto"))
        draw = partial(telemetry_lines, self.samples, self.marks, device)
        self.query_one(Drawing).show(draw)

    def _read_events(self) -> None:
        current = ""
        for event in self.run.tail().read():
            if isinstance(event, TelemetrySampled):
                self.samples.append(msgspec.convert(event.sample, Sample))
            elif mark := mark_of(event, current):
                self.marks.append((event.t_ns, mark))
            if isinstance(event, PassStarted):
                current = event.name

    def copyable(self) -> tuple[str, str] | None:
        telemetry = self.block
        if telemetry is None or not telemetry.series:
            return None
        return "the summary as Markdown", table_as_markdown(telemetry_table(telemetry))
