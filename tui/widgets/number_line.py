"""Draw a change with its interval on a number line, and rounds over time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sysbench.tui.text import significant
from sysbench.tui.widgets.traces import centre, extent, place_labels

MAX_GAP = 4
"""Maximum cells between two rounds."""


class PlacedRound(NamedTuple):
    """A round: its median in milliseconds and its letter."""

    ms: float
    letter: str


def round_rows(rounds: Sequence[PlacedRound], width: int, height: int) -> list[tuple[str, str]]:
    """Axis and cells of ``height`` rows, slowest rounds on top.

    Later rounds hide earlier ones in the same cell.
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
    apart = min(MAX_GAP, (room - 1) / max(len(rounds) - 1, 1))
    cells = [[" "] * room for _ in range(height)]
    for place, row in enumerate(rounds):
        level = round((high - row.ms) / (high - low) * (height - 1))
        cells[level][round(place * apart)] = row.letter
    return [
        (f"{ticks.get(level, ''):>{margin}}{'┤' if level in ticks else '│'} ", "".join(line))
        for level, line in enumerate(cells)
    ]


def _digits(low: float, high: float) -> int:
    """Significant digits with which the ends of the axis differ."""
    digits = 3
    while digits < 7 and significant(low, digits) == significant(high, digits):
        digits += 1
    return digits


ZERO, BAND, REACH, ACROSS, LOW_END, HIGH_END = "│", "░", "━", "┼", "├", "┤"
ESTIMATE, UNTESTED, DOT = "●", "◇", "○"
BEFORE, BEYOND = "◂", "▸"
MANY = "+"
"""Mark above a full column of dots."""
_ROOM = 0.05
_DOTS_REACH = 1.0
"""Maximum extension of the line for dots, as a multiple of its length."""
_LABEL_CELLS = 12


class MarkLook(NamedTuple):
    """A change as a share, and the ends of its interval, if known."""

    change: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class NumberLine:
    """Changes from ``low`` to ``high``, as shares, on ``width`` cells."""

    low: float
    high: float
    width: int

    def column(self, value: float) -> int:
        """Cell of a value; -1 or ``width`` outside the line."""
        if value < self.low:
            return -1
        if value > self.high:
            return self.width
        return round((value - self.low) / (self.high - self.low) * (self.width - 1))


def line_over(look: MarkLook, smallest: float, dots: Sequence[float], width: int) -> NumberLine:
    """A line that contains the interval, zero and the smallest difference that matters.

    Dots extend it up to a limit, so that the interval stays visible.
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
    """Zero with the band of differences that do not matter."""
    zero = line.column(0.0)
    reach = max(1, line.column(smallest) - zero)
    cells = [BAND if abs(cell - zero) <= reach else " " for cell in range(line.width)]
    cells[zero] = ZERO
    return cells


def look_row(line: NumberLine, look: MarkLook, smallest: float) -> str:
    """The estimate and its interval; arrows mark what is outside the line."""
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
    """Dots stacked above their values; those outside the line are at its ends."""
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
    step = _tick_step(line)
    digits = max(0, -math.floor(math.log10(100 * step) + 1e-9))
    cells, labels = ["─"] * line.width, []
    for number in range(math.ceil(line.low / step), math.floor(line.high / step) + 1):
        column = line.column(number * step)
        cells[column] = "┴" if number else "┼"
        text = f"{100 * number * step:+.{digits}f} %" if number else "0"
        labels.append((centre(column, text, line.width), text))
    return "".join(cells), place_labels(labels, line.width, " ")


def _tick_step(line: NumberLine) -> float:
    """The smallest of 1, 2 and 5 times a power of ten whose labels fit."""
    least = (line.high - line.low) * _LABEL_CELLS / line.width
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def evenly_spaced(count: int, most: int) -> list[int]:
    """At most ``most`` evenly spaced indices below ``count``, including the last."""
    if count <= most or most < 2:
        return list(range(max(0, count - max(most, 0)), count))
    return [round(row * (count - 1) / (most - 1)) for row in range(most)]
