"""Timing: samples, phases, rates. Telemetry: each series over the run, then a summary."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sysbench.core.compare.rounds import inside, middle
from sysbench.core.errors import DamagedFileError
from sysbench.core.export.text_formats import table_as_markdown
from sysbench.core.formatting import counted
from sysbench.core.machine.sample import Sample
from sysbench.core.record.events import PassStarted, TelemetrySampled
from sysbench.core.record.record import Spread, Telemetry, Timing
from sysbench.core.record.timing import limiting_reasons
from sysbench.core.tables.cells import cells_as_text
from sysbench.core.tables.table import Table
from sysbench.core.tables.timing_tables import (
    ending_words,
    known_words,
    rounds_table,
    speed_table,
    telemetry_table,
    timing_table,
)
from sysbench.tui.live.run_watch import mark_of
from sysbench.tui.screens.result_views import ResultTab
from sysbench.tui.text import ending_part, interval, milliseconds, significant
from sysbench.tui.widgets.drawing import Drawing, Facts, Framed, Pair, first_fitting, wrap_lines
from sysbench.tui.widgets.plot import Plot
from sysbench.tui.widgets.table_view import TableView
from sysbench.tui.widgets.telemetry_rows import telemetry_lines
from sysbench.tui.widgets.traces import bar

BINS = 12
MEDIAN = " median"
COLUMNS = (
    *("phase", "median_ms", "ci_low_ms", "ci_high_ms", "mad_ms", "mean_ms", "std_ms"),
    *("min_ms", "max_ms", "n", "p10_ms", "p90_ms", "iqr_ms", "drift"),
)

ROUND_COLUMNS = (
    *("round", "median_ms", "ci_low_ms", "ci_high_ms", "n", "counts", "why_not", "sm_clock_mhz"),
    *("temperature_celsius", "cpu_percent", "own_cpu_percent", "tenants", "clock_reasons"),
    *("experiment", "side", "block"),
)


class TimingTab(ResultTab[Timing]):
    def content(self, timing: Timing) -> ComposeResult:
        spec = self.record.spec
        with VerticalScroll():
            yield Drawing(lambda width, height: headline_of(timing, spec, width), classes="head")
            with Framed(f"Steps, ms{_of_round(timing)} · ┄ median", id="samples"):
                yield Plot(axis=lambda value: significant(value, 3))
            table = TableView(timing_table(timing), order=COLUMNS, id="phases-table")
            yield table.add_class("own-height")
            if timing.rounds:
                rounds = rounds_table(timing)
                yield Static(rounds.title, classes="head", markup=False)
                table = TableView(rounds, order=ROUND_COLUMNS, id="rounds-table")
                yield table.add_class("own-height")
            with Horizontal(classes="side"):
                with Framed("Distribution, ms", id="spread"):
                    yield Drawing(wrap_lines(partial(histogram, timing.samples_ms)), id="histogram")
                speed = speed_table(timing, self.record.telemetry)
                yield Facts("Speed and settings", _pairs(speed))

    def fill(self, timing: Timing) -> None:
        warm = timing.warmup_ms[1:]
        marks = [(0, "warm-up"), (len(warm), "measured")] if warm else [(0, "measured")]
        median_ms = inside(timing).median_ms
        level = (median_ms, f"median {milliseconds(median_ms)}")
        self.query_one(Plot).show(
            [*warm, *timing.samples_ms], marks=marks, split=len(warm), level=level
        )

    def copyable(self) -> tuple[str, str] | None:
        if self.block is None:
            return None
        return "the timing table as Markdown", self.query_one("#phases-table", TableView).markdown()


def headline_of(timing: Timing, spec: Mapping[str, Any], width: int) -> Content:
    within = inside(timing)
    ending = ending_words(
        timing.stop_reason,
        within.half_width,
        until=spec.get("until", 0.0),
        steps=spec.get("steps", 0),
    )
    ends = [Content("  ") + Content.styled(*ending_part(words)) for words in ending]
    median = Content.styled(milliseconds(timing.step.median_ms), "bold $accent")
    head = median + Content(f" {interval(timing.step.half_width)}")
    known = Content(f" {known_words(timing)}")
    outliers = Content.styled(_outliers(within), "$foreground 60%")
    choices: Sequence[list[Content]] = (
        [known, *ends, outliers],
        [known, *ends],
        ends,
        ends[:1],
        [known],
        [],
    )
    return first_fitting((Content("").join([head, *parts]) for parts in choices), width)


def _of_round(timing: Timing) -> str:
    """``, round 3``: the round whose steps are shown; empty for a single one."""
    shown = middle(timing.rounds)
    return "" if shown is None else f", round {shown.index}"


def _outliers(step: Spread) -> str:
    return f"  {counted(len(step.outliers), 'outlier')}, kept" if step.outliers else ""


def histogram(samples: Sequence[float], width: int, bins: int = BINS) -> list[Content]:
    low, high = min(samples), max(samples)
    step = (high - low) / bins or 1.0
    counts = [0] * bins
    for sample in samples:
        counts[min(int((sample - low) / step), bins - 1)] += 1
    largest = max(counts)
    edges = [significant(low + step * number, 4) for number in range(bins)]
    margin = max(map(len, edges))
    room = max(width - margin - len(f"  {largest}{MEDIAN}"), 1)
    middle_bin = min(int((statistics.median(samples) - low) / step), bins - 1)
    return [
        Content.assemble(
            (f"{edge:>{margin}} ", "$foreground 60%"),
            (bar(count / largest, room), "$accent" if at == middle_bin else "$accent 60%"),
            f" {count or ''}",
            MEDIAN if at == middle_bin else "",
        )
        for at, (edge, count) in enumerate(zip(edges, counts, strict=True))
    ]


def _pairs(table: Table) -> list[Pair]:
    rows = cells_as_text(table)
    return [(name, "  ".join(cell for cell in (value, note) if cell)) for name, value, note in rows]


class TelemetryTab(ResultTab[Telemetry]):
    def content(self, telemetry: Telemetry) -> ComposeResult:
        with Framed("Whole run", id="series"):
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
            self.notify(str(error), title="No series", severity="warning")
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
