"""Fill a study's tables from the records of its cells."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product, starmap

import msgspec

from sysbench.core.formatting import UNKNOWN, format_bytes
from sysbench.core.record.record import Record
from sysbench.core.studies.details import EACH, oom_of
from sysbench.core.studies.formula import (
    MEASURES,
    PredictedRecord,
    evaluate,
    is_counted,
    is_fact,
    is_prediction,
    number_format,
    read_cell,
    shown_unit,
)
from sysbench.core.studies.ratios import Ratio, merge_repeats, ratio_of, rounds_of
from sysbench.core.studies.schema import Line, Study, StudyColumn, TableLayout
from sysbench.core.studies.study_grid import Cell
from sysbench.core.tables.table import Cell as Content
from sysbench.core.tables.table import Row, Table, is_number, select
from sysbench.core.tables.timing_tables import with_unit

CONTEXT = {
    "hardware": "measures.hardware",
    "batch": "spec.batch",
    "context": "spec.context",
    "precision": "spec.precision",
    "attention": "spec.attention",
}
"""Columns to add to every table, with their formulas."""
INSTRUCTIONS = "instruction set"
"""Column of memory tables with CPU cells, whose libraries choose their workspace by it."""
OF_SOME = {INSTRUCTIONS: "instruction_set", "machine": "machine", "sdpa kernel": "sdpa_kernel"}
"""Columns of tables in which some cell has that measure: on a CPU, on a cluster, and where torch
chose the kernel."""
ALLOCATED = ("memory.", "measures.largest_bytes", "measures.largest_category")
"""Prefixes of memory formulas."""
OF_MEMORY = ("ledger", "largest")
"""Tables per cell that are about memory."""
WITHOUT_STEPS = ("accumulation", "autocast-dtypes", "all-reduce")
"""Workloads that ignore batch, context, precision and attention."""
STATE = "state"
"""Column of studies with predicted cells: how each came by its values, or why it has none."""
VARIES = "varies"
FELL_BACK = "fell back to eager"
ENDS = ("low", "high", "tested")
"""Suffixes of the three columns after a ratio column: its interval, and its test."""
MARK = "*"


@dataclass(frozen=True, slots=True)
class Filling:
    layout: TableLayout
    table: Table
    ratios: Mapping[tuple[int, str], Ratio] = field(default_factory=dict)

    @property
    def shown(self) -> Table:
        """The table for people: a ratio is one text, ``1.52 (1.47–1.58)``; untested ones are
        marked."""
        table, marks = self.table, self._marks()
        names = _ratio_names(self.layout)
        rows = list(map(list, table.rows))
        for (row, name), ratio in self.ratios.items():
            place = table.index(name)
            rows[row][place] = _ratio_text(ratio, table.formats[place].format, marks)
        keys = {name: tuple(table.column(name)) for name in names}
        shown = msgspec.structs.replace(table, rows=tuple(map(tuple, rows)), sort_keys=keys)
        hidden = {further for name in names for further in _extra_columns(name)}
        return select(shown, [name for name in table.columns if name not in hidden])

    @property
    def legend(self) -> tuple[str, ...]:
        return tuple(f"{mark} {why}" for why, mark in self._marks().items())

    def _marks(self) -> dict[str, str]:
        untested = (ratio for ratio in self.ratios.values() if ratio.low is None)
        reasons = dict.fromkeys(ratio.why for ratio in untested if ratio.state != "counted")
        return {why: MARK * number for number, why in enumerate(reasons, 1)}


def fillings(
    study: Study, cells: Sequence[Cell], records: Mapping[str, Record]
) -> Iterator[Filling]:
    for layout in study.tables:
        if layout.each:
            yield Filling(layout, _fill_each(study, layout, cells, records))
        else:
            yield _fill_columns(study, layout, cells, records)


def outcome(record: Record) -> str:
    """Return the text of a cell without a number: ``OOM 512 MiB``, ``failed``, …"""
    if record.status == "finished":
        return ""
    if record.status != "oom":
        return record.status
    oom = oom_of(record)
    return f"OOM {format_bytes(oom.requested_bytes)}" if oom and oom.requested_bytes else "OOM"


def _fill_columns(
    study: Study, layout: TableLayout, cells: Sequence[Cell], records: Mapping[str, Record]
) -> Filling:
    columns, lines = layout.columns, layout.lines or (Line(name=""),)
    shown = {column.name for column in columns} | {column.value for column in columns}
    axes = [axis for axis in study.axes if axis.name in layout.rows]
    leading = [axis.name for axis in axes if not {axis.name, f"spec.{axis.name}"} & shown]
    taken = shown | {axis.name for axis in axes}
    context = {
        name: formula
        for name, formula in _context(study, layout, cells, records)
        if not {name, formula} & taken
    }
    rows: list[dict[str, Content]] = []
    ratios: dict[tuple[int, str], Ratio] = {}
    for labels in product(*(axis.labels for axis in axes)):
        place = dict(zip((axis.name for axis in axes), labels, strict=True))
        own = [cell for cell in cells if place.items() <= cell.point.items()]
        for line in lines if own else ():
            row: dict[str, Content] = {name: place[name] for name in leading}
            row |= {name: _fact(own, formula, records) for name, formula in context.items()}
            row[STATE] = _state(own, records)
            for column in columns:
                name = column.name
                if column.is_label:
                    row[name] = line.name
                elif column.ratio is None:
                    row[name] = _cell_content(layout.part(line, column), own, records)
                # Texts, such as a fallback, are not compared.
                elif all(is_number(row[side]) for side in column.ratio):
                    sides = [layout.part(line, layout.column(side)) for side in column.ratio]
                    ratio = _ratio(sides, own, records)
                    if ratio is not None:
                        ratios[len(rows), name] = ratio
                        tested = (ratio.low, ratio.high, ratio.tested)
                        row |= zip(_extra_columns(name), tested, strict=True)
                        row[name] = ratio.value
            rows.append(row)
    formats = {column.name: _format(layout.part(lines[0], column)) for column in columns}
    tested_names = (further for name in _ratio_names(layout) for further in _extra_columns(name))
    state = [STATE] if any(cell.is_predicted for cell in cells) and STATE not in taken else []
    names = (*leading, *state, *formats, *context, *tested_names)
    table = Table(
        name=layout.name,
        title=layout.title,
        columns=names,
        rows=tuple(tuple(map(row.get, names)) for row in rows),
        formats=tuple(formats.get(name, "") for name in names),
    )
    return Filling(layout, table, ratios)


def _context(
    study: Study, layout: TableLayout, cells: Sequence[Cell], records: Mapping[str, Record]
) -> Iterator[tuple[str, str]]:
    """Return names and formulas of the context columns that the table can have."""
    if any(cell.is_predicted for cell in cells):
        yield "world", "predicted.world"
    has_steps = study.fixed.get("workload") not in WITHOUT_STEPS
    yield from (pair for pair in CONTEXT.items() if has_steps or pair[0] == "hardware")
    is_of_memory = any(formula.startswith(ALLOCATED) for formula in layout.formulas)
    for name, measure in OF_SOME.items():
        if (is_of_memory or name != INSTRUCTIONS) and _has(measure, records.values()):
            yield name, f"measures.{measure}"


def _state(cells: Sequence[Cell], records: Mapping[str, Record]) -> Content:
    """Return ``predicted``, ``measured``, or why a prediction was refused."""
    words = dict.fromkeys(
        "predicted" if isinstance(records.get(cell.id), PredictedRecord) else "measured"
        for cell in cells
        if cell.id in records
    )
    words |= dict.fromkeys(cell.refused for cell in cells if cell.refused)
    return "; ".join(words) or None


def _has(measure: str, records: Iterable[Record]) -> bool:
    return any(map(MEASURES[measure].read, records))


def _ratio_names(layout: TableLayout) -> list[str]:
    return [column.name for column in layout.columns if column.ratio is not None]


def _extra_columns(name: str) -> list[str]:
    return [f"{name} {end}" for end in ENDS]


def _ratio_text(ratio: Ratio, write: Callable[[float], str], marks: Mapping[str, str]) -> str:
    if ratio.low is not None and ratio.high is not None:
        return f"{write(ratio.value)} ({write(ratio.low)}–{write(ratio.high)})"
    return f"{write(ratio.value)} {marks.get(ratio.why, '')}".rstrip()


def _ratio(
    sides: Sequence[StudyColumn], cells: Sequence[Cell], records: Mapping[str, Record]
) -> Ratio | None:
    rounds = (
        rounds_of(_own(side, cells), records, partial(_read, side), is_counted(side.value))
        for side in sides
    )
    if (ratio := ratio_of(*rounds)) is None:
        return None
    medians = zip(sides, (ratio.first, ratio.second), strict=True)
    is_predicted = any(is_prediction(side.value) for side in sides)
    return msgspec.structs.replace(
        ratio,
        medians=", ".join(starmap(_with_unit, medians)),
        why="predicted" if is_predicted else ratio.why,
    )


def _with_unit(part: StudyColumn, value: float) -> str:
    unit = shown_unit(part.value, part.unit)
    return f"{part.name} {with_unit(value, '' if f'({unit})' in part.name else unit)}"


def _format(part: StudyColumn) -> str:
    if part.ratio:
        return part.format or "{:.2f}"
    if part.is_label or not part.value:
        return ""
    return number_format(part.value, part.unit, part.format)


def _own(part: StudyColumn, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if part.where.items() <= cell.point.items()]


def _read(part: StudyColumn, record: Record) -> Content:
    return read_cell(record, part.value, part.unit, part.format)


def _cell_content(
    part: StudyColumn, cells: Sequence[Cell], records: Mapping[str, Record]
) -> Content:
    """Return the median of the cells' numbers or their first text, else why there is none."""
    own = _own(part, cells)
    if is_fact(part.value):
        return _fact(own, part.value, records)
    measured = [records[cell.id] for cell in own if cell.id in records]
    present = [value for record in measured if (value := _read(part, record)) is not None]
    numbers = [value for value in present if is_number(value)]
    if numbers:
        value = statistics.median(numbers)
        if any(record.compile is not None and record.compile.fell_back for record in measured):
            return f"{(_format(part) or '{}').format(value)} ({FELL_BACK})"
        return value
    if present:
        return present[0]
    ended = next((text for record in measured if (text := outcome(record))), None)
    # The state of a predicted cell has the reason.
    is_refused = bool(own) and all(cell.refused and not cell.is_predicted for cell in own)
    return UNKNOWN if is_refused and ended is None else ended


