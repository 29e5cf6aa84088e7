"""The report of a study: tables, charts, sentences; as Markdown, CSV, JSON, one HTML page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from sysbench.core.export.page_document import (
    document,
    line_chart,
    memory_chart,
    section,
    table,
    tag,
    text,
)
from sysbench.core.export.text_formats import escaped, table_as_markdown, tables_as_csv
from sysbench.core.formatting import UNKNOWN
from sysbench.core.record.memory import Oom, Timeline
from sysbench.core.record.record import Record
from sysbench.core.studies import study_grid as grid
from sysbench.core.studies.cell_values import Value, figures_of, pruner_for, values_of
from sysbench.core.studies.details import oom_of
from sysbench.core.studies.forecast import Forecast, Forecaster, past_entries
from sysbench.core.studies.ratios import Best, best_of, sentence_of
from sysbench.core.studies.schema import Study
from sysbench.core.studies.study_directory import (
    CellEntry,
    CellStatus,
    StudyDirectory,
    StudyProgress,
    progress_in,
    records_of,
    with_reasons,
)
from sysbench.core.studies.study_table import fillings
from sysbench.core.studies.study_text import cautions_of, measured_of, sentences_of
from sysbench.core.tables.cells import literal_json
from sysbench.core.tables.context import environment_table
from sysbench.core.tables.table import QUANTITY, Cell, Table, select
from sysbench.core.tables.timing_tables import Figure

MAX_NAMED = 3
"""Maximum number of values of one fact to list; more are counted."""


def shared_environment(records: Collection[Record]) -> Table:
    """Hardware, software and settings of all cells; the values of a fact that differs, or their
    count."""
    values_by_fact: dict[Cell, dict[tuple[Cell, Cell], None]] = {}
    for record in records:
        for name, value, note in environment_table(record).rows:
            values_by_fact.setdefault(name, {})[value, note] = None
    return Table(
        name="environment",
        title="Environment of the cells",
        columns=(QUANTITY, "value", "note"),
        rows=tuple((name, *_merge_values(list(values))) for name, values in values_by_fact.items()),
    )


def _merge_values(values: Sequence[tuple[Cell, Cell]]) -> tuple[Cell, Cell]:
    if len(values) == 1:
        return values[0]
    if len(values) > MAX_NAMED:
        return f"varies: {len(values)} values", ""
    return " | ".join(UNKNOWN if value is None else str(value) for value, _ in values), ""


def commands_table(
    study: Study,
    cells: Sequence[grid.Cell],
    statuses: Mapping[str, CellStatus],
    entries: Mapping[str, CellEntry],
) -> Table:
    none = CellEntry(cell="", status="waiting")
    table = Table(
        name="commands",
        title="Each cell alone",
        columns=(*(axis.name for axis in study.axes), "repeat", "status", "run", "why", "command"),
        rows=tuple(
            (
                *(cell.point[axis.name] for axis in study.axes),
                *(cell.repeat + 1, statuses[cell.id], entry.run or None),
                cell.refused or entry.detail or None,
                cell.command,
            )
            for cell in cells
            for entry in (entries.get(cell.id, none),)
        ),
    )
    has_rounds = any(cell.repeat for cell in cells)
    return select(table, [name for name in table.columns if has_rounds or name != "repeat"])


MAX_BEST = 24
"""Maximum number of sentences on best cells; JSON has all."""
MAX_TIMELINES = 24
"""Maximum number of timelines on one page."""


class StudyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a study. Cells without a value stay visibly empty.

    Attributes:
        cells: In running order.
        entries, forecasts, numbers, ooms: By the cell's id.
        tables: Tables that have rows; every number has its own column.
        shown: The same for people: a ratio, its interval and its mark are one text.
        legends: Meaning of the marks, by table name.
        best: Times in which one way of doing the same work wins.
        figures: One per value with a numeric axis.
        timelines: Memory of each cell by its words, if the study has timelines.
    """

    study: Study
    cells: tuple[grid.Cell, ...]
    progress: StudyProgress
    entries: dict[str, CellEntry]
    forecasts: dict[str, Forecast]
    values: tuple[Value, ...]
    numbers: dict[str, tuple[float | None, ...]]
    ooms: dict[str, Oom]
    tables: tuple[Table, ...]
    shown: tuple[Table, ...]
    legends: dict[str, tuple[str, ...]]
    best: tuple[Best, ...]
    figures: tuple[Figure, ...]
    timelines: dict[str, Timeline]
    environment: Table
    commands: Table
    sentences: tuple[str, ...]
    cautions: tuple[str, ...]

    @property
    def procedure(self) -> str:
        """``passes timing, memory``, or that no cell is run."""
        if all(cell.is_predicted for cell in self.cells):
            return "predicted, no cell is run"
        return f"passes {', '.join(self.study.passes)}"


