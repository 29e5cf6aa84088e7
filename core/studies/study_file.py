"""The type of a study: axes, fixed fields, passes, and the tables that its cells fill."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sysbench.core.record.blocks import PassName


class StudyPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a study, as ``study.json`` keeps it."""


class Point(StudyPart, frozen=True):
    """One value of an axis: its label, and the keys of a spec that it sets."""

    label: str
    settings: dict[str, Any]


class Axis(StudyPart, frozen=True):
    """Points that the cells take in turn. Most axes are one key of a spec and named like it."""

    name: str
    points: tuple[Point, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the points, in order."""
        return tuple(point.label for point in self.points)


Text = Annotated[str, Meta(min_length=1)]


class StudyColumn(StudyPart, frozen=True):
    """A column of a table.

    Attributes:
        name: Its heading, as the write-up has it.
        value: A formula over a record (`sysbench.core.studies.formula`), or empty: then the
            line's.
        where: The cell of a row that it shows: axis to label.
        unit: Unit that the value is converted to, or empty.
        format: Format of the value, such as ``{:.2f}``.
        ratio: Names of two columns of values before it: the first over the second.
        is_label: It holds the name of the line.
    """

    name: Text
    value: str = ""
    where: dict[str, str] = {}
    unit: str = ""
    format: str = ""
    ratio: tuple[str, str] | None = None
    is_label: bool = msgspec.field(default=False, name="label")


class Line(StudyPart, frozen=True):
    """A named row in a table whose columns differ by ``where``: another value of the same cells,
    or the same value of others. Its fields take precedence over a column's."""

    name: Text
    value: str = ""
    where: dict[str, str] = {}
    unit: str = ""
    format: str = ""


class TableLayout(StudyPart, frozen=True):
    """One table of a study.

    Attributes:
        rows: Axes whose points make the rows, one for each combination.
        columns: Of a table with one value per cell.
        lines: Rows of each combination; empty means one row without a name.
        each: Instead of columns: the name of a table per cell
            (`sysbench.core.studies.details.EACH`), whose rows follow each other here.
        most: Limit of rows from each of these tables; 0 takes all.
    """

    name: Text
    rows: tuple[str, ...]
    title: str = ""
    columns: tuple[StudyColumn, ...] = ()
    lines: tuple[Line, ...] = ()
    each: str = ""
    most: Annotated[int, Meta(ge=0, le=1000)] = 0

    @property
    def formulas(self) -> list[str]:
        """Formulas of its columns and lines."""
        values = [column.value for column in self.columns] + [line.value for line in self.lines]
        return [value for value in values if value]

    def column(self, name: str) -> StudyColumn:
        """The column of that name."""
        return next(column for column in self.columns if column.name == name)

    def part(self, line: Line, column: StudyColumn) -> StudyColumn:
        """The column in one line, whose own fields take precedence."""
        return msgspec.structs.replace(
            column,
            value=line.value or column.value,
            where=column.where | line.where,
            unit=line.unit or column.unit,
            format=line.format or column.format,
        )


class Variant(StudyPart, frozen=True):
    """Another size of the same study: axes and fixed fields that replace the study's own."""

    axes: tuple[Axis, ...] = ()
    fixed: dict[str, Any] = {}
    passes: tuple[PassName, ...] | None = None
    repeat: int | None = None


class Study(StudyPart, frozen=True):
    """A study, checked.

    Attributes:
        name: The file's name without its ending.
        skip: Combinations that are left out: axis to labels, all of which must match.
        variant: Name of the chosen variant; empty for the study itself.
        timelines: True if a page shows each cell's memory over time.
        source: The experiment that it repeats.
        file: Path of its source.
        elsewhere: True if its cells run on other machines: no device is looked for here.
    """

    name: str
    title: str
    axes: tuple[Axis, ...]
    tables: tuple[TableLayout, ...]
    fixed: dict[str, Any] = {}
    passes: tuple[PassName, ...] = ("timing",)
    repeat: int = 1
    skip: tuple[dict[str, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()
    timelines: bool = False
    source: str = ""
    variants: dict[str, Variant] = {}
    variant: str = ""
    file: str = ""
    elsewhere: bool = False

    def axis(self, name: str) -> Axis | None:
        """The axis of that name, or None."""
        return next((axis for axis in self.axes if axis.name == name), None)

    @property
    def identity(self) -> str:
        """Hash of what decides the cells; words, tables and repeats are no part of it."""
        deciding = (self.name, self.axes, self.fixed, self.passes, self.skip)
        return hashlib.sha256(msgspec.json.encode(deciding, order="sorted")).hexdigest()[:8]
