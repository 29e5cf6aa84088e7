"""The report of a study: tables, charts and sentences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

import msgspec

from sysbench.core.formatting import UNKNOWN
from sysbench.core.record.memory import Oom, Timeline
from sysbench.core.record.record import Record
from sysbench.core.spec.command_line import command_line
from sysbench.core.studies import study_grid as grid
from sysbench.core.studies.cell_values import Value, figures_of, pruner_for, values_of
from sysbench.core.studies.details import oom_of
from sysbench.core.studies.forecast import Forecast, Forecaster, past_entries
from sysbench.core.studies.ratios import Best, best_of, sentence_of
from sysbench.core.studies.study_directory import (
    CellEntry,
    CellStatus,
    StudyDirectory,
    StudyProgress,
    progress_in,
    records_of,
)
from sysbench.core.studies.study_file import Study
from sysbench.core.studies.study_table import fillings
from sysbench.core.studies.study_text import cautions_of, sentences_of
from sysbench.core.tables.context import environment_table
from sysbench.core.tables.table import QUANTITY, Cell, Table, select
from sysbench.core.tables.timing_tables import Figure

MAX_NAMED = 3
"""Maximum number of values of one fact to list; more are counted."""


def shared_environment(records: Collection[Record]) -> Table:
    """Hardware, software and settings of all cells. A fact that differs lists its values or their
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
    """Status and run of each cell, and the command that measures it alone."""
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
                command_line(cell.spec, cell.passes) if cell.spec else None,
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
        values: Numbers that the tables show.
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


def study_report(directory: StudyDirectory) -> StudyReport:
    """Report a study in a directory.

    Raises:
        DamagedFileError: ``study.json`` cannot be read.
        SpecError: It cannot be expanded here.
    """
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
        environment=shared_environment(list(records.values())),
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
