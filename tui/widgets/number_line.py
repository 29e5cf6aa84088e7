"""A change with its interval on a number line: rows of characters, one cell a character."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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


ZERO, BAND, REACH, ACROSS, LOW_END, HIGH_END = "│", "░", "━", "┼", "├", "┤"
ESTIMATE, UNTESTED, DOT = "●", "◇", "○"
BEFORE, BEYOND = "◂", "▸"
MANY = "+"
"""Stands above a full column of dots."""
_ROOM = 0.05
_DOTS_REACH = 1.0
"""Lengths of the line without dots by which dots may extend it to either side."""
_LABEL_CELLS = 12


class MarkLook(NamedTuple):
    """A change, as a share, and the ends of its interval where there is one."""

    change: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class NumberLine:
    """The changes from ``low`` to ``high``, as shares, on ``width`` cells."""

    low: float
    high: float
    width: int

    def column(self, value: float) -> int:
        """The cell of a value; outside of the line -1 or ``width``."""
        if value < self.low:
            return -1
        if value > self.high:
            return self.width
        return round((value - self.low) / (self.high - self.low) * (self.width - 1))


def line_over(look: MarkLook, smallest: float, dots: Sequence[float], width: int) -> NumberLine:
    """The line that shows an interval, zero and the smallest difference whole.

    Dots lengthen it, but not so far that the interval becomes a point: those beyond are drawn at
    the edge.
    """
    ends = [end for end in (look.low, look.high) if end is not None]
    values = [0.0, -1.3 * smallest, 1.3 * smallest, look.change, *ends]
    low, high = min(values), max(values)
    reach = _DOTS_REACH * (high - low)
    if dots:
        low, high = max(min(low, *dots), low - reach), min(max(high, *dots), high + reach)
    room = _ROOM * (high - low)
    return NumberLine(low - room, high + room, width)


def base_row(line: NumberLine, smallest: float) -> list[str]:
    """Zero, and around it the band of differences that do not matter."""
    zero = line.column(0.0)
    reach = max(1, line.column(smallest) - zero)
    cells = [BAND if abs(cell - zero) <= reach else " " for cell in range(line.width)]
    cells[zero] = ZERO
    return cells


def look_row(line: NumberLine, look: MarkLook, smallest: float) -> str:
    """The estimate and its interval over the base; arrows where it leaves the line."""
    cells = base_row(line, smallest)
    if look.low is not None and look.high is not None:
        first, last = line.column(look.low), line.column(look.high)
        for cell in range(max(first, 0), min(last, line.width - 1) + 1):
            cells[cell] = ACROSS if cells[cell] == ZERO else REACH
        if first < line.width:
            cells[max(first, 0)] = LOW_END if first >= 0 else BEFORE
        if last >= 0:
            cells[min(last, line.width - 1)] = HIGH_END if last < line.width else BEYOND
    place = line.column(look.change)
    if place < 0 or place >= line.width:
        cells[0 if place < 0 else -1] = BEFORE if place < 0 else BEYOND
    else:
        cells[place] = UNTESTED if look.low is None else ESTIMATE
    return "".join(cells)


def dot_rows(line: NumberLine, dots: Sequence[float], height: int) -> list[str]:
    """Dots above their values, stacked from the lowest row; those outside are at the edge."""
    counts = Counter(min(max(line.column(dot), 0), line.width - 1) for dot in dots)
    tall = min(height, max(counts.values(), default=0))
    rows = []
    for level in range(tall, 0, -1):
        cells = [" "] * line.width
        for column, count in counts.items():
            if count >= level:
                cells[column] = MANY if level == height and count > height else DOT
        rows.append("".join(cells))
    return rows


def axis_rows(line: NumberLine) -> tuple[str, str]:
    """The axis with its ticks, and their values in percent below."""
    step = _tick_step(line)
    cells, labels, end = ["─"] * line.width, [" "] * line.width, 0
    digits = max(0, -math.floor(math.log10(100 * step) + 1e-9))
    for number in range(math.ceil(line.low / step), math.floor(line.high / step) + 1):
        column = line.column(number * step)
        cells[column] = "┴" if number else "┼"
        text = f"{100 * number * step:+.{digits}f} %" if number else "0"
        begin = min(max(column - len(text) // 2, 0), line.width - len(text))
        if begin >= end:
            labels[begin : begin + len(text)] = text
            end = begin + len(text) + 1
    return "".join(cells), "".join(labels)


def _tick_step(line: NumberLine) -> float:
    """The least of 1, 2 and 5 times a power of ten whose labels have room."""
    least = (line.high - line.low) * _LABEL_CELLS / line.width
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def spaced(count: int, most: int) -> list[int]:
    """Indices of at most so many of ``count`` rows, evenly spaced, the last one among them."""
    if count <= most or most < 2:
        return list(range(max(0, count - max(most, 0)), count))
    return [round(row * (count - 1) / (most - 1)) for row in range(most)]
