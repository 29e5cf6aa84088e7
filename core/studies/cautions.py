"""What a reader must know before comparing cells: several factors at once, several machines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ..machine.environment import device_name, threads, torch_version
from ..record.record import Record
from ..spec.spec import DIMENSION_NAMES, RunSpec
from .file.study import Axis, Layout, Study
from .run.grid import Cell

PARTS = dict.fromkeys(DIMENSION_NAMES, "model") | {"bucket_mib": "parallel"}
"""Keys that only say which of another key it is: both are one factor."""


def cautions_of(study: Study, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """One sentence for each; none where every comparison is of one factor on one machine.

    Args:
        cells: From `expand`.
        records: By the cell's id.
    """
    by_axes = [text for axis in study.axes if (text := _of_axis(axis, study.fixed))]
    by_ratios = [text for layout in study.tables for text in _of_ratios(layout, cells)]
    return [*by_axes, *by_ratios, *_of_machines(list(records.values()))]


def factors(a: RunSpec, b: RunSpec) -> list[str]:
    """The keys in which two specs differ; the dimensions of a model are one."""
    keys = (key for key in RunSpec.__struct_fields__ if getattr(a, key) != getattr(b, key))
    return _folded(keys)


def _folded(keys: Collection[str] | Iterator[str]) -> list[str]:
    return list(dict.fromkeys(PARTS.get(key, key) for key in keys))


def _of_axis(axis: Axis, fixed: Mapping[str, object]) -> str | None:
    """An axis whose points change several keys."""
    default = RunSpec()
    keys = dict.fromkeys(key for point in axis.points for key in point.settings)

    def values(key: str) -> set[str]:
        unset = fixed.get(key, getattr(default, key))
        return {repr(point.settings.get(key, unset)) for point in axis.points}

    changing = _folded([key for key in keys if len(values(key)) > 1])
    if len(changing) < 2:
        return None
    return (
        f"Points of {axis.name} differ in {len(changing)} factors ({', '.join(changing)}): "
        "a difference between them has no single cause."
    )


def _of_ratios(layout: Layout, cells: Sequence[Cell]) -> Iterator[str]:
    """Ratios of cells that differ in more than one factor."""
    columns = {column.name: column for column in layout.columns}
    for column in layout.columns:
        if column.ratio is None:
            continue
        over, under = (columns[name].where for name in column.ratio)
        pinned = [line.where for line in layout.lines] or [{}]
        found = (_differing(over | one, under | one, layout.rows, cells) for one in pinned)
        differing = max(found, key=len)
        if len(differing) > 1:
            yield (
                f"{column.name} compares cells that differ in {len(differing)} factors "
                f"({', '.join(differing)})."
            )


def _differing(
    over: Mapping[str, str], under: Mapping[str, str], rows: Sequence[str], cells: Sequence[Cell]
) -> list[str]:
    """The factors in which the two cells of some row differ; both are given by axis and label."""
    below = {_row(cell, rows): cell for cell in cells if under.items() <= cell.point.items()}
    found: dict[str, None] = {}
    for cell in cells:
        other = below.get(_row(cell, rows))
        if over.items() <= cell.point.items() and other and cell.spec and other.spec:
            found |= dict.fromkeys(factors(cell.spec, other.spec))
    return list(found)


def _row(cell: Cell, rows: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.point[axis] for axis in rows)


def _of_machines(records: Sequence[Record]) -> Iterator[str]:
    """Facts of the machine that are not the same in all cells."""
    facts = {"devices": device_name, "versions of torch": torch_version, "thread counts": threads}
    for name, fact in facts.items():
        found = {str(fact(record.environment)) for record in records}
        if len(found) > 1:
            yield f"The cells were measured with different {name}: {', '.join(sorted(found))}."
