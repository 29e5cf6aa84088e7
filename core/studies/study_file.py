"""Types of a study: axes, fixed fields, passes, tables."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sysbench.core.record.blocks import PassName


class StudyPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a study, as in ``study.json``."""


class Point(StudyPart, frozen=True):
    """One value of an axis: its label, and the spec keys that it sets."""

    label: str
    settings: dict[str, Any]


class Axis(StudyPart, frozen=True):
    """Points that the cells take in turn; most axes are one key of a spec."""

    name: str
    points: tuple[Point, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(point.label for point in self.points)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of a spec that the points set, each once."""
        return tuple(dict.fromkeys(key for point in self.points for key in point.settings))


Text = Annotated[str, Meta(min_length=1)]
NumberFormat = Annotated[str, Meta(pattern=r"^([^{}]*\{(:,?(\.\d{1,2})?[efg%]?)?\}[^{}]*)?$")]
"""Empty, or a text with one field, of which only the number of digits and the kind are free."""


class Line(StudyPart, frozen=True):
    """A named row in a table whose columns differ by ``where``: another value, or other cells. Its
    fields replace a column's.

    Attributes:
        name: Heading.
        value: Formula over a record (`sysbench.core.studies.formula`); empty: the other one's.
        where: Cell of a row that it shows: axis to label.
        unit: Unit of conversion, if any.
        format: Number format such as ``{:.2f}``.
    """

    name: Text
    value: str = ""
    where: dict[str, str] = {}
    unit: str = ""
    format: NumberFormat = ""


class StudyColumn(Line, frozen=True):
    """A column of a table.

    Attributes:
        ratio: Names of two earlier columns: the first over the second.
        is_label: True for the column of line names.
    """

    ratio: tuple[str, str] | None = None
    is_label: bool = msgspec.field(default=False, name="label")


class TableLayout(StudyPart, frozen=True):
    """One table of a study.

    Attributes:
        rows: Axes whose combinations make the rows.
        columns: Of a table with one value per cell.
        lines: Rows of each combination; empty for one row without a name.
        each: Instead of columns, a table per cell (`sysbench.core.studies.details.EACH`) whose rows
            follow each other.
        most: Limit of rows from each of these tables; 0 for all.
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
        values = [column.value for column in self.columns] + [line.value for line in self.lines]
        return [value for value in values if value]

    def column(self, name: str) -> StudyColumn:
        return next(column for column in self.columns if column.name == name)

    def part(self, line: Line, column: StudyColumn) -> StudyColumn:
        """Return the column in one line, whose own fields take precedence."""
        return msgspec.structs.replace(
            column,
            value=line.value or column.value,
            where=column.where | line.where,
            unit=line.unit or column.unit,
            format=line.format or column.format,
        )


class Variant(StudyPart, frozen=True):
    """Another size of the same study; replaces axes and fixed fields."""

    axes: tuple[Axis, ...] = ()
    fixed: dict[str, Any] = {}
    passes: tuple[PassName, ...] | None = None
    repeat: int | None = None


class Study(StudyPart, frozen=True):
    """A validated study.

    Attributes:
        name: File name without ending.
        skip: Combinations to leave out: axis to labels, all of which must match.
        variant: Chosen variant; empty for the study itself.
        timelines: True if a page shows each cell's memory over time.
        source: The experiment that it repeats.
        file: Path of its source.
        elsewhere: True if cells run on other machines; no device is checked here.
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
        return next((axis for axis in self.axes if axis.name == name), None)

    @property
    def identity(self) -> str:
        """Hash of what decides the cells, without texts, tables and repeats."""
        deciding = (self.name, self.axes, self.fixed, self.passes, self.skip)
        return hashlib.sha256(msgspec.json.encode(deciding, order="sorted")).hexdigest()[:8]
