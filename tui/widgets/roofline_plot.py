"""The roofline plot: arithmetic intensity across, FLOP/s up, both logarithmic.

Points are letters. The legend is right of the plot from 110 columns on, else below it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sysbench.core.formatting import format_count, percent
from sysbench.core.record.environment import Roof
from sysbench.core.trace.roofline import RoofPoint
from sysbench.tui.widgets.plot import Chart
from sysbench.tui.widgets.traces import (
    BLANK,
    DOTS_ACROSS,
    DOTS_DOWN,
    GAP,
    LETTERS,
    Canvas,
    Span,
    add_axes,
    flow_entries,
    place_labels,
)


class Range(NamedTuple):
    """A logarithmic axis; ``0 < low < high``."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], factor: float, part: float = 0.0) -> Range:
        """A range that exceeds all values by ``factor`` at both ends.

        At least the share ``part`` of the range is above the values.
        """
        values = list(values)
        low, high = min(values) / factor, max(values)
        return cls(low, high * max(factor, math.pow(high / low, part / (1 - part))))

    def part(self, value: float) -> float:
        """Position of a value: 0 at the low end, 1 at the high end."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def value(self, part: float) -> float:
        return self.low * math.pow(self.high / self.low, part)

    @property
    def decades(self) -> list[float]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]


class LogCanvas(Canvas):
    def __init__(self, width: int, height: int, across: Range, up: Range) -> None:
        super().__init__(width, height)
        self.across, self.up = across, up

    def column(self, x: float) -> int:
        return min(max(math.floor(self.across.part(x) * self.width), 0), self.width - 1)

    def row(self, y: float) -> int:
        return min(max(math.floor((1 - self.up.part(y)) * self.height), 0), self.height - 1)

    def curve(self, function: Callable[[float], float], kind: str) -> None:
        """Draw a curve without gaps, clipped at the border."""
        wide, tall = self.width * DOTS_ACROSS, self.height * DOTS_DOWN
        before: int | None = None
        for column in range(wide):
            y = function(self.across.value((column + 0.5) / wide))
            row = math.floor((1 - self.up.part(y)) * tall)
            low, high = sorted((row, row if before is None else before))
            # Fill the rows between two neighbouring dots.
            inner = range(low + 1, high) if before is not None else range(0)
            for place in {row, *inner}:
                if 0 <= place < tall:
                    self.dot(column, place, kind)
            before = row

    def letter(self, x: float, y: float, letter: str, kind: str) -> None:
        """Put a letter at a point, or in the nearest cell of its row without a letter."""
        row, column = self.row(y), self.column(x)
        free = [place for place in range(self.width) if self.cells[row][place][1] != kind]
        if free:
            nearest = min(free, key=lambda place: abs(place - column))
            self.cells[row][nearest] = (letter, kind)

    def label(self, column: int, row: int, text: str, kind: str) -> bool:
        """Write a text if all its cells are blank; return whether it was written."""
        cells = range(column, column + len(text))
        if not 0 <= row < self.height or column < 0 or cells.stop > self.width:
            return False
        if any(self.cells[row][cell] != BLANK for cell in cells):
            return False
        for cell, char in zip(cells, text, strict=True):
            self.cells[row][cell] = (char, kind)
        return True


SIDE_FROM, SIDE_WIDTH = 110, 52
MIN_WIDTH, MIN_HEIGHT = 24, 4
"""Minimum size of the plot; in less space only the legend is shown."""
ROWS_IN_FULL = 4
"""Rows of a point in the side legend with its figures and a blank row."""
ALL_KNOWN = 0.995
"""Share of a group's time from which it counts as fully known."""
MAX_ROWS_BELOW = 4
"""Maximum rows of the legend below the plot."""
NOTE_ROWS = 2
AROUND = 3.0
"""Factor by which the axes exceed points, peak and ridge."""
AXIS, ROOF, POINT, TEXT = "axis", "level", "point", "text"


class RooflinePlot(Chart, can_focus=True):
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: tuple[Sequence[RoofPoint], Roof | None, str] = ((), None, "")

    def show(self, points: Sequence[RoofPoint], roof: Roof | None, note: str = "") -> None:
        self._shown = (points, roof, note)
        self.redraw()

    def draw(self, width: int, height: int) -> list[list[Span]]:
        return roofline_rows(*self._shown, width, height)


