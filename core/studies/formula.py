"""Formulas over a record: a dotted path, with ``[key=value]`` after a list.

``timing.phases.forward.mean_ms`` · ``memory.ledger[name=activations].bytes`` (sum of matching
rows) · ``timing.step`` (mean ± standard deviation) · ``spec.batch`` · ``measures.gemm_share``,
see `sysbench.core.studies.measures`. The suffix is the unit.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.record.record import Record, Spread
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.measures import MEASURES
from sysbench.core.tables.table import Cell, is_number

FACT_ROOTS = ("spec", "parameters")
"""Paths that a cell's spec answers without a record."""
COUNTING_ROOTS = ("memory", "measures", "distributed")

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
_DOT = re.compile(r"\.(?![^\[]*\])")
_STEP = re.compile(r"([^\[\]]*[^\[\]\s])\s*(?:\[(.*)\])?")
_ARITHMETIC = re.compile(r"\s[-+*/]\s(?![^\[]*\])")
_TEMPLATE = re.compile(r"[^{}]*\{(:,?(\.\d{1,2})?[efg%]?)?\}[^{}]*")
_Measures = msgspec.defstruct("Measures", [(name, object) for name in MEASURES])


class Step(NamedTuple):
    """One name of a path, and the conditions on rows of a list."""

    name: str
    wanted: tuple[tuple[str, str], ...] = ()


@cache
def parse_path(text: str) -> tuple[Step, ...]:
    """Parse a path into its steps.

    Raises:
        SpecError: No such path; the message names the first step that fails.
    """
    if _ARITHMETIC.search(text):
        raise SpecError("value", text, "one path: a formula has no arithmetic; show two columns "
                        "and their ratio, or one of the measures")  # fmt: skip
    steps = tuple(_parse_step(text, part.strip()) for part in _DOT.split(text))
    _kind_at(text, steps)
    return steps


def evaluate(record: Record, text: str) -> Any:
    """Return the value at the path in the unit of its suffix, if known."""
    first, *rest = parse_path(text)
    if first.name == "measures":
        return MEASURES[rest[0].name](record)
    value: Any = record
    for step in (first, *rest):
        value = _next(value, step.name)
        if step.wanted and isinstance(value, list):
            value = [row for row in value if _matches(row, step.wanted)]
    return _reduce(value) if isinstance(value, list) else value


def check_formula(text: str, unit: str, template: str) -> None:
    """Check a formula, its unit and its format.

    Raises:
        SpecError: With the field ``value``, ``unit`` or ``format``.
    """
    kind = _kind_at(text, parse_path(text))
    if typing.get_origin(kind) is list:
        kind = _plain(typing.get_args(kind)[0])
    if typing.get_origin(kind) is dict:
        raise SpecError("value", text, f"a single value: {text} has entries by their name")
    if _is_struct(kind) and kind is not Spread:
        raise SpecError("value", text, f"a single value: {text} has {', '.join(_hints(kind))}")
    check_template(template)
    if unit and unit not in UNITS:
        raise SpecError("unit", unit, f"one of {', '.join(UNITS)}")
    if unit and _SOURCES.get(source_unit(text), ("none", 1))[0] != UNITS[unit][0]:
        raise SpecError("unit", unit, f"a unit that fits {text!r}, by its suffix")


def check_template(template: str) -> str:
    """Return the number format, which may be empty.

    Raises:
        SpecError: Not a text with one field.
    """
    if template and not _TEMPLATE.fullmatch(template):
        raise SpecError("format", template, "one {:.2f} or {}: digits and one of e f g %")
    return template


def is_fact(text: str) -> bool:
    return parse_path(text)[0].name in FACT_ROOTS


def is_spread(text: str) -> bool:
    """Return whether the formula has a mean and a standard deviation, shown as one text."""
    return _kind_at(text, parse_path(text)) is Spread


def is_counted(text: str) -> bool:
    """Return whether the formula gives bytes that a pass counted, which are equal in every
    process."""
    is_bytes = source_unit(text) == "B" and "driver" not in text
    return is_bytes and parse_path(text)[0].name in COUNTING_ROOTS


