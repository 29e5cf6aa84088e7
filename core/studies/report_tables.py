"""The tables of a report beside the study's own: where it was measured, how to repeat it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..record.record import Record
from ..runs.launch import command_line
from ..tables.context import environment_table
from ..tables.table import QUANTITY, Cell, Row, Table
from .file.study import Study
from .run import grid
from .run.state import CellStatus, Entry

MOST_NAMED = 3
"""So many values of one fact are named; more only counted."""


def shared_environment(records: Collection[Record]) -> Table:
    """Hardware, software and settings of all cells; a fact that is not the same in all of them
    has every value, or their number."""
    found: dict[Cell, dict[tuple[Cell, Cell], None]] = {}
    for record in records:
        for name, value, note in environment_table(record).rows:
            found.setdefault(name, {})[value, note] = None
    return Table(
        name="environment",
        title="Environment of the cells",
        columns=(QUANTITY, "value", "note"),
        rows=tuple((name, *_merged(list(values))) for name, values in found.items()),
    )


def _merged(values: Sequence[tuple[Cell, Cell]]) -> tuple[Cell, Cell]:
    if len(values) == 1:
        return values[0]
    if len(values) > MOST_NAMED:
        return f"varies: {len(values)} values", ""
    return " | ".join("n/a" if value is None else str(value) for value, _ in values), ""


def commands_table(
    study: Study,
    cells: Sequence[grid.Cell],
    statuses: Mapping[str, CellStatus],
    entries: Mapping[str, Entry],
) -> Table:
    """For each cell: how it is, its run, and the command that measures it alone."""
    has_rounds = any(cell.repeat for cell in cells)
    rounds = ("repeat",) if has_rounds else ()

    def row(cell: grid.Cell) -> Row:
        entry = entries.get(cell.id)
        return (
            *(cell.point[axis.name] for axis in study.axes),
            *([cell.repeat + 1] if has_rounds else []),
            statuses[cell.id],
            entry.run or None if entry else None,
            cell.refused or (entry.detail if entry else "") or None,
            command_line(cell.spec, cell.passes) if cell.spec else None,
        )

    return Table(
        name="commands",
        title="Each cell alone",
        columns=(*(axis.name for axis in study.axes), *rounds, "status", "run", "why", "command"),
        rows=tuple(map(row, cells)),
    )
