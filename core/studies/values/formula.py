"""Formulas over a record: the language, and the paths that it reads.

``timing.phases.forward.mean_ms`` · ``memory.ledger[name=activations].bytes`` (of the rows that
match, numbers summed) · ``spec.batch`` · ``measures.gemm_share``: see
`sysbench.core.studies.values.measures`.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from ...errors import SpecError
from ...record.record import Record
from ...spec.spec import RunSpec
from ...tables.table import Cell, is_number
from .measures import MEASURES

EXTRA_ROOTS = ("measures",)


class Step(NamedTuple):
    """One name of a path, and the keys and values that rows of a list must have to count."""

    name: str
    wanted: tuple[tuple[str, str], ...] = ()


@cache
def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path.

    Raises:
        SpecError: No such path in a record; names the first step that fails.
    """
    steps = tuple(_step(text, part) for part in _parts(text))
    _check(text, steps)
    return steps


def follow(record: Record, path: str) -> Any:
    """The value at the path; None where the record does not have it."""
    first, *rest = parse_path(path)
    if first.name == "measures":
        return MEASURES[rest[0].name](record)
    value: Any = record
    for step in (first, *rest):
        value = _next(value, step.name)
        if step.wanted and isinstance(value, list):
            value = [row for row in value if _matches(row, step.wanted)]
        if value is None:
            return None
    return _reduced(value) if isinstance(value, list) else value


def parts_of(path: str) -> tuple[str, ...] | None:
    """Names of the parts at the end of a path: none for a single value; None where unknown."""
    steps = parse_path(path)
    if steps[0].name in ("measures", "spec"):
        return () if len(steps) > 1 else None
    kind: Any = Record
    for index, step in enumerate(steps):
        kind = _type_of(path, kind, step.name, steps[:index])
        if kind is Any:
            return None
    if typing.get_origin(kind) is list:
        kind = _plain(typing.get_args(kind)[0])
    if typing.get_origin(kind) is dict:
        return ("entries by their name",)
    is_block = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return tuple(_hints(kind)) if is_block else ()


def last_name(path: str) -> str:
    """The last name of a path; its suffix is the unit."""
    return parse_path(path)[-1].name


def _parts(text: str) -> list[str]:
    """The path split at its dots, except those in brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "." and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _step(text: str, part: str) -> Step:
    name, bracket, rest = part.partition("[")
    if (bracket and not rest.endswith("]")) or not name.strip():
        raise SpecError("value", text, "names with dots between them, and [key=value] after a list")
    pairs = [pair.partition("=") for pair in rest[:-1].split(",")] if bracket else []
    if not all(key.strip() and equals for key, equals, _ in pairs):
        raise SpecError("value", text, "[key=value], such as memory.ledger[name=parameters].bytes")
    return Step(name.strip(), tuple((key.strip(), value.strip()) for key, _, value in pairs))


def _check(text: str, steps: Sequence[Step]) -> None:
    """Follow a path through the types of a record; raise SpecError where it fails."""
    kind: Any = Record
    for index, step in enumerate(steps):
        if index == 0 and step.name == "measures":
            _check_measure(text, steps)
            return
        if index == 1 and steps[0].name == "spec":
            _check_name(text, step.name, RunSpec.__struct_fields__, "spec")
        kind = _type_of(text, kind, step.name, steps[:index])
        if kind is Any:
            return
        if step.wanted and typing.get_origin(kind) is not list:
            raise SpecError("value", text, f"{step.name} is no list: no [key=value] after it")


def _check_measure(text: str, steps: Sequence[Step]) -> None:
    name = steps[1].name if len(steps) == 2 else ""
    _check_name(text, name, tuple(MEASURES), "measures")


def _type_of(text: str, kind: Any, name: str, before: Sequence[Step]) -> Any:
    """The type under a name of this type, without its None."""
    if typing.get_origin(kind) is list:
        kind = _plain(typing.get_args(kind)[0])
    if typing.get_origin(kind) is dict:
        return _plain(typing.get_args(kind)[1])
    place = ".".join(step.name for step in before) or "a record"
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        raise SpecError("value", text, f"{place} is a single value: nothing comes after it")
    hints = _hints(kind)
    names = (*hints, *EXTRA_ROOTS) if kind is Record else tuple(hints)
    _check_name(text, name, names, place)
    return _plain(hints[name])


def _check_name(text: str, name: str, names: Sequence[str], place: str) -> None:
    if name in names:
        return
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise SpecError("value", text, f"{place} has no {name!r}; {hint}it has {', '.join(names)}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return {
        name: hint
        for name, hint in typing.get_type_hints(kind).items()
        if name in kind.__struct_fields__  # type: ignore[attr-defined]
    }


def _plain(kind: Any) -> Any:
    """A type without its None; a union of several is left open."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [member for member in typing.get_args(kind) if member is not type(None)]
        return _plain(kinds[0]) if len(kinds) == 1 else Any
    return kind


