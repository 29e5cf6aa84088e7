"""The figures of single rounds over the order in which they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sysbench.tui.text import significant
from sysbench.tui.widgets.traces import extent

MOST_APART = 4
"""Cells between two rounds where there is room."""


class PlacedRound(NamedTuple):
    """One round: its median in milliseconds, and the letter it is drawn with."""

    ms: float
    letter: str


def round_rows(rounds: Sequence[PlacedRound], width: int, height: int) -> list[tuple[str, str]]:
    """Axis and cells of ``height`` rows, the longest times on top.

    Where there are more rounds than cells, later ones hide earlier ones of the same cell.
    """
    if not rounds or height < 2:
        return []
    low, high = extent([row.ms for row in rounds])
    digits = _digits(low, high)
    ticks = {
        row: significant(high - (high - low) * row / (height - 1), digits)
        for row in {0, (height - 1) // 2, height - 1}
    }
    margin = max(map(len, ticks.values()))
    room = width - margin - 2
    if room < 2:
        return []
    apart = min(MOST_APART, (room - 1) / max(len(rounds) - 1, 1))
    cells = [[" "] * room for _ in range(height)]
    for place, row in enumerate(rounds):
        level = round((high - row.ms) / (high - low) * (height - 1))
        cells[level][round(place * apart)] = row.letter
    return [
        (f"{ticks.get(level, ''):>{margin}}{'┤' if level in ticks else '│'} ", "".join(line))
        for level, line in enumerate(cells)
    ]


def _digits(low: float, high: float) -> int:
    """Significant digits that tell the ends of the axis apart."""
    digits = 3
    while digits < 7 and significant(low, digits) == significant(high, digits):
        digits += 1
    return digits
