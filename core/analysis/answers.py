"""What an answer is, and how its sentence writes numbers."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ..errors import SpecError
from ..formatting import percent
from ..record.record import Record
from ..runs.launch import command_line
from ..spec.spec import RunSpec

Numbers: TypeAlias = dict[str, float | int | str]

LONGEST_NAME = 60


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and a sentence made of numbers.

    ``numbers`` has every figure of the sentence: milliseconds where the name says so, shares
    of one, counts per step, names. ``rows`` are the names of the kernels that they were
    summed of; ``commands`` would measure what is not known yet.
    """

    question: str
    sentence: str
    numbers: Numbers = {}
    rows: list[str] = []
    commands: list[str] = []


def command_for(record: Record, step: str) -> list[str]:
    """The command that traces the same spec with another kind of step; none if it has none."""
    try:
        spec = msgspec.convert(record.spec, RunSpec).changed(step=step)
    except (msgspec.ValidationError, SpecError):
        return []
    return [command_line(spec, ["timing", "trace"])]


def milliseconds(ns: float) -> str:
    """Four significant digits: ``53.02 ms``."""
    value = ns / 1e6
    whole = len(str(int(value))) if value >= 1 else 1
    return f"{value:,.{max(0, 4 - whole)}f} ms"


def part(of: float, whole: float) -> str:
    """A part of a whole: ``31.2 %``."""
    return percent(of / whole if whole else 0.0)


def shortened(name: str) -> str:
    """A kernel's name cut in the middle: its beginning and its end both tell."""
    if len(name) <= LONGEST_NAME:
        return name
    tail = LONGEST_NAME // 3
    return f"{name[: LONGEST_NAME - tail - 1]}…{name[-tail:]}"
