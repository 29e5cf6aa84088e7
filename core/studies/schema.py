"""Types of a study, and its reading from TOML. ``docs/studies.md`` describes the keys."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from sysbench.core.errors import NotFoundError, ProfileError, SpecError
from sysbench.core.formatting import did_you_mean
from sysbench.core.machine.peaks import find_card
from sysbench.core.record.blocks import EVERY_PASS, PassName
from sysbench.core.spec.fields import field_named
from sysbench.core.spec.models import find_model
from sysbench.core.spec.own_model import is_own
from sysbench.core.spec.passes import MAX_ROUNDS
from sysbench.core.spec.profiles import NAME, read_toml
from sysbench.core.spec.world import EXAMPLE, World
from sysbench.core.storage import study_files
from sysbench.core.studies.details import EACH
from sysbench.core.studies.formula import check_formula, is_fact


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


MAX_POINTS = 1000
T = TypeVar("T")


class _Size(StudyPart, frozen=True):
    axes: dict[str, Any] = msgspec.field(default_factory=dict)
    fixed: dict[str, Any] = msgspec.field(default_factory=dict)
    passes: tuple[str, ...] | None = None
    repeat: Annotated[int, Meta(ge=1, le=MAX_ROUNDS)] | None = None


class _File(_Size, frozen=True, kw_only=True):
    title: Text
    source: str = ""
    notes: tuple[str, ...] = ()
    timelines: bool = False
    skip: tuple[dict[str, Any], ...] = ()
    tables: Annotated[tuple[TableLayout, ...], Meta(min_length=1)]
    variants: dict[str, Any] = msgspec.field(default_factory=dict)


class _Range(StudyPart, frozen=True):
    low: Annotated[int, Meta(ge=0)] = msgspec.field(name="from")
    high: int = msgspec.field(name="to")
    times: Annotated[int, Meta(ge=2)] | None = None
    step: Annotated[int, Meta(ge=1)] | None = None


_WORDS = {
    **{"bool": "true or false", "str": "a text", "int": "a whole number"},
    **{"array": "a list", "object": "a table of keys and values"},
}
"""Names of types in messages."""
_KEYS = {
    field.encode_name
    for part in (_File, _Range, TableLayout, StudyColumn, Line)
    for field in msgspec.structs.fields(part)
}


def load_study(name: str | Path) -> Study:
    """Load a study file, or the saved or shipped study of that name.

    Raises NotFoundError, and ProfileError with the first mistake: file, key, value and allowed
    values.
    """
    path = find_study_file(name)
    raw = read_toml(path, "a study")
    try:
        return _parse_study(path, raw)
    except SpecError as error:
        raise ProfileError(f"{path}: {error}") from error


def find_study_file(name: str | Path) -> Path:
    """Return the file of that path or name; raises NotFoundError that lists the names."""
    path = Path(name)
    if path.suffix == ".toml" or "/" in str(name):
        return path
    files = study_files()
    if str(name) not in files:
        known = f"{did_you_mean(str(name), files)}known: {', '.join(files)}"
        raise NotFoundError(f"no study {str(name)!r}; {known}; or give a file")
    return files[str(name)]


def parse_points(axis: str, values: Sequence[Any]) -> tuple[Point, ...]:
    """Parse the points of an axis from the values of one key; raises SpecError."""
    points = [_make_point(_parse_settings({axis: value})) for value in values]
    return tuple({point.label: point for point in points}.values())


def _parse_study(path: Path, raw: dict[str, Any]) -> Study:
    _prepare_tables(raw)
    file = _convert(raw, _File)
    size = _parse_size(file)
    if not (axes := size.axes):
        raise SpecError("axes", file.axes, "at least one axis, such as context = [128, 256]")
    with _within("skip"):
        skip = tuple(_parse_skip(combination, axes) for combination in file.skip)
    with _within("variants"):
        variants = {key: _parse_variant(key, raw, axes) for key, raw in file.variants.items()}
    for n, layout in enumerate(file.tables, 1):
        with _within(f"tables[{n}]"):
            _check_unique(layout.name, [other.name for other in file.tables[: n - 1]])
            _check_layout(layout, axes)
    return Study(
        name=path.stem if NAME.fullmatch(path.stem) else "study",
        title=file.title,
        source=file.source,
        notes=file.notes,
        timelines=file.timelines,
        passes=size.passes or ("timing",),
        repeat=size.repeat or 1,
        fixed=size.fixed,
        axes=axes,
        skip=skip,
        tables=file.tables,
        variants=variants,
        file=str(path),
    )


def _prepare_tables(raw: Mapping[str, Any]) -> None:
    """Complete the rows of each table, and turn the points of each ``where`` into labels."""
    axes = raw.get("axes")
    for table in _tables_in(raw, "tables"):
        table.setdefault("rows", list(axes) if isinstance(axes, dict) else [])
        for part in (*_tables_in(table, "lines"), *_tables_in(table, "columns")):
            if isinstance(where := part.get("where"), dict):
                part["where"] = {axis: _label(point) for axis, point in where.items()}


def _tables_in(raw: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = raw.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _convert(value: Any, kind: type[T]) -> T:
    """Convert a TOML value to a type; raise SpecError with the key at fault, counted from 1."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        key = ""
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            key += f".{name}" if name else f"[{int(index) + 1}]"
            value = value[name or int(index)]
        if match := re.match(r"Object (contains unknown|missing required) field `(.*)`", what):
            key += f".{match[2]}"
            value = value.get(match[2])
            is_missing = match[1] == "missing required"
            hint = did_you_mean(match[2], _KEYS).strip()
            what = "it is missing" if is_missing else "; ".join(filter(None, ("no such key", hint)))
        if "matching regex" in what:
            what = "one {:.2f} or {}: digits and one of e f g %"
        what = re.sub(r"^Expected (.*?)(, got .*)?$", r"\1", what)
        what = re.sub(r"`(\w+)`", lambda match: _WORDS.get(match[1], match[1]), what)
        raise SpecError(key.removeprefix("."), value, what) from error