def source_unit(text: str) -> str:
    """Return the unit at the end of a formula; empty for none."""
    last = parse_path(text)[-1].name
    return "ms" if is_spread(text) else _SUFFIXES.get(last.rpartition("_")[2], "")


def shown_unit(text: str, unit: str) -> str:
    """Return the unit after conversion: ``B`` for bytes, empty for a count."""
    return _target_unit(source_unit(text), unit)


def read_cell(record: Record, text: str, unit: str = "", template: str = "") -> Cell:
    """Return a table cell: a number in its unit, or ``mean ± standard deviation``."""
    value, source = evaluate(record, text), source_unit(text)
    if isinstance(value, Spread):
        write = written(template or _FORMATS[unit or source])
        return " ± ".join(
            write(converted(ms, source, unit)) for ms in (value.mean_ms, value.std_ms)
        )
    if is_number(value):
        return converted(value, source, unit)
    return value if isinstance(value, str | bool) else None


def number_format(text: str, unit: str, template: str) -> str:
    if is_spread(text):
        return ""
    return check_template(template) or _FORMATS.get(unit or source_unit(text), "")


def converted(value: float, source: str, unit: str) -> float:
    """Convert a number to another unit of the same dimension, if one is given."""
    wanted = _target_unit(source, unit)
    if source not in _SOURCES or source == wanted:
        return value
    return value * _SOURCES[source][1] / UNITS[wanted][1]


def written(template: str) -> Callable[[float], str]:
    return check_template(template).format


def _target_unit(source: str, unit: str) -> str:
    return unit or {"%1": "%"}.get(source, source)


def _parse_step(text: str, part: str) -> Step:
    match = _STEP.fullmatch(part)
    if match is None:
        raise SpecError("value", text, "names with dots between them, and [key=value] after a list")
    pairs = [pair.partition("=") for pair in match[2].split(",")] if match[2] is not None else []
    if not all(key.strip() and equals for key, equals, _ in pairs):
        raise SpecError("value", text, "[key=value], such as memory.ledger[name=parameters].bytes")
    return Step(match[1], tuple((key.strip(), value.strip()) for key, _, value in pairs))


@cache
def _kind_at(text: str, steps: tuple[Step, ...]) -> Any:
    """Return the type at the end of a path, without None; Any if it is open."""
    kind: Any = Record
    place = "a record"
    for step in steps:
        if typing.get_origin(kind) is list:
            kind = _plain(typing.get_args(kind)[0])
        if typing.get_origin(kind) is dict:
            kind = _plain(typing.get_args(kind)[1])
        elif kind is not Any:
            names = _hints(kind)
            if not names:
                raise SpecError("value", text, f"{place} is a single value: nothing comes after it")
            if step.name not in names:
                close = difflib.get_close_matches(step.name, names, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]!r}? " if close else ""
                allowed = f"{place} has no {step.name!r}; {hint}it has {', '.join(names)}"
                raise SpecError("value", text, allowed)
            kind = _plain(names[step.name])
        if step.wanted and kind is not Any and typing.get_origin(kind) is not list:
            raise SpecError("value", text, f"{step.name} is no list: no [key=value] after it")
        place = step.name
    return kind


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """Return the types of possible next names; empty after a single value."""
    if not _is_struct(kind):
        return {}
    hints = typing.get_type_hints(kind)
    named = {name: hints[name] for name in kind.__struct_fields__}
    return {**named, "spec": RunSpec, "measures": _Measures} if kind is Record else named


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _plain(kind: Any) -> Any:
    """Return a type without None; other unions become Any."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [member for member in typing.get_args(kind) if member is not type(None)]
        return _plain(kinds[0]) if len(kinds) == 1 else Any
    return kind


def _next(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [item for row in value if (item := _next(row, name)) is not None]
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None)


def _matches(row: Any, wanted: Sequence[tuple[str, str]]) -> bool:
    return all(str(_next(row, key)) == value for key, value in wanted)


def _reduce(values: Sequence[Any]) -> Any:
    """Combine values of several rows: sum numbers, keep a single value."""
    if len(values) == 1:
        return values[0]
    if values and all(isinstance(value, int | float) for value in values):
        return sum(values)
    return None