def _next(value: Any, name: str) -> Any:
    if isinstance(value, list):
        values = [_next(row, name) for row in value]
        return [item for item in values if item is not None]
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None)


def _matches(row: Any, wanted: Sequence[tuple[str, str]]) -> bool:
    return all(str(_next(row, key)) == value for key, value in wanted)


def _reduced(values: Sequence[Any]) -> Any:
    """One value of several rows: numbers are summed, a single one is itself."""
    if len(values) == 1:
        return values[0]
    if values and all(isinstance(value, int | float) for value in values):
        return sum(values)
    return None


_OPERATOR = re.compile(r"\s+([+\-/])\s+")
_FIELD = re.compile(r"\{(\w*)(?::(,?(?:\.\d{1,2})?[efg%]?))?\}")

UNITS = {
    **{"ns": ("time", 1e-9), "us": ("time", 1e-6), "ms": ("time", 1e-3), "s": ("time", 1.0)},
    **{"B": ("bytes", 1), "KiB": ("bytes", 2**10), "MiB": ("bytes", 2**20)},
    "GiB": ("bytes", 2**30),
    "%": ("share", 0.01),
}
"""Name to dimension and size in its base unit."""

_SUFFIXES = {"ns": "ns", "ms": "ms", "seconds": "s", "bytes": "B", "share": "%1"}
_SOURCES = {**UNITS, "%1": ("share", 1.0)}
_FORMATS = {
    **{"ns": "{:,.0f}", "us": "{:.1f}", "ms": "{:.2f}", "s": "{:.4f}"},
    **{"%": "{:.1f}", "%1": "{:.1f} %"},
    **{"B": "{:,.0f}", "KiB": "{:,.1f}", "MiB": "{:,.1f}", "GiB": "{:.2f}"},
}


def check_formula(text: str, unit: str, template: str) -> None:
    """Check a formula, its unit and its format.

    Raises:
        SpecError: With the field ``value``, ``unit`` or ``format``.
    """
    paths, _ = _parsed(text)
    names = [name for name in check_template(template) if name]
    for path in paths:
        parts = parts_of(path)
        if parts and not names:
            raise SpecError("value", text, f"a single value: {path} has {', '.join(parts)}")
        if parts is not None and any(_field(name, parts) is None for name in names):
            allowed = ", ".join(parts) or "no parts: {:.2f} writes it"
            raise SpecError("format", template, f"names of what {path} has: {allowed}")
    if unit and unit not in UNITS:
        raise SpecError("unit", unit, f"one of {', '.join(UNITS)}")
    source = source_unit(text)
    if unit and not names and _SOURCES.get(source, ("none", 1))[0] != UNITS[unit][0]:
        end = last_name(paths[0])
        raise SpecError("unit", unit, f"a unit that fits {text!r}, by the suffix of {end!r}")