def _fact(cells: Sequence[Cell], formula: str, records: Mapping[str, Record]) -> Content:
    """Return the common value of the cells, from their specs or records."""
    distinct: dict[Content, None] = {}
    for cell in cells:
        if formula.startswith("spec.") and cell.spec is not None:
            distinct[getattr(cell.spec, formula.removeprefix("spec."))] = None
        elif formula == "parameters" and cell.spec is not None and not cell.spec.is_own:
            distinct[cell.spec.dimensions.parameters] = None
        elif cell.id in records:
            value = evaluate(records[cell.id], formula)
            distinct[value if isinstance(value, str) or is_number(value) else None] = None
    return next(iter(distinct)) if len(distinct) == 1 else (VARIES if distinct else None)


def _fill_each(
    study: Study, layout: TableLayout, cells: Sequence[Cell], records: Mapping[str, Record]
) -> Table:
    """Stack the same table of every cell. A cell without it is an empty row, or left out if it
    finished. Repeats are one cell with the times of all rounds."""
    axes = [axis.name for axis in study.axes if len(axis.points) > 1]
    repeats: dict[str, dict[int, Record]] = {}
    for cell in cells:
        if cell.id in records:
            repeats.setdefault(cell.identity, {})[cell.repeat] = records[cell.id]
    by_cell = {identity: merge_repeats(study.name, found) for identity, found in repeats.items()}
    merged = list(by_cell.values())
    tables = {id: EACH[layout.each](record, merged) for id, record in by_cell.items()}
    first = next((table for table in tables.values() if table is not None), None)
    if first is None or not first.columns:
        return Table(name=layout.name, title=layout.title, columns=tuple(axes), rows=())
    heads = {axis: f"{axis} of cell" if axis in first.columns else axis for axis in axes}
    has_instructions = layout.each in OF_MEMORY and _has("instruction_set", merged)
    names = (*heads.values(), *first.columns, *((INSTRUCTIONS,) if has_instructions else ()))
    rows: list[Row] = []
    for cell in cells:
        record, table = by_cell.get(cell.identity), tables.get(cell.identity)
        has_rows = table is not None and bool(table.rows)
        if cell.repeat or (record is not None and record.status == "finished" and not has_rows):
            continue
        own: dict[str, Content] = {head: cell.point[axis] for axis, head in heads.items()}
        if record is not None:
            own[INSTRUCTIONS] = MEASURES["instruction_set"].read(record)
        # Optional columns may differ between cells.
        of_cell = islice(table.mappings(), layout.most or None) if table and has_rows else [{}]
        rows += (tuple(map((values | own).get, names)) for values in of_cell)
    formats = dict(zip(first.columns, first.formats, strict=False))
    return Table(
        name=layout.name,
        title=layout.title,
        columns=names,
        rows=tuple(rows),
        formats=tuple(formats.get(name, "") for name in names) if formats else (),
        headings=first.headings,
        units=first.units,
        about=first.about,
    )