@contextmanager
def _within(place: str) -> Iterator[None]:
    """Prefix the key of a SpecError."""
    try:
        yield
    except SpecError as error:
        dot = "" if not error.field or error.field.startswith("[") else "."
        raise SpecError(f"{place}{dot}{error.field}", error.value, error.allowed) from error


def _parse_size(size: _Size) -> Variant:
    with _within("axes"):
        points = {name: _parse_axis(name, value) for name, value in size.axes.items()}
    axes = tuple(Axis(name=name, points=own) for name, own in points.items())
    names = size.passes
    if names is not None and (not names or set(names) - set(EVERY_PASS)):
        raise SpecError("passes", names, f"any of {', '.join(EVERY_PASS)}")
    passes = tuple(name for name in EVERY_PASS if name in (names or ())) or None
    with _within("fixed"):
        for key in size.fixed.keys() & {key for axis in axes for key in axis.keys}:
            raise SpecError(key, size.fixed[key], "a key that no axis sets")
        fixed = _parse_settings(size.fixed)
    return Variant(axes=axes, fixed=fixed, passes=passes, repeat=size.repeat)


def _parse_variant(name: str, raw: Any, axes: Sequence[Axis]) -> Variant:
    with _within(name):
        size = _convert(raw, _Size)
        for key in size.axes:
            _check_among("axes", key, [axis.name for axis in axes])
        return _parse_size(size)


def _parse_axis(name: str, value: Any) -> tuple[Point, ...]:
    if isinstance(value, dict):
        with _within(name):
            value = _parse_range(value)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_POINTS:
        allowed = "values, or a range such as { from = 128, to = 1024, times = 2 }"
        raise SpecError(name, value, f"a list of up to {MAX_POINTS} {allowed}")
    if not all(isinstance(item, dict) for item in value):
        return parse_points(name, value)
    points: dict[str, Point] = {}
    with _within(name):
        for item in value:
            label = item.pop("label", "")
            point = _make_point(_parse_settings(item), label)
            if points.setdefault(point.label, point) != point:
                raise SpecError("label", point.label, "a label that no other point has")
    return tuple(points.values())


def _parse_range(raw: Mapping[str, Any]) -> list[int]:
    limits = _convert(raw, _Range)
    if (limits.times is None) == (limits.step is None) or (limits.times and not limits.low):
        raise SpecError("", raw, "{ from, to, times } or { from, to, step }")
    values = [limits.low]
    while values[-1] <= limits.high and len(values) <= MAX_POINTS + 1:
        values.append(values[-1] * (limits.times or 1) + (limits.step or 0))
    return values[:-1]


def _make_point(settings: dict[str, Any], label: object = "") -> Point:
    if not isinstance(label, str):
        raise SpecError("label", label, "a text")
    return Point(label=label or ", ".join(map(_label, settings.values())), settings=settings)


def _parse_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    settings = {}
    for key, value in raw.items():
        parsed = parser_of(key, value)(value)
        is_preset = key == "model" and not is_own(parsed)
        settings[key] = find_model(parsed).name if is_preset else parsed
    return settings