def check_template(template: str) -> list[str]:
    """The names that a format writes: empty ones mean the value itself.

    Raises:
        SpecError: Its braces are no such field, or it has none.
    """
    names = [match[1] for match in _FIELD.finditer(template)]
    rest = _FIELD.sub("", template)
    if template and (not names or "{" in rest or "}" in rest):
        raise SpecError(
            "format", template, "text with {:.2f}, {} or {mean:.2f}: digits and one of e f g %"
        )
    return names


def evaluate(record: Record, text: str) -> Any:
    """The formula's value for a record, in the unit of its path; None where it is unknown."""
    paths, operators = _parsed(text)
    value = follow(record, paths[0])
    for operator, path in zip(operators, paths[1:], strict=True):
        value = _combined(operator, value, follow(record, path))
    return value


def paths_in(text: str) -> list[str]:
    """The paths of a formula, without its operators."""
    return _parsed(text)[0]


COUNTING_ROOTS = ("memory", "measures", "distributed")


def is_counted(text: str) -> bool:
    """True for bytes that a pass counted: the same in every process, unlike a time.

    What the driver reports is measured.
    """
    return all(
        parse_path(path)[0].name in COUNTING_ROOTS
        and _unit_of(last_name(path)) == "B"
        and "driver" not in path
        for path in paths_in(text)
    )


def source_unit(text: str) -> str:
    """The unit that a formula's value has, from the end of its first path; empty is none."""
    paths, operators = _parsed(text)
    return "" if "/" in operators else _unit_of(last_name(paths[0]))


def shown_unit(text: str, unit: str) -> str:
    """The unit of a formula's numbers once converted: ``B`` for bytes, empty for a count."""
    source = source_unit(text)
    return unit or {"%1": "%"}.get(source, source)


def as_cell(value: Any, source: str, unit: str, template: str) -> Cell:
    """The cell of a value: a number in its unit, or a text where the format has several parts."""
    names = check_template(template)
    if any(names):
        return None if value is None else _filled(template, value, unit)
    if is_number(value):
        return converted(value, source, unit)
    return value if isinstance(value, str | bool) else None


def number_format(source: str, unit: str, template: str) -> str:
    """Format of a column's numbers; empty leaves it to the table."""
    if template:
        return "" if any(check_template(template)) else template
    return _FORMATS.get(unit or source, "")


def converted(value: float, source: str, unit: str) -> float:
    """A number in another unit of the same dimension; itself without one."""
    wanted = unit or {"%1": "%"}.get(source, source)
    if source not in _SOURCES or source == wanted:
        return value
    return value * _SOURCES[source][1] / UNITS[wanted][1]


@cache
def _parsed(text: str) -> tuple[list[str], list[str]]:
    parts = _OPERATOR.split(text.strip())
    return parts[::2], parts[1::2]


def _combined(operator: str, left: Any, right: Any) -> float | None:
    if not is_number(left) or not is_number(right):
        return None
    if operator == "/":
        return left / right if right else None
    return left + right if operator == "+" else left - right


def _unit_of(name: str) -> str:
    return _SUFFIXES.get(name.rpartition("_")[2], "")


def _field(name: str, fields: Collection[str]) -> str | None:
    """``mean_ms`` for ``mean``, if it is among the fields."""
    names = (name, *(f"{name}_{suffix}" for suffix in _SUFFIXES))
    return next((candidate for candidate in names if candidate in fields), None)


def _filled(template: str, value: Any, unit: str) -> str | None:
    """The format with the value's fields: ``{mean}`` is ``mean``, else ``mean_ms``, …"""
    missing = []

    def write(match: re.Match[str]) -> str:
        name = _field(match[1], dir(value)) or ""
        number = getattr(value, name, None)
        if not is_number(number):
            missing.append(match[1])
            return ""
        return format(converted(number, _unit_of(name), unit), match[2] or "")

    text = _FIELD.sub(write, template)
    return None if missing else text


def written(template: str) -> Callable[[float], str]:
    """A function that writes a number by a format without names."""

    def write(value: float) -> str:
        return _FIELD.sub(lambda match: format(value, match[2] or ""), template)

    return write
