"""Values of cells, and the record fields they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from sysbench.core.record.blocks import RECORD_BLOCKS
from sysbench.core.record.memory import Timeline
from sysbench.core.record.record import Record
from sysbench.core.studies.formula import (
    UNITS,
    is_fact,
    is_spread,
    parse_path,
    read_cell,
    shown_unit,
)
from sysbench.core.studies.study_file import Line, Study, TableLayout
from sysbench.core.studies.study_grid import Cell
from sysbench.core.tables.table import is_number
from sysbench.core.tables.timing_tables import with_unit

_LEFT_OUT = ("timing", "phases", "memory", "measures", "kernels", "numerics", "distributed")
"""Path parts that are left out of names."""


_TEXTS = (
    *("measures.hardware", "measures.machine", "measures.instruction_set", "measures.status"),
    *("measures.sdpa_kernel",),
    *("measures.rounds", "measures.timed_steps", "status", "id", "identity", "timing.step.n"),
)
"""Formulas that give text or a count of measurements."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """One number of a cell.

    Attributes:
        name: From its formula: ``forward mean``.
        unit: Unit of conversion; empty keeps the formula's.
        where: Cells that have it: any of these, each axis to label.
    """

    name: str
    formula: str
    unit: str
    where: tuple[dict[str, str], ...]

    @property
    def shown_unit(self) -> str:
        """Unit of `number`: ``B`` for bytes, empty for a count or a ratio."""
        return shown_unit(self.formula, self.unit)

    @property
    def title(self) -> str:
        return self.name if self.shown_unit in ("", "B") else f"{self.name}, {self.shown_unit}"

    def words(self, number: float) -> str:
        return with_unit(number, self.shown_unit)

    def applies(self, cell: Cell) -> bool:
        """Return whether a table shows this value of the cell."""
        return any(pinned.items() <= cell.point.items() for pinned in self.where)

    def number(self, record: Record) -> float | None:
        number = read_cell(record, self.formula, self.unit)
        return number if is_number(number) else None


def values_of(study: Study) -> list[Value]:
    """Return every number of the tables once, in order."""
    places: dict[tuple[str, str], list[dict[str, str]]] = {}
    for layout in study.tables:
        for formula, unit, where in _shown(layout):
            if not is_fact(formula) and formula not in _TEXTS:
                shown = shown_unit(formula, unit)
                places.setdefault((formula, shown), []).append(where)
    return [
        Value(
            name=_name(formula),
            formula=formula,
            unit=unit if unit in UNITS else "",
            where=tuple(where),
        )
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


FACTS = (
    *("measures.hardware", "measures.machine", "measures.instruction_set"),
    *("measures.sdpa_kernel", "measures.status"),
)
"""Measures that read no pass block; others, and tables per cell, may."""

OF_TIMING = ("measures.rounds", "measures.timed_steps", "measures.backward_and_optimizer_ms")
"""Measures that read only the timing block."""

_UNSHOWN: dict[str, Any] = {"findings": [], "prediction": None, "telemetry": None}
_LONG: dict[str, dict[str, Any]] = {
    "timing": {"samples_ms": [], "warmup_ms": [], "phase_samples_ms": {}},
    "memory": {"timeline": Timeline([], [], {}, [])},
}
"""Long parts, kept only if a formula names them."""


def pruner_for(study: Study) -> Callable[[Record], Record]:
    """Return a function that removes all record fields which the study does not read."""
    paths = [path for layout in study.tables for path in layout.formulas]
    named = {step.name for path in paths for step in parse_path(path)[:2]}
    has_more = any(layout.each for layout in study.tables) or any(
        path.startswith("measures.") and path not in (*FACTS, *OF_TIMING) for path in paths
    )
    if not {*paths}.isdisjoint(OF_TIMING):
        named.add("timing")
    if study.timelines:
        named.add("timeline")
    blanks = {name: value for name, value in _UNSHOWN.items() if name not in named}
    if not has_more:
        blanks |= {name: None for name in RECORD_BLOCKS if name not in {*named, "compile"}}
    long = {
        block: {name: blank for name, blank in fields.items() if name not in named}
        for block, fields in _LONG.items()
        if block not in blanks
    }

    def prune(record: Record) -> Record:
        shorter = {
            name: msgspec.structs.replace(block, **fields)
            for name, fields in long.items()
            if (block := getattr(record, name)) is not None
        }
        if (timing := shorter.get("timing")) is not None and "rounds" not in named:
            rounds = [msgspec.structs.replace(one, samples_ms=[]) for one in timing.rounds]
            shorter["timing"] = msgspec.structs.replace(timing, rounds=rounds)
        passes = [msgspec.structs.replace(row, log_tail=[]) for row in record.passes]
        return msgspec.structs.replace(record, passes=passes, **(blanks | shorter))

    return prune
