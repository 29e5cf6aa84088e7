"""Dotted paths into a record: checked against its types, then followed. Nothing is evaluated.

``timing.phases.forward.mean_ms`` · ``memory.ledger[name=activations].bytes`` (of the rows that
match, numbers summed) · ``spec.batch`` · ``measures.gemm_share``: see
`sysbench.core.studies.values.measures`.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from ..errors import SpecError
from ..record.record import Record
from ..spec.spec import RunSpec
from .values.measures import MEASURES

EXTRA_ROOTS = ("measures",)


class Step(NamedTuple):
    """A name on the way, and what the rows of a list must hold to count."""

    name: str
    wanted: tuple[tuple[str, str], ...] = ()


@cache
def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path.

    Raises:
        SpecError: It leads nowhere in a record; says where it leaves the way.
    """
    steps = tuple(_step(text, part) for part in _parts(text))
    _check(text, steps)
    return steps


def follow(record: Record, path: str) -> Any:
    """What the path leads to; None where the record does not have it."""
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
    """What the end of a path consists of: nothing for a single value; None where that is open."""
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
    """The name that ends a path: its suffix tells the unit."""
    return parse_path(path)[-1].name


def _parts(text: str) -> list[str]:
    """The path at its dots, those in brackets left alone."""
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
    """Walk the types that a record has."""
    kind: Any = Record
    for index, step in enumerate(steps):
        if index == 0 and step.name == "measures":
            _check_measure(text, steps)
            return
        if index == 1 and steps[0].name == "spec":
            _known(text, step.name, RunSpec.__struct_fields__, "spec")
        kind = _type_of(text, kind, step.name, steps[:index])
        if kind is Any:
            return
        if step.wanted and typing.get_origin(kind) is not list:
            raise SpecError("value", text, f"{step.name} is no list: no [key=value] after it")


def _check_measure(text: str, steps: Sequence[Step]) -> None:
    name = steps[1].name if len(steps) == 2 else ""
    _known(text, name, tuple(MEASURES), "measures")


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
    _known(text, name, names, place)
    return _plain(hints[name])


def _known(text: str, name: str, names: Sequence[str], place: str) -> None:
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
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
        return _plain(kinds[0]) if len(kinds) == 1 else Any
    return kind


def _next(value: Any, name: str) -> Any:
    if isinstance(value, list):
        found = [_next(row, name) for row in value]
        return [one for one in found if one is not None]
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None)


def _matches(row: Any, wanted: Sequence[tuple[str, str]]) -> bool:
    return all(str(_next(row, key)) == value for key, value in wanted)


def _reduced(found: Sequence[Any]) -> Any:
    """One value of several rows: numbers are summed, a single one is itself."""
    if len(found) == 1:
        return found[0]
    if found and all(isinstance(one, int | float) for one in found):
        return sum(found)
    return None