def study_report(directory: StudyDirectory) -> StudyReport:
    study = directory.study()
    cells = grid.expand(study)
    records = records_of(directory, cells, pruner_for(study))
    return make_report(directory, study, cells, records)


def make_report(
    directory: StudyDirectory,
    study: Study,
    cells: Sequence[grid.Cell],
    records: Mapping[str, Record],
) -> StudyReport:
    entries = directory.entries()
    progress = progress_in(directory, cells, entries)
    cells = with_reasons(cells, entries)
    forecaster = Forecaster(past_entries(directory.root))
    forecasts = {cell.id: forecaster.forecast(cell) for cell in cells}
    values = values_of(study)
    best = tuple(best_of(study, cells, records))
    every = list(fillings(study, cells, records))
    filled = [filling for filling in every if filling.table.rows]
    return StudyReport(
        study=study,
        cells=tuple(cells),
        progress=progress,
        entries=entries,
        forecasts=forecasts,
        values=tuple(values),
        numbers={
            cell.id: tuple(
                value.number(records[cell.id]) if value.applies(cell) else None for value in values
            )
            for cell in cells
            if cell.id in records
        },
        ooms={id: oom for id, record in records.items() if (oom := oom_of(record))},
        tables=tuple(filling.table for filling in filled),
        shown=tuple(filling.shown for filling in filled),
        legends={filling.table.name: filling.legend for filling in filled if filling.legend},
        best=best,
        figures=tuple(figures_of(study, cells, records)),
        timelines=_timelines(cells, records) if study.timelines else {},
        environment=shared_environment(measured_of(records)),
        commands=commands_table(study, cells, progress.statuses, entries),
        sentences=(
            *(sentence_of(one, values[one.value]) for one in best[:MAX_BEST]),
            *sentences_of(every, cells, records),
        ),
        cautions=tuple(cautions_of(study, cells, records)),
    )


def _timelines(cells: Sequence[grid.Cell], records: Mapping[str, Record]) -> dict[str, Timeline]:
    measured = ((cell.words, records[cell.id].memory) for cell in cells if cell.id in records)
    drawn = ((words, memory.timeline) for words, memory in measured if memory is not None)
    return dict(islice(drawn, MAX_TIMELINES))


def study_page(report: StudyReport) -> str:
    study = report.study
    name = " · ".join(part for part in (study.name, study.variant) if part)
    head = tag("h1", text(f"{name}: {study.title}")) + "".join(
        tag("p", text(line), class_="quiet") for line in _facts(report)
    )
    return document(f"{name}: {study.title}", head, dict(_sections(report)))


def _facts(report: StudyReport) -> Iterator[str]:
    study, progress = report.study, report.progress
    if study.source:
        yield f"repeats {study.source}"
    empty = progress.total - progress.done
    empty_words = f", {empty} {'is' if empty == 1 else 'are'} empty" if empty else ""
    yield f"{progress.done} of {progress.total} cells have their value{empty_words}"
    fixed = ", ".join(f"{key} {value}" for key, value in study.fixed.items())
    yield report.procedure + (f" · fixed: {fixed}" if fixed else "")