def roofline_rows(
    points: Sequence[RoofPoint], roof: Roof | None, note: str, width: int, height: int
) -> list[list[Span]]:
    drawn = [point for point in points if point.flops and point.moved_bytes and point.ns]
    lines = textwrap.wrap(note, max(width, 1), max_lines=NOTE_ROWS, placeholder=" …")
    head: list[list[Span]] = [[(line[:width], AXIS)] for line in lines]
    if not drawn:
        return [*head, [("no work with known FLOPs and bytes", TEXT)]][:height]
    drawn = drawn[: len(LETTERS)]
    has_side_legend = width >= SIDE_FROM
    words = [_long(point) if has_side_legend else _short(point) for point in drawn]
    entries = [_entry(letter, text) for letter, text in zip(LETTERS, words, strict=False)]
    rows_below = max(1, min(MAX_ROWS_BELOW, height // 3))
    below = [] if has_side_legend else flow_entries(entries, width, rows_below)
    wide = width - (SIDE_WIDTH if has_side_legend else 0)
    tall = height - len(head) - len(below)
    if wide < MIN_WIDTH or tall < MIN_HEIGHT + 1:
        return [*head, *flow_entries(entries, width, height - len(head))][:height]
    plot = _plot(drawn, roof, wide, tall)
    side = _side(drawn, entries, len(plot)) if has_side_legend else []
    for row, entry in zip(plot, side, strict=False):
        row += [GAP, *entry]
    return [*head, *plot, *below]


def _side(
    points: Sequence[RoofPoint], entries: Sequence[list[Span]], height: int
) -> list[list[Span]]:
    """The legend right of the plot, with figures if all of them fit."""
    if len(points) * ROWS_IN_FULL > height + 1:
        return list(entries)
    rows: list[list[Span]] = []
    for point, entry in zip(points, entries, strict=True):
        lines = (f"  {text}"[: SIDE_WIDTH - 3] for text in _in_full(point))
        rows += [entry, *([(line, AXIS)] for line in lines), []]
    return rows


def _in_full(point: RoofPoint) -> tuple[str, str]:
    known = "" if point.known > ALL_KNOWN else f", {percent(point.known, 0)} known"
    roof = "" if point.at_roof_ns is None else f", {point.at_roof_ns / 1e6:.3g} ms at the roofline"
    return (
        f"{point.intensity:.3g} FLOP/B · {percent(point.share)} of the step{known}",
        f"{point.ns / 1e6:.3g} ms a step{roof}",
    )


def _entry(letter: str, words: str) -> list[Span]:
    return [(letter, POINT), (f" {words}"[: SIDE_WIDTH - 3], TEXT)]


def _long(point: RoofPoint) -> str:
    """``gemm 63.1 GFLOP/s, 71 % of compute``."""
    words = f"{point.label} {_rate(point)}"
    if point.of_roof is None:
        return words
    return f"{words}, {percent(point.of_roof, 0)} of {point.bound}"


def _short(point: RoofPoint) -> str:
    """``gemm 71 %``, or the rate if there is no roof."""
    reached = _rate(point) if point.of_roof is None else percent(point.of_roof, 0)
    return f"{point.label} {reached}"


def _rate(point: RoofPoint) -> str:
    return f"{format_count(point.flops_per_second)}FLOP/s"


def _plot(
    points: Sequence[RoofPoint], roof: Roof | None, width: int, height: int
) -> list[list[Span]]:
    ridge = roof.ridge if roof else None
    rates = [point.flops_per_second for point in points] + ([roof.peak_flops] if roof else [])
    up = Range.around(rates, AROUND, 1.5 / height)  # a row for the peak's label
    across = Range.around(
        [*(point.intensity for point in points), *([ridge] if ridge else [])], AROUND
    )
    ticks = {format_count(value).strip(): value for value in up.decades}
    unit = "FLOP/s"
    margin = max(map(len, (*ticks, unit)))
    canvas = LogCanvas(width - margin - 1, height - 1, across, up)
    if roof is not None:
        _draw_roof(canvas, roof)
    for letter, point in reversed(list(zip(LETTERS, points, strict=False))):
        canvas.letter(point.intensity, point.flops_per_second, letter, POINT)
    labels = {canvas.row(value): text for text, value in ticks.items()} | {0: f"{unit:>{margin}}"}
    rows = add_axes(canvas.rows(), labels, [(_scale(canvas), AXIS)], AXIS)
    rows[0][0] = (f"{labels[0]}│", AXIS)  # the unit is no tick
    return rows


def _draw_roof(canvas: LogCanvas, roof: Roof) -> None:
    bandwidth = roof.bandwidth
    if bandwidth is None:
        canvas.curve(lambda x: roof.peak_flops, ROOF)
    else:
        canvas.curve(lambda x: min(roof.peak_flops, bandwidth * x), ROOF)
        slope = f"{format_count(bandwidth)}B/s"
        column = canvas.column(canvas.across.value(0.08))
        end = canvas.across.value((column + len(slope)) / canvas.width)
        canvas.label(column, canvas.row(min(roof.peak_flops, bandwidth * end)) - 1, slope, ROOF)
    peak = f"{format_count(roof.peak_flops)}FLOP/s {roof.precision}"
    canvas.label(canvas.width - len(peak), canvas.row(roof.peak_flops) - 1, peak, ROOF)


def _scale(canvas: LogCanvas) -> str:
    """The axis of the intensity: powers of ten and the unit."""
    unit = " FLOP/B"
    labels = ((canvas.column(value), f"{value:g}") for value in canvas.across.decades)
    room = canvas.width - len(unit)
    return place_labels(labels, room) + unit if room >= 0 else unit[: canvas.width]
