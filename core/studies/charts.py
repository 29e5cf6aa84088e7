"""Figures of a study: each value over its numeric axis, one line per other combination."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sysbench.core.record.record import Record
from sysbench.core.spec.models import find_model
from sysbench.core.spec.own_model import is_own
from sysbench.core.studies.cell_values import Value, values_of
from sysbench.core.studies.study_file import Axis, Point, Study
from sysbench.core.studies.study_grid import Cell
from sysbench.core.tables.table import is_number
from sysbench.core.tables.timing_tables import Figure, Series


class Across(NamedTuple):
    """A numeric axis.

    Attributes:
        axis: Its name in the study.
        heading: Name of its numbers.
        places: Label to number.
    """

    axis: str
    heading: str
    places: Mapping[str, float]


def figures_of(study: Study, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Figure]:
    """Make a figure for each value; none without a numeric axis.

    Args:
        records: By the cell's id. Repeats become their median.
    """
    across = numeric_axis(study)
    if across is None:
        return []
    drawn = (figure_of(study, value, across, cells, records) for value in values_of(study))
    return [figure for figure in drawn if figure.drawn]


def figure_of(
    study: Study,
    value: Value,
    across: Across,
    cells: Sequence[Cell],
    records: Mapping[str, Record],
) -> Figure:
    names = [axis.name for axis in study.axes if axis.name != across.axis and len(axis.points) > 1]
    numbers_by_line: dict[str, dict[float, list[float]]] = {}
    for cell in cells:
        if value.applies(cell):
            name = " · ".join(cell.point[axis] for axis in names) or value.name
            place = across.places[cell.point[across.axis]]
            repeats = numbers_by_line.setdefault(name, {}).setdefault(place, [])
            record = records.get(cell.id)
            number = value.number(record) if record else None
            if number is not None:
                repeats.append(number)
    return Figure(
        name=value.title,
        title=f"{value.title} over {across.heading}",
        axis=across.heading,
        unit=value.shown_unit,
        series=tuple(_series(name, places) for name, places in numbers_by_line.items()),
    )


def numeric_axis(study: Study) -> Across | None:
    """Return the numeric axis with the most points, else the models by parameter count."""
    numeric = [across for axis in study.axes if (across := _numbers(axis)) is not None]
    if numeric:
        return max(reversed(numeric), key=lambda across: len(across.places))
    models = next((axis for axis in study.axes if _is_models(axis)), None)
    if models is None:
        return None
    places = {point.label: float(_parameters(point)) for point in models.points}
    return Across(models.name, "parameters", places)


def _numbers(axis: Axis) -> Across | None:
    """Return the numbers of an axis whose points each set one number of the same key."""
    places = {}
    for point in axis.points:
        number = next(iter(point.settings.values()), None)
        if len(point.settings) != 1 or not is_number(number):
            return None
        places[point.label] = float(number)
    keys = {key for point in axis.points for key in point.settings}
    several = len(set(places.values())) > 1 and len(keys) == 1
    return Across(axis.name, axis.name, places) if several else None


def _is_models(axis: Axis) -> bool:
    """Return whether the points differ by preset size."""
    models = [point.settings.get("model") for point in axis.points]
    return len(models) > 1 and not any(model is None or is_own(model) for model in models)


def _parameters(point: Point) -> int:
    return find_model(point.settings["model"]).dimensions.parameters


def _series(name: str, places: Mapping[float, Sequence[float]]) -> Series:
    points = (
        (place, statistics.median(numbers) if numbers else None)
        for place, numbers in sorted(places.items())
    )
    return Series(name, tuple(points))