def parser_of(key: str, value: object) -> Callable[[Any], Any]:
    """Return the conversion of a key's values; raise SpecError for an unknown key."""
    return CLUSTER_KEYS.get(key) or field_named(key, value).parse


ONE_RANK = "dp=1"


def _parse_world(value: Any) -> str:
    """Return the world without its defaults."""
    if not isinstance(value, str):
        raise SpecError("world", value, f"a text {EXAMPLE}")
    try:
        return World.parse(value).words or ONE_RANK
    except SpecError as error:  # of an option, or of one of its keys
        field = "world" if error.field.startswith("--") else error.field
        raise SpecError(field, error.value, error.allowed) from error


def _parse_card(value: Any) -> str:
    """Return the key of a card."""
    try:
        return find_card(str(value)).key
    except SpecError as error:
        raise SpecError("card", value, error.allowed) from error


CLUSTER_KEYS: Mapping[str, Callable[[Any], str]] = {"world": _parse_world, "card": _parse_card}
"""Keys of a study beside those of a spec: ranks and device to predict a cell for."""


def separator_of(key: str) -> str:
    """Return what is between two values of a key on the command line."""
    return ";" if key == "world" else ","


def _label(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_skip(raw: Mapping[str, Any], axes: Sequence[Axis]) -> dict[str, tuple[str, ...]]:
    """Parse axis to labels that are left out together."""
    labels = {axis.name: axis.labels for axis in axes}
    if not raw:
        raise SpecError("", raw, f"points of any of {', '.join(labels)}")
    skipped = {}
    for name, value in raw.items():
        _check_among("", name, labels)
        own = tuple(map(_label, value if isinstance(value, list) else [value]))
        if not own or set(own) - set(labels[name]):
            raise SpecError(name, value, f"any of {', '.join(labels[name])}")
        skipped[name] = own
    return skipped


def _check_layout(layout: TableLayout, axes: Sequence[Axis]) -> None:
    names = [axis.name for axis in axes]
    for row in layout.rows:
        _check_among("rows", row, names)
    if layout.each:
        _check_among("each", layout.each, EACH)
    if bool(layout.columns) == bool(layout.each):
        allowed = "a list of columns, or each = the name of a cell's own table"
        raise SpecError("columns", layout.columns, allowed)
    for n, line in enumerate(layout.lines, 1):
        with _within(f"lines[{n}]"):
            _check_part(line, axes)
    for n, column in enumerate(layout.columns, 1):
        with _within(f"columns[{n}]"):
            before = {other.name: other for other in layout.columns[: n - 1]}
            _check_unique(column.name, before)
            _check_part(column, axes)
            comparable = [name for name, c in before.items() if not (c.is_label or c.ratio)]
            for name in column.ratio or ():
                _check_among("ratio", name, comparable)
            _check_column(column, layout, set(names) - set(layout.rows))


def _check_part(part: Line, axes: Sequence[Axis]) -> None:
    labels = {axis.name: axis.labels for axis in axes}
    with _within("where"):
        for axis, label in part.where.items():
            _check_among("", axis, labels)
            _check_among(axis, label, labels[axis])
    if part.value:
        check_formula(part.value, part.unit)


def _check_column(column: StudyColumn, layout: TableLayout, open_axes: set[str]) -> None:
    """Check one column; ``open_axes`` are those that the rows leave open."""
    kinds = (bool(column.value), column.ratio is not None, column.is_label)
    from_lines = bool(layout.lines) and all(line.value for line in layout.lines)
    if sum(kinds) > 1 or (not any(kinds) and not from_lines):
        allowed = "one of value, ratio or label = true; none where lines have a value"
        raise SpecError("value", column.value, allowed)
    is_of_row = column.ratio or column.is_label or (column.value and is_fact(column.value))
    pinned = set(column.where).union(*(line.where for line in layout.lines[:1]))
    if not is_of_row and (missing := sorted(open_axes - pinned)):
        allowed = f"which cell of the row: a value for {', '.join(missing)}"
        raise SpecError("where", column.where, allowed)


def _check_among(key: str, name: str, allowed: Collection[str]) -> None:
    if name not in allowed:
        listed = f"{did_you_mean(name, allowed)}any of {', '.join(allowed)}"
        raise SpecError(key or name, name, listed)


def _check_unique(name: str, others: Collection[str]) -> None:
    if name in others:
        raise SpecError("name", name, "a name that no other one has")