def _sections(report: StudyReport) -> Iterator[tuple[str, str]]:
    if report.cautions:
        anchor, look = "before-you-compare", "finding warning"
        yield anchor, _paragraphs("Before you compare", report.cautions, anchor, look)
    for content in report.shown:
        legend = report.legends.get(content.name, ())
        lines = (tag("p", text(line), class_="quiet") for line in legend)
        title = content.title or content.name
        yield content.name, section(title, table(content), *lines, anchor=content.name)
    if report.sentences:
        yield "what-it-says", _paragraphs("What the rows say", report.sentences, "what-it-says")
    if report.figures:
        charts = map(line_chart, report.figures)
        yield "figures", section("Figures", *charts, anchor="figures")
    if report.timelines:
        pairs = report.timelines.items()
        drawn = (tag("h3", text(words)) + memory_chart(timeline) for words, timeline in pairs)
        yield "timelines", section("Memory over time, by cell", *drawn, anchor="timelines")
    if report.study.notes:
        yield "notes", _paragraphs("Notes", report.study.notes, "notes")
    for extra in (report.environment, report.commands):
        if extra.rows:
            yield extra.name, section(extra.title, table(extra), anchor=extra.name)


def _paragraphs(title: str, lines: Sequence[str], anchor: str, look: str = "") -> str:
    inside = (tag("p", text(line), **({"class_": look} if look else {})) for line in lines)
    return section(title, *inside, anchor=anchor)


STUDY_FORMATS = ("md", "csv", "json", "html")


def study_as(report: StudyReport, kind: str) -> bytes:
    """Write the report in one of `STUDY_FORMATS`.

    ``csv`` is the table, or one tidy file if the study has several.
    """
    match kind:
        case "md":
            return ("\n".join(_markdown(report)) + "\n").encode()
        case "csv":
            return tables_as_csv(report.tables)
        case "html":
            return study_page(report).encode()
        case _:
            return literal_json(msgspec.json.encode(study_as_json(report)))


def study_as_json(report: StudyReport) -> dict[str, object]:
    """Encode the public JSON: ``study``, ``columns`` and ``rows`` of the first table, ``cells``,
    all tables, rounds, least times, sentences, cautions and environment."""
    first = next(iter(report.tables), None)
    return {
        "study": report.study.name,
        "variant": report.study.variant,
        "title": report.study.title,
        "columns": first.columns if first else [],
        "rows": first.rows if first else [],
        "cells": [
            {
                "point": cell.point,
                "repeat": cell.repeat,
                "identity": cell.identity,
                "status": report.progress.statuses[cell.id],
                "run": entry.run or None if (entry := report.entries.get(cell.id)) else None,
                "detail": cell.refused or (entry.detail if entry else ""),
                "predicted": entry.predicted if entry else None,
            }
            for cell in report.cells
        ],
        "tables": [_table_as_json(table) for table in report.tables],
        "rounds": report.study.repeat,
        "best": [
            {
                "value": report.values[best.value].name,
                "axis": best.axis,
                "place": best.place,
                "point": best.label,
                "next": best.next_label,
                "next_over_best": best.ratio.value,
                "low": best.ratio.low,
                "high": best.ratio.high,
                "comparisons": best.others,
            }
            for best in report.best
        ],
        "sentences": report.sentences,
        "cautions": report.cautions,
        "notes": report.study.notes,
        "environment": _table_as_json(report.environment),
        "commands": _table_as_json(report.commands),
    }


def _table_as_json(table: Table) -> dict[str, object]:
    return {"name": table.name, "columns": table.columns, "rows": table.rows}


def _markdown(report: StudyReport) -> Iterator[str]:
    study, progress = report.study, report.progress
    yield f"# {escaped(study.name)}: {escaped(study.title)}"
    yield ""
    if study.source:
        yield f"- repeats {escaped(study.source)}"
    if study.variant:
        yield f"- variant {escaped(study.variant)}"
    yield f"- {progress.done} of {progress.total} cells have their value"
    for caution in report.cautions:
        yield from ("", f"**{escaped(caution)}**")
    for shown in report.shown:
        yield from ("", f"## {escaped(shown.title or shown.name)}", "", table_as_markdown(shown))
        for line in report.legends.get(shown.name, ()):
            yield from ("", escaped(line))
    for title, lines in (("What the rows say", report.sentences), ("Notes", study.notes)):
        if lines:
            yield from ("", f"## {title}", "")
            yield from (f"- {escaped(line)}" for line in lines)
    for extra in (report.environment, report.commands):
        if extra.rows:
            yield from ("", f"## {escaped(extra.title)}", "", table_as_markdown(extra))
