"""Values of cells, their figures, and the record fields they need."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sysbench.core.record.blocks import RECORD_BLOCKS
from sysbench.core.record.memory import Timeline
from sysbench.core.record.record import Record
from sysbench.core.spec.models import find_model
from sysbench.core.spec.own_model import is_own
from sysbench.core.spec.world import World
from sysbench.core.studies.formula import (
    MEASURES,
    is_fact,
    is_prediction,
    is_spread,
    parse_path,
    read_cell,
    shown_unit,
)
from sysbench.core.studies.schema import ONE_RANK, Axis, Line, Study, TableLayout
from sysbench.core.studies.study_grid import Cell
from sysbench.core.tables.table import is_number
from sysbench.core.tables.timing_tables import Figure, Series, with_unit

_LEFT_OUT = ("timing", "phases", "memory", "measures", "kernels", "numerics", "distributed")
"""Path parts that are left out of names."""
_TEXTS = (
    *("measures.hardware", "measures.machine", "measures.instruction_set", "measures.status"),
    *("measures.sdpa_kernel",),
    *(f"predicted.{name}" for name in ("world", "verdict", "rank", "place", "samples")),
    *("predicted.peak_phase", "predicted.peak_place"),
    *("measures.rounds", "measures.timed_steps", "status", "id", "identity", "timing.step.n"),
)
"""Formulas that give text or a count of measurements."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """One number of a cell.

    Attributes:
        name: From its formula: ``forward mean``.
        shown_unit: Unit of `number`: ``B`` for bytes, empty for a count or a ratio.
        where: Cells that have it: any of these, each axis to label.
    """

    name: str
    formula: str
    shown_unit: str
    where: tuple[dict[str, str], ...]

    @property
    def title(self) -> str:
        return self.name if self.shown_unit in ("", "B") else f"{self.name}, {self.shown_unit}"

    def words(self, number: float) -> str:
        return with_unit(number, self.shown_unit)

    def applies(self, cell: Cell) -> bool:
        if cell.is_predicted != is_prediction(self.formula):
            return False
        return any(pinned.items() <= cell.point.items() for pinned in self.where)

    def number(self, record: Record) -> float | None:
        number = read_cell(record, self.formula, self.shown_unit)
        return number if is_number(number) else None


def values_of(study: Study) -> list[Value]:
    places: dict[tuple[str, str], list[dict[str, str]]] = {}
    for layout in study.tables:
        for formula, unit, where in _shown(layout):
            if not is_fact(formula) and formula not in _TEXTS:
                places.setdefault((formula, shown_unit(formula, unit)), []).append(where)
    return [
        Value(name=_name(formula), formula=formula, shown_unit=unit, where=tuple(where))
        for (formula, unit), where in places.items()
    ]


def _shown(layout: TableLayout) -> Iterator[tuple[str, str, dict[str, str]]]:
    for line in layout.lines or (Line(name=""),):
        for column in layout.columns:
            part = layout.part(line, column)
            if part.value and not part.is_label:
                is_mean = is_spread(part.value)
                yield f"{part.value}.mean_ms" if is_mean else part.value, part.unit, part.where


def _name(path: str) -> str:
    """Return ``forward mean`` for ``timing.phases.forward.mean_ms``."""
    steps = [(step.name, *(wanted for _, wanted in step.wanted)) for step in parse_path(path)]
    shown = [word for words in steps for word in words if word not in _LEFT_OUT]
    for suffix in ("_ms", "_ns", "_bytes", "_seconds"):
        shown[-1] = shown[-1].removesuffix(suffix)
    return " ".join(shown).replace("_", " ")


class Across(NamedTuple):
    axis: str
    heading: str
    places: Mapping[str, float]


def figures_of(study: Study, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Figure]:
    """Make a figure for each value over the numeric axis, if any, with a line per other
    combination."""
    across = numeric_axis(study)
    if across is None:
        return []
    drawn = (_figure(study, value, across, cells, records) for value in values_of(study))
    return [figure for figure in drawn if figure.drawn]


def _figure(
    study: Study,
    value: Value,
    across: Across,
    cells: Sequence[Cell],
    records: Mapping[str, Record],
) -> Figure:
    names = [axis.name for axis in study.axes if axis.name != across.axis and len(axis.points) > 1]
    lines: dict[str, dict[float, list[float]]] = {}
    possible = set[str]()
    for cell in cells:
        if value.applies(cell):
            name = " · ".join(cell.point[axis] for axis in names) or value.name
            possible |= set() if cell.refused else {name}
            place = across.places[cell.point[across.axis]]
            repeats = lines.setdefault(name, {}).setdefault(place, [])
            record = records.get(cell.id)
            number = value.number(record) if record else None
            if number is not None:
                repeats.append(number)
    series = [
        Series(
            name,
            tuple((x, statistics.median(own) if own else None) for x, own in sorted(line.items())),
        )
        for name, line in lines.items()
        if name in possible
    ]
    return Figure(
        name=value.title,
        title=f"{value.title} over {across.heading}",
        axis=across.heading,
        unit=value.shown_unit,
        series=tuple(series),
    )


def numeric_axis(study: Study) -> Across | None:
    """Return the numeric axis with the most points, else worlds by their ranks, else the models by
    parameter count."""
    numeric = [across for axis in study.axes if (across := _numbers(axis)) is not None]
    if numeric:
        return max(reversed(numeric), key=lambda across: len(across.places))
    for axis in study.axes:
        worlds = [point.settings.get("world", ONE_RANK) for point in axis.points]
        sizes = [float(World.parse(text).size) for text in worlds]
        if 1 < len(sizes) == len(set(sizes)) and axis.keys == ("world",):
            return Across(axis.name, "ranks", dict(zip(axis.labels, sizes, strict=True)))
        names = [point.settings.get("model") for point in axis.points]
        models = [find_model(name) for name in names if name is not None and not is_own(name)]
        if 1 < len(models) == len(names):
            counts = (float(model.dimensions.parameters) for model in models)
            return Across(axis.name, "parameters", dict(zip(axis.labels, counts, strict=True)))
    return None


def _numbers(axis: Axis) -> Across | None:
    """Return the numbers of an axis whose points each set one number of the same key."""
    settings = [value for point in axis.points for value in point.settings.values()]
    numbers = [float(value) for value in settings if is_number(value)]
    is_numeric = len(axis.keys) == 1 and len(numbers) == len(axis.points)
    if not is_numeric or len(set(numbers)) < 2:
        return None
    return Across(axis.name, axis.name, dict(zip(axis.labels, numbers, strict=True)))


_UNSHOWN: dict[str, Any] = {"findings": [], "prediction": None, "telemetry": None}
_LONG: dict[str, dict[str, Any]] = {
    "timing": {"samples_ms": [], "warmup_ms": [], "phase_samples_ms": {}},
    "memory": {"timeline": Timeline([], [], {}, [])},
}
"""Long parts, kept only if a formula names them."""


def pruner_for(study: Study) -> Callable[[Record], Record]:
    """Return a function that removes all record fields which the study does not read."""
    paths = [parse_path(path) for layout in study.tables for path in layout.formulas]
    named = {step.name for path in paths for step in path[:2]}
    named |= {MEASURES[name].block for name in named & MEASURES.keys()}
    if study.timelines:
        named.add("timeline")
    # A cell's own table may read any block.
    kept = RECORD_BLOCKS if any(layout.each for layout in study.tables) else {*named, "compile"}
    blanks = {name: value for name, value in _UNSHOWN.items() if name not in named}
    blanks |= {name: None for name in RECORD_BLOCKS if name not in kept}

    def prune(record: Record) -> Record:
        changes = dict(blanks)
        for name, fields in _LONG.items():
            if name not in blanks and (block := getattr(record, name)) is not None:
                shorter = {key: blank for key, blank in fields.items() if key not in named}
                if name == "timing" and "rounds" not in named:
                    rounds = block.rounds
                    shorter["rounds"] = [
                        msgspec.structs.replace(one, samples_ms=[]) for one in rounds
                    ]
                changes[name] = msgspec.structs.replace(block, **shorter)
        passes = [msgspec.structs.replace(row, log_tail=[]) for row in record.passes]
        return msgspec.structs.replace(record, passes=passes, **changes)

    return prune
