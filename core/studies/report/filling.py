"""A filled table of a study: as data, and as people read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from ...tables.table import Table, select
from ..file.study import Layout
from .ratios import Ratio

ENDS = ("low", "high", "tested")
"""Ends of the names of the columns that a ratio column has further: its interval, and whether its
two cells were tested against each other."""
MARK = "*"


@dataclass(frozen=True, slots=True)
class Filling:
    """A filled table of a study.

    Attributes:
        layout: Its place in the study's file.
        table: Its rows, every number in a column of its own.
        ratios: Of each cell of a ratio column, by its row and the column's name.
        words: Each number that ratios compare, with its unit, by row and column.
    """

    layout: Layout
    table: Table
    ratios: Mapping[tuple[int, str], Ratio] = field(default_factory=dict)
    words: Mapping[tuple[int, str], str] = field(default_factory=dict)

    @property
    def shown(self) -> Table:
        """The table for people: a ratio is one text, ``1.52 (1.47–1.58)``; untested, marked."""
        names = [column.name for column in self.layout.columns if column.ratio is not None]
        marks = self._marks()
        table, hidden = self.table, {further(name, end) for name in names for end in ENDS}
        for name in names:
            place = table.index(name)
            write = table.formats[place].format
            texts = [
                cell if (ratio := self.ratios.get((index, name))) is None
                else _shown(ratio, write, marks)
                for index, cell in enumerate(table.column(name))
            ]  # fmt: skip
            rows = (
                (*row[:place], text, *row[place + 1 :])
                for row, text in zip(table.rows, texts, strict=True)
            )
            keys = {name: tuple(table.column(name))}
            table = msgspec.structs.replace(
                table, rows=tuple(rows), sort_keys=table.sort_keys | keys
            )
        return select(table, [name for name in table.columns if name not in hidden])

    @property
    def legend(self) -> tuple[str, ...]:
        """What the marks of `shown` mean, a line for each."""
        return tuple(f"{mark} {why}" for why, mark in self._marks().items())

    def _marks(self) -> dict[str, str]:
        """A mark for each reason why ratios of the table have no interval."""
        reasons = [
            ratio.why
            for ratio in self.ratios.values()
            if ratio.low is None and ratio.state != "counted"
        ]
        return {why: MARK * number for number, why in enumerate(dict.fromkeys(reasons), 1)}


def further(column: str, end: str) -> str:
    """Name of a further column of a ratio column."""
    return f"{column} {end}"


def _shown(ratio: Ratio, write: Callable[[float], str], marks: Mapping[str, str]) -> str:
    if ratio.low is not None and ratio.high is not None:
        return f"{write(ratio.value)} ({write(ratio.low)}–{write(ratio.high)})"
    mark = marks.get(ratio.why)
    return f"{write(ratio.value)} {mark}" if mark else write(ratio.value)
