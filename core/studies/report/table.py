"""Fills a study's tables from the records of its cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product

from ...formatting import UNKNOWN, format_bytes
from ...record.record import Record
from ...tables.chart import with_unit
from ...tables.table import Cell as Content
from ...tables.table import Row, Table, is_number
from ..file.study import Column, Layout, Line, Study
from ..run.grid import Cell
from ..values.formula import (
    as_cell,
    evaluate,
    is_counted,
    is_fact,
    number_format,
    shown_unit,
    source_unit,
    written,
)
from ..values.measures import instruction_set, machine, sdpa_kernel
from .details import EACH
from .filling import ENDS, Filling, further
from .ratios import Ratio, Rounds, merged, quotient_of, ratio_of, rounds_of

FORGOTTEN = {
    "hardware": "measures.hardware",
    "batch": "spec.batch",
    "context": "spec.context",
    "precision": "spec.precision",
    "attention": "spec.attention",
}
"""Columns that the write-ups left out of their tables, with their formulas."""

INSTRUCTIONS = "instruction set"
"""A column of every table of memory with cells of a CPU: the workspace of libraries depends on the
instruction set there."""
SDPA = "sdpa kernel"
"""A column of every table with cells whose attention left torch the choice of its kernel."""
MACHINE = "machine"
"""A column of every table with cells that ran on a cluster."""
ALLOCATED = ("memory.", "measures.largest_bytes", "measures.largest_category")
"""Prefixes of the formulas of a table of memory."""
OF_MEMORY = ("ledger", "largest")
"""Tables per cell that are of memory."""

WITHOUT_STEPS = ("accumulation", "autocast-dtypes", "all-reduce")
"""Workloads in which batch, context, precision and attention decide nothing."""

VARIES = "varies"
FELL_BACK = "fell back to eager"


def fill(study: Study, cells: Sequence[Cell], records: Mapping[str, Record]) -> Table:
    """The study's first table; a cell without a value stays empty.

    Args:
        study: With its variant and overrides applied.
        cells: From `expand`.
        records: By the cell's id. Repeats become their median.
    """
    return next(iter(fill_all(study, cells, records)))


def fill_all(study: Study, cells: Sequence[Cell], records: Mapping[str, Record]) -> Iterator[Table]:
    """All tables of the study, in its order."""
    return (filling.table for filling in fillings(study, cells, records))


def fillings(
    study: Study, cells: Sequence[Cell], records: Mapping[str, Record]
) -> Iterator[Filling]:
    """All tables of the study with the tests of their ratios, in its order."""
    for layout in study.tables:
        if layout.each:
            yield Filling(layout, _each(study, layout, cells, records))
        else:
            yield _Filler(study, layout, cells, records).filling()


def outcome(record: Record) -> str:
    """Text of a cell whose run has no such number: ``OOM 512 MiB``, ``failed``, …"""
    if record.status == "finished":
        return ""
    if record.status != "oom":
        return record.status
    oom = next(
        (pass_record.oom for pass_record in record.passes if pass_record.oom is not None), None
    )
    requested_bytes = oom.requested_bytes if oom else None
    return f"OOM {format_bytes(requested_bytes)}" if requested_bytes else "OOM"


class _Filler:
    """Fills one table whose columns are formulas."""

    def __init__(
        self, study: Study, layout: Layout, cells: Sequence[Cell], records: Mapping[str, Record]
    ) -> None:
        self.layout = layout
        self.cells = cells
        self.records = records
        self.lines = layout.lines or (Line(name=""),)
        names = {column.name for column in layout.columns}
        shown = {column.value for column in layout.columns}
        self.axes = [axis for axis in study.axes if axis.name in layout.rows]
        self.leading = [
            axis.name
            for axis in self.axes
            if axis.name not in names and f"spec.{axis.name}" not in shown
        ]
        taken = names | {axis.name for axis in self.axes} | shown
        has_steps = study.fixed.get("workload") not in WITHOUT_STEPS
        self.forgotten = {
            name: formula
            for name, formula in FORGOTTEN.items()
            if not {name, formula} & taken and (has_steps or name == "hardware")
        }
        formula = f"measures.{instruction_set.__name__}"
        on_cpu = any(instruction_set(record) for record in records.values())
        if on_cpu and _is_of_memory(layout) and not {INSTRUCTIONS, formula} & taken:
            self.forgotten[INSTRUCTIONS] = formula
        formula = f"measures.{machine.__name__}"
        if any(map(machine, records.values())) and not {MACHINE, formula} & taken:
            self.forgotten[MACHINE] = formula
        formula = f"measures.{sdpa_kernel.__name__}"
        if any(map(sdpa_kernel, records.values())) and not {SDPA, formula} & taken:
            self.forgotten[SDPA] = formula

    def filling(self) -> Filling:
        """The table, with every row that its records allow, and its ratios."""
        own = self.layout.columns
        names = [column.name for column in own if column.ratio is not None]
        rows: list[Row] = []
        ratios: dict[tuple[int, str], Ratio] = {}
        words: dict[tuple[int, str], str] = {}
        compared = {name for column in own for name in column.ratio or ()}
        for line, row, found in self._rows():
            ratios |= {(len(rows), name): ratio for name, ratio in found.items()}
            values = dict(
                zip((column.name for column in own), row[len(self.leading) :], strict=False)
            )
            words |= {
                (len(rows), column.name): self._words(column, line, value)
                for column in own
                if column.name in compared and is_number(value := values[column.name])
            }
            rows.append((*row, *_tested(names, found)))
        tested = [further(name, end) for name in names for end in ENDS]
        table = Table(
            name=self.layout.name,
            title=self.layout.title,
            columns=(
                *(*self.leading, *(column.name for column in own)),
                *(*self.forgotten, *tested),
            ),
            rows=tuple(rows),
            formats=(
                *("" for _ in self.leading),
                *(self._format(column) for column in own),
                *("" for _ in (*self.forgotten, *tested)),
            ),
        )
        return Filling(self.layout, table, ratios, words)

    def _words(self, column: Column, line: Line, value: float) -> str:
        if column.ratio:
            return written(self._format(column))(value)
        unit = shown_unit(line.value or column.value, line.unit or column.unit)
        return with_unit(value, "" if f"({unit})" in column.name else unit)

    def _format(self, column: Column) -> str:
        if column.ratio:
            return column.format or "{:.2f}"
        line = self.lines[0]
        formula = line.value or column.value
        if not formula or column.is_label:
            return ""
        template, unit = line.format or column.format, line.unit or column.unit
        return number_format(formula, unit, template)

    def _rows(self) -> Iterator[tuple[Line, Row, dict[str, Ratio]]]:
        for labels in product(*(axis.labels for axis in self.axes)):
            row = dict(zip((axis.name for axis in self.axes), labels, strict=True))
            own = [cell for cell in self.cells if row.items() <= cell.point.items()]
            if not own:
                continue
            for line in self.lines:
                values, ratios = self._values(own, line)
                forgotten = (self._fact(own, formula) for formula in self.forgotten.values())
                leading = (row[name] for name in self.leading)
                yield line, (*leading, *values.values(), *forgotten), ratios

    def _values(
        self, cells: Sequence[Cell], line: Line
    ) -> tuple[dict[str, Content], dict[str, Ratio]]:
        by_column: dict[str, Content] = {}
        rounds: dict[str, Rounds] = {}
        ratios: dict[str, Ratio] = {}
        for column in self.layout.columns:
            if column.is_label:
                by_column[column.name] = line.name
            elif column.ratio is not None:
                first, second = column.ratio
                by_column[column.name] = None
                rounds[column.name] = quotient_of(rounds[first], rounds[second])
                # A text, such as that of a run that fell back, is not compared.
                if is_number(by_column[first]) and is_number(by_column[second]):
                    ratio = ratio_of(rounds[first], rounds[second])
                    if ratio is not None:
                        ratios[column.name] = ratio
                        by_column[column.name] = ratio.value
            else:
                by_column[column.name] = self._value(cells, line, column)
                rounds[column.name] = self._rounds(cells, line, column)
        return by_column, ratios

    def _own(self, cells: Sequence[Cell], line: Line, column: Column) -> list[Cell]:
        where = column.where | line.where
        return [cell for cell in cells if where.items() <= cell.point.items()]

    def _content(self, line: Line, column: Column, record: Record) -> Content:
        formula = line.value or column.value
        unit, template = line.unit or column.unit, line.format or column.format
        return as_cell(evaluate(record, formula), source_unit(formula), unit, template)

    def _rounds(self, cells: Sequence[Cell], line: Line, column: Column) -> Rounds:
        formula = line.value or column.value
        if is_fact(formula):
            value = self._value(cells, line, column)
            return Rounds({0: value}, (value,), is_counted=True) if is_number(value) else Rounds()
        return rounds_of(
            self._own(cells, line, column),
            self.records,
            lambda record: self._content(line, column, record),
            is_counted=is_counted(formula),
        )

    def _value(self, cells: Sequence[Cell], line: Line, column: Column) -> Content:
        formula = line.value or column.value
        own = self._own(cells, line, column)
        if is_fact(formula):
            return self._fact(own, formula)
        unit, template = line.unit or column.unit, line.format or column.format
        own_records = [self.records[cell.id] for cell in own if cell.id in self.records]
        made = [self._content(line, column, record) for record in own_records]
        value = _middle(made)
        if value is None:
            return _why(own, own_records)
        fell_back = any(
            record.compile is not None and record.compile.fell_back for record in own_records
        )
        if fell_back and is_number(value):
            write = written(number_format(formula, unit, template) or "{}")
            return f"{write(value)} ({FELL_BACK})"
        return value

    def _fact(self, cells: Sequence[Cell], formula: str) -> Content:
        """The common value of the cells, from their specs or, for the machine, their records."""
        distinct: dict[Content, None] = {}
        for cell in cells:
            if formula.startswith("spec.") and cell.spec is not None:
                distinct[getattr(cell.spec, formula.removeprefix("spec."))] = None
            elif formula == "parameters" and cell.spec is not None and not cell.spec.is_own:
                distinct[cell.spec.dimensions.parameters] = None
            elif cell.id in self.records:
                value = evaluate(self.records[cell.id], formula)
                distinct[value if isinstance(value, str) or is_number(value) else None] = None
        return next(iter(distinct)) if len(distinct) == 1 else (VARIES if distinct else None)


def _is_of_memory(layout: Layout) -> bool:
    """True if a column or a line of it shows allocated memory."""
    return any(part.value.startswith(ALLOCATED) for part in (*layout.columns, *layout.lines))


def _why(cells: Sequence[Cell], records: Sequence[Record]) -> Content:
    """Text for an absent value: the run's outcome, or UNKNOWN if no run can have it; None where it
    waits."""
    ended = next((text for record in records if (text := outcome(record))), None)
    if ended is None and cells and all(cell.refused for cell in cells):
        return UNKNOWN
    return ended


def _middle(values: Iterable[Content]) -> Content:
    """The median of numbers, or the first of texts."""
    present = [value for value in values if value is not None]
    numbers = [value for value in present if is_number(value)]
    if numbers:
        return statistics.median(numbers)
    return present[0] if present else None


def _tested(names: Sequence[str], ratios: Mapping[str, Ratio]) -> Iterator[Content]:
    """Low, high and test of each ratio column, null where there is no ratio."""
    for name in names:
        ratio = ratios.get(name)
        yield from (ratio.low, ratio.high, ratio.tested) if ratio else (None, None, None)


def _each(
    study: Study, layout: Layout, cells: Sequence[Cell], records: Mapping[str, Record]
) -> Table:
    """The same table of every cell, under each other. A cell without it is an empty row; one that
    finished is left out. Repeats are one cell, whose times are those of its rounds."""
    axes = [axis.name for axis in study.axes if len(axis.points) > 1]
    first: Table | None = None
    made: list[tuple[list[str], Row, Table | None]] = []
    by_cell = _merged_cells(study, cells, records)
    all_records = list(by_cell.values())
    has_instructions = layout.each in OF_MEMORY and any(map(instruction_set, all_records))
    for cell in cells:
        if cell.repeat:
            continue
        record = by_cell.get(cell.identity)
        table = EACH[layout.each](record, all_records) if record is not None else None
        first = first or table
        if record is not None and record.status == "finished" and not (table and table.rows):
            continue
        instructions: Row = (
            (instruction_set(record) if record else None,) if has_instructions else ()
        )
        made.append(([cell.point[axis] for axis in axes], instructions, table))
    if first is None or not first.columns:
        return Table(name=layout.name, title=layout.title, columns=tuple(axes), rows=())
    rows: list[Row] = []
    for labels, instructions, table in made:
        if table is None or not table.rows:
            rows.append((*labels, *(None for _ in first.columns), *instructions))
            continue
        # Columns that are left out where nothing is known may differ from cell to cell.
        for values in islice(table.mappings(), layout.most or None):
            rows.append((*labels, *map(values.get, first.columns), *instructions))
    last = (INSTRUCTIONS,) if has_instructions else ()
    return Table(
        name=layout.name,
        title=layout.title,
        columns=(
            *(f"{axis} of cell" if axis in first.columns else axis for axis in axes),
            *(*first.columns, *last),
        ),
        rows=tuple(rows),
        formats=(*("" for _ in axes), *first.formats, *("" for _ in last)) if first.formats else (),
        headings=first.headings,
        units=first.units,
    )


def _merged_cells(
    study: Study, cells: Sequence[Cell], records: Mapping[str, Record]
) -> dict[str, Record]:
    """By the identity of the cell: its record, the repeats as one run with rounds."""
    repeats: dict[str, dict[int, Record]] = {}
    for cell in cells:
        if cell.id in records:
            repeats.setdefault(cell.identity, {})[cell.repeat] = records[cell.id]
    return {identity: merged(study.name, found) for identity, found in repeats.items()}
