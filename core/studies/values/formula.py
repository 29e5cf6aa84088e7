"""A cell's formula: paths with + - or / between them, a unit, and how it is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from ...errors import SpecError
from ...record.record import Record
from ...tables.table import Cell, is_number
from ..paths import follow, last_name, parts_of

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
    """Raise what is wrong with a formula, its unit or its format.

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
            known = ", ".join(parts) or "no parts: {:.2f} writes it"
            raise SpecError("format", template, f"names of what {path} has: {known}")
    if unit and unit not in UNITS:
        raise SpecError("unit", unit, f"one of {', '.join(UNITS)}")
    source = source_unit(text)
    if unit and not names and _SOURCES.get(source, ("none", 1))[0] != UNITS[unit][0]:
        end = last_name(paths[0])
        raise SpecError("unit", unit, f"a unit of what {text!r} is: the name {end!r} tells")


def check_template(template: str) -> list[str]:
    """The names that a format writes: empty ones mean the value itself.

    Raises:
        SpecError: It has braces that are no such place, or none at all.
    """
    names = [match[1] for match in _FIELD.finditer(template)]
    rest = _FIELD.sub("", template)
    if template and (not names or "{" in rest or "}" in rest):
        raise SpecError(
            "format", template, "text with {:.2f}, {} or {mean:.2f}: digits and one of e f g %"
        )
    return names


def evaluate(record: Record, text: str) -> Any:
    """What the formula gives for a record, in the unit of its path; None where it is unknown."""
    paths, operators = _parsed(text)
    value = follow(record, paths[0])
    for operator, path in zip(operators, paths[1:], strict=True):
        value = _combined(operator, value, follow(record, path))
    return value


def paths_in(text: str) -> list[str]:
    """The paths of a formula, without what is between them."""
    return _parsed(text)[0]


def source_unit(text: str) -> str:
    """The unit that a formula's value has, from the end of its first path; empty is none."""
    paths, operators = _parsed(text)
    return "" if "/" in operators else _unit_of(last_name(paths[0]))


def as_cell(value: Any, source: str, unit: str, template: str) -> Cell:
    """A value as the table holds it: a number in its unit, or a text where the format has
    several parts."""
    names = check_template(template)
    if any(names):
        return None if value is None else _filled(template, value, unit)
    if is_number(value):
        return converted(value, source, unit)
    return value if isinstance(value, str | bool) else None


def number_format(source: str, unit: str, template: str) -> str:
    """How a column's numbers are written; empty leaves it to the table."""
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


def _field(name: str, known: Collection[str]) -> str | None:
    """``mean_ms`` for ``mean``, where that is known."""
    names = (name, *(f"{name}_{suffix}" for suffix in _SUFFIXES))
    return next((one for one in names if one in known), None)


def _filled(template: str, value: Any, unit: str) -> str | None:
    """The format with the value's fields: ``{mean}`` is ``mean``, else ``mean_ms``, …"""
    missing = []

    def write(match: re.Match[str]) -> str:
        name = _field(match[1], dir(value)) or ""
        found = getattr(value, name, None)
        if not is_number(found):
            missing.append(match[1])
            return ""
        return format(converted(found, _unit_of(name), unit), match[2] or "")

    text = _FIELD.sub(write, template)
    return None if missing else text


def written(template: str) -> Callable[[float], str]:
    """A function that writes a number by a format without names."""

    def write(value: float) -> str:
        return _FIELD.sub(lambda match: format(value, match[2] or ""), template)

    return write
