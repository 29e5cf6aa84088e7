"""The output of `study` as lines: a report, or the forecast of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from sysbench.core.compare.bounds import least_pairs
from sysbench.core.formatting import counted, format_bytes
from sysbench.core.machine.devices import resolve_device
from sysbench.core.studies.ratios import ways_in
from sysbench.core.studies.study_file import Study
from sysbench.core.studies.study_grid import Cell
from sysbench.core.studies.study_report import StudyReport
from sysbench.core.studies.study_text import cautions_of
from sysbench.core.tables.table import Table, is_number
from sysbench.tui.commands.layout import Line, blank, prose, table_lines, titled
from sysbench.tui.widgets.plot import figure_rows

PLOT_ROWS = 14


def study_lines(report: StudyReport, width: int) -> Iterator[Line]:
    """The report without the environment, which the other formats have."""
    study, progress = report.study, report.progress
    name = " · ".join(part for part in (study.name, study.variant) if part)
    yield [(f"{name}: {study.title}", "bold")]
    yield [(f"{progress.done} of {progress.total} cells have their value", "dim")]
    for caution in report.cautions:
        yield from prose(f"! {caution}", width, hang=2, style="yellow")
    for table in report.shown:
        yield from titled(table.title or table.name, table_lines(table, width))
        for line in report.legends.get(table.name, ()):
            yield from prose(line, width, hang=2, style="dim")
    for title, lines in (("What the rows say", report.sentences), ("Notes", study.notes)):
        if lines:
            yield from titled(title, (row for line in lines for row in prose(line, width)))
    for figure in report.figures:
        yield []
        yield from (
            [(text, "") for text, _ in row] for row in figure_rows(figure, width, PLOT_ROWS)
        )
    columns = [name for name in report.commands.columns if name != "command"]
    yield from titled(
        report.commands.title, table_lines(report.commands, width, columns=columns, drop=["why"])
    )
    yield []
    told = zip(report.commands.column("command"), report.commands.column("why"), strict=True)
    for command, why in dict.fromkeys((one, None if one else reason) for one, reason in told):
        if command:
            yield [(f"  $ {command}", "dim")]
        else:
            yield from prose(f"cannot be run: {why}", width, hang=2, style="dim")


def forecast_lines(
    study: Study, cells: Sequence[Cell], table: Table, takes: str, width: int
) -> Iterator[Line]:
    """The cells with their predictions, rounds once; ``takes`` is the time of all, as text."""
    once = [n for n, cell in enumerate(cells) if not cell.repeat]
    table = msgspec.structs.replace(table, rows=tuple(table.rows[n] for n in once))
    yield from titled(table.title, table_lines(table, width))
    yield blank()
    peaks = zip(table.column("peak_bytes"), table.column("fits"), strict=True)
    sizes = [peak for peak, fits in peaks if fits is False and is_number(peak)]
    first = f", the first takes {format_bytes(int(sizes[0]))}" if sizes else ""
    too_large = f"{len(sizes)} of {len(once)} are predicted not to fit{first}"
    rounds = f"{study.repeat} rounds of {counted(len(once), 'cell')}: " if study.repeat > 1 else ""
    yield from prose(f"{rounds}{takes}; {too_large}", width)
    compares = any(column.ratio for layout in study.tables for column in layout.columns)
    if (compares or ways_in(study)) and study.repeat < least_pairs():
        rounds = counted(study.repeat, "round")
        text = f"{rounds} of either cell, so no comparison is tested by pairs of rounds: "
        yield from prose(f"{text}--repeat {least_pairs()} is the least", width)
    for caution in cautions_of(study, cells, {}):
        yield from prose(f"! {caution}", width, hang=2, style="yellow")
    if study.variants and not study.variant and resolve_device("auto") == "cpu":
        names = ", ".join(study.variants)
        yield from prose(f"no CUDA device is here: --variant {names} is made for that", width)
