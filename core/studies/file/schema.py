"""Reads a study from TOML. ``docs/studies.md`` describes the keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import NotFoundError, SpecError
from ...record.blocks import EVERY_PASS, PassName
from ...spec.fields import field_named
from ...spec.files import NAME
from ...spec.models import find_model
from ...spec.own_model import is_own
from .layouts import read_layouts
from .places import study_files as study_files
from .reader import Problems, Section, read_toml
from .study import Axis, Point, Study, Variant

__all__ = [
    *("Axis", "Column", "Layout", "Line", "Point", "Study", "Variant"),
    *("find_study_file", "load_study", "parse_points", "study_files"),
]

MOST_POINTS = 1000
MOST_REPEATS = 100
_KEYS = (
    *("title", "source", "notes", "passes", "repeat", "fixed", "axes", "skip", "tables"),
    *("timelines", "variants"),
)
_VARIANT_KEYS = ("axes", "fixed", "passes", "repeat")
_RANGE_KEYS = ("from", "to", "times", "step")


def load_study(name: str | Path) -> Study:
    """The study of a file, or the saved or shipped one of that name.

    Raises:
        NotFoundError: No such study.
        ProfileError: One line for each mistake: the file, the key, the value, what is allowed.
    """
    path = find_study_file(name)
    problems = Problems(str(path))
    top = Section(problems, "", dict(read_toml(path)))
    top.reject_unknown(_KEYS)
    if not top.values.get("axes"):
        top.invalid("axes", "at least one axis, such as context = [128, 256]")
        problems.check()  # the other checks need axes
    axes = _axes(top)
    study = Study(
        name=path.stem if NAME.fullmatch(path.stem) else "study",
        title=top.text("title", required=True),
        source=top.text("source"),
        notes=top.texts("notes"),
        timelines=top.switch("timelines"),
        passes=_passes(top) or ("timing",),
        repeat=top.whole("repeat", 1, 1, MOST_REPEATS),
        fixed=_fixed(top, axes),
        axes=axes,
        skip=tuple(_skip(section, axes) for section in top.tables("skip")),
        tables=read_layouts(top, axes),
        variants=_variants(top.table("variants"), axes),
        file=str(path),
    )
    problems.check()
    return study


def find_study_file(name: str | Path) -> Path:
    """The file of that path or name; raises NotFoundError with the names there are."""
    path = Path(name)
    if path.suffix == ".toml" or "/" in str(name):
        return path
    files = study_files()
    if str(name) not in files:
        raise NotFoundError(f"no study {str(name)!r}; known: {', '.join(files)}; or give a file")
    return files[str(name)]


def parse_points(axis: str, values: list[Any]) -> tuple[Point, ...]:
    """Points of an axis from the values of one key.

    Raises:
        SpecError: No such key, or a value that it does not allow.
    """
    field = field_named(axis, values)
    settled = [_canonical(field.name, field.parse(value)) for value in values]
    points = {_label(field.name, value): {field.name: value} for value in settled}
    return tuple(Point(label=label, settings=settings) for label, settings in points.items())


def _canonical(key: str, value: Any) -> Any:
    return find_model(value).name if key == "model" and not is_own(value) else value


def _label(key: str, value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _axes(top: Section) -> tuple[Axis, ...]:
    section = top.table("axes")
    return tuple(Axis(name=name, points=_points(section, name)) for name in section.values)


def _points(section: Section, name: str) -> tuple[Point, ...]:
    """The points of one axis: values, a range, or tables of several keys."""
    value = section.values[name]
    if isinstance(value, dict):
        value = _range(section.table(name))
    if not isinstance(value, list) or not value:
        section.invalid(name, "a list of values, or a range such as { from = 128, to = 1024, "
                      "times = 2 }")  # fmt: skip
        return ()
    if len(value) > MOST_POINTS:
        section.invalid(name, f"at most {MOST_POINTS} values")
        return ()
    if all(isinstance(item, dict) for item in value):
        points: dict[str, Point] = {}
        for point_section in section.tables(name):
            point = _linked(point_section)
            if points.setdefault(point.label, point) != point:
                point_section.problems.add(
                    point_section.path("label"), point.label, "a label that no other point has"
                )
        return tuple(points.values())
    try:
        return parse_points(name, value)
    except SpecError as error:
        section.problems.add_error(error, section.path(name))
        return ()


def _range(section: Section) -> list[int] | None:
    """``{ from, to, times }`` or ``{ from, to, step }``; None where it is neither."""
    section.reject_unknown(_RANGE_KEYS)
    numbers = {key: section.values.get(key) for key in _RANGE_KEYS}
    low, high, times, step = numbers.values()
    if not isinstance(low, int) or not isinstance(high, int) or low < 0 or high < low:
        return None
    values = [low]
    while len(values) <= MOST_POINTS:
        if isinstance(times, int) and times > 1 and low > 0 and step is None:
            following = values[-1] * times
        elif isinstance(step, int) and step > 0 and times is None:
            following = values[-1] + step
        else:
            return None
        if following > high:
            break
        values.append(following)
    return values


def _linked(section: Section) -> Point:
    """A point that sets several keys together, with its label."""
    keys = {key: value for key, value in section.values.items() if key != "label"}
    settings = _settings(section, keys)
    label = section.text("label") or ", ".join(_label(*pair) for pair in settings.items())
    return Point(label=label, settings=settings)


def _settings(section: Section, values: Mapping[str, Any]) -> dict[str, Any]:
    settings = {}
    for key, value in values.items():
        try:
            settings[key] = _canonical(key, field_named(key, value).parse(value))
        except SpecError as error:
            section.problems.add_error(error, section.path(key))
    return settings


def _fixed(top: Section, axes: tuple[Axis, ...]) -> dict[str, Any]:
    section = top.table("fixed")
    taken = {key for axis in axes for point in axis.points for key in point.settings}
    for key in section.values.keys() & taken:
        section.invalid(key, "a key that no axis sets")
    return _settings(section, section.values)


def _passes(section: Section) -> tuple[PassName, ...]:
    """In the order in which they run; none where the key is absent."""
    names = section.texts("passes")
    if set(names) - set(EVERY_PASS) or section.values.get("passes") == []:
        section.invalid("passes", f"any of {', '.join(EVERY_PASS)}")
    return tuple(name for name in EVERY_PASS if name in names)


def _variants(section: Section, axes: tuple[Axis, ...]) -> dict[str, Variant]:
    return {name: _variant(section.table(name), axes) for name in section.values}


def _skip(section: Section, axes: tuple[Axis, ...]) -> dict[str, tuple[str, ...]]:
    """Axis to the labels that are left out together."""
    labels = {axis.name: axis.labels for axis in axes}
    section.reject_unknown(tuple(labels))
    left_out: dict[str, tuple[str, ...]] = {}
    if not section.values:
        section.problems.add(section.key, {}, f"points of any of {', '.join(labels)}")
    for name in section.values.keys() & labels.keys():
        value = section.values[name]
        left = [str(label) for label in (value if isinstance(value, list) else [value])]
        if not left or set(left) - set(labels[name]):
            section.invalid(name, f"any of {', '.join(labels[name])}")
        left_out[name] = tuple(left)
    return left_out


def _variant(section: Section, axes: tuple[Axis, ...]) -> Variant:
    section.reject_unknown(_VARIANT_KEYS)
    own = section.table("axes")
    own.reject_unknown(tuple(axis.name for axis in axes))
    return Variant(
        axes=_axes(section),
        fixed=_fixed(section, axes),
        passes=_passes(section) or None,
        repeat=section.whole("repeat", 0, 0, MOST_REPEATS) or None,
    )
