"""What the rows of a study say, in sentences made of nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...formatting import counted
from ...record.record import Record
from ...tables.table import is_number
from ..file.study import Layout, Study
from ..run.grid import Cell
from .table import fill_all, outcome

MOST_PER_COLUMN = 12


def sentences_of(
    study: Study, cells: Sequence[Cell], records: Mapping[str, Record]
) -> Iterator[str]:
    """One for each quotient that a table shows, and how many cells have no number and why."""
    for layout, table in zip(study.tables, fill_all(study, cells, records), strict=True):
        naming = _naming(layout)
        for column in layout.columns:
            if column.ratio is None:
                continue
            first, second = column.ratio
            told = 0
            for row in table.rows:
                values = dict(zip(table.columns, row, strict=True))
                quotient = values[column.name]
                if is_number(quotient) and told < MOST_PER_COLUMN:
                    told += 1
                    place = ", ".join(str(values[name]) for name in naming if name in values)
                    yield f"{place}: {first} is {quotient:.2f} times {second}."
    yield from _without_numbers(cells, records)


def _naming(layout: Layout) -> list[str]:
    """The columns that tell a row from the others: its axes, and the name of its line."""
    facts = {f"spec.{axis}" for axis in layout.rows}
    own = [one.name for one in layout.columns if one.is_label or one.value in facts]
    return [*layout.rows, *own]


def _without_numbers(cells: Sequence[Cell], records: Mapping[str, Record]) -> Iterator[str]:
    ended = [(cell, records[cell.id]) for cell in cells if cell.id in records]
    oom = [cell for cell, record in ended if record.status == "oom"]
    if oom:
        first = oom[0]
        text = outcome(records[first.id])
        yield f"{counted(len(oom), 'cell')} ran out of memory, first {first.words}: {text}."
    fallen = [cell for cell, record in ended if record.compile and record.compile.fell_back]
    if fallen:
        yield f"{counted(len(fallen), 'cell')} fell back to eager, first {fallen[0].words}."
    waiting = sum(cell.id not in records and cell.spec is not None for cell in cells)
    if waiting:
        yield f"{counted(waiting, 'cell')} of {len(cells)} without a value yet."
