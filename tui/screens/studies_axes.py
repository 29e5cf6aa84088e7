"""The arrangement of a study's cells on the screen: axes as rows and as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from sysbench.core.studies.study_file import Axis, Study
from sysbench.core.studies.study_grid import Cell

Place = tuple[int, int]
"""Row and column."""


class Arrangement(NamedTuple):
    """Labels of rows and columns, and the cells at each place: one for each repeat."""

    corner: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[Place, Sequence[Cell]]


def arrange(study: Study, cells: Sequence[Cell]) -> Arrangement:
    """Arrange cells in a grid: the axes of the first table's rows as rows, the others as columns.

    Without others, the last of the rows' axes makes the columns.
    """
    varying = [axis for axis in study.axes if len(axis.points) > 1] or [*study.axes[:1]]
    down = [axis for axis in varying if axis.name in study.tables[0].rows]
    across = [axis for axis in varying if axis not in down]
    if not across and len(down) > 1:
        across = [down.pop()]
    rows, columns = _combinations(down), _combinations(across)
    row_of = {combination: row for row, combination in enumerate(rows)}
    column_of = {combination: column for column, combination in enumerate(columns)}
    cells_by_place: dict[Place, list[Cell]] = {}
    for cell in cells:
        place = (row_of[_point(cell, down)], column_of[_point(cell, across)])
        cells_by_place.setdefault(place, []).append(cell)
    return Arrangement(
        corner=" · ".join(axis.name for axis in down),
        rows=[_label(combination) for combination in rows],
        columns=[_label(combination) for combination in columns],
        cells=cells_by_place,
    )


def fixed_axes(study: Study) -> str:
    """The axes that have one point, which all cells share."""
    return " · ".join(
        f"{axis.name} {short(axis.labels[0])}" for axis in study.axes if len(axis.points) == 1
    )


def short(label: str) -> str:
    """``large`` for ``cs336-2025/large``."""
    return label.rpartition("/")[2]


def _combinations(axes: Sequence[Axis]) -> list[tuple[str, ...]]:
    return list(product(*(axis.labels for axis in axes)))


def _point(cell: Cell, axes: Sequence[Axis]) -> tuple[str, ...]:
    return tuple(cell.point[axis.name] for axis in axes)


def _label(combination: Sequence[str]) -> str:
    return " · ".join(map(short, combination))
