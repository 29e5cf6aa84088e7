"""Lines over a numeric axis in character cells: braille lines, a letter at each value."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

from sysbench.core.tables.cells import literal
from sysbench.core.tables.chart import Figure, Series

Span = tuple[str, int | None]
"""A text, and the index of its line; None for axes and words."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LEAST_WIDTH, LEAST_HEIGHT = 24, 5
SIDE_FROM, SIDE_WIDTH = 90, 34
TICKS = 5
GAP = "  "
NOTHING = "No figure: no value yet (^r measures), or no axis of numbers (v shows the table)."
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK: Span = (" ", None)


def figure_rows(figure: Figure | None, width: int, height: int) -> list[list[Span]]:
    """Title, plot with its axes, legend: at most ``height`` rows of at most ``width`` cells."""
    if figure is None or not figure.drawn:
        nothing: list[list[Span]] = [
            [(line, None)] for line in textwrap.wrap(NOTHING, max(width, 1))
        ]
        return nothing[:height]
    drawn = figure.drawn[: len(LETTERS)]
    head: list[list[Span]] = [[(literal(figure.title)[:width], None)]]
    has_side_legend = width >= SIDE_FROM
    room = min(SIDE_WIDTH - len(GAP), width)
    legend = [_entry(index, series, figure, room) for index, series in enumerate(drawn)]
    below = [] if has_side_legend else _flowing(legend, width, max(1, height // 4))
    wide = width - (SIDE_WIDTH if has_side_legend else 0)
    tall = height - len(head) - len(below)
    if wide < LEAST_WIDTH or tall < LEAST_HEIGHT:
        return [*head, *_flowing(legend, width, height - 1)][:height]
    rows = _plot(figure, drawn, wide, tall)
    if has_side_legend:
        for row, entry in zip(rows, legend, strict=False):
            row += [(GAP, None), *entry]
    return [*head, *rows, *below]


def _entry(index: int, series: Series, figure: Figure, room: int) -> list[Span]:
    """``a small 66.90 ms``: the letter, the name, the value at the end of the line."""
    name, value = literal(series.name), figure.words(series.known[-1][1])
    left = max(room - cell_len(value) - 3, 0)
    words = f" {set_cell_size(name, min(cell_len(name), left))} {value}"
    return [(LETTERS[index], index), (set_cell_size(words, min(cell_len(words), room - 1)), None)]


def _flowing(entries: Sequence[list[Span]], width: int, max_rows: int) -> list[list[Span]]:
    """The legend's entries in lines, at most ``max_rows``; entries without room are left out."""
    rows: list[list[Span]] = [[]]
    for entry in entries:
        before, length = (sum(cell_len(text) for text, _ in row) for row in (rows[-1], entry))
        if before and before + len(GAP) + length > width:
            if len(rows) == max_rows:
                break
            rows.append([])
            before = 0
        rows[-1] += [(GAP, None), *entry] if before else entry
    return rows


def _plot(figure: Figure, drawn: Sequence[Series], width: int, height: int) -> list[list[Span]]:
    """The lines within their axes; the last row is the scale of the axis."""
    up = figure.up
    ticks = {value: figure.tick(value) for value in up.ticks(min(TICKS, height // 2))}
    margin = max(map(len, ticks.values()))
    wide, tall = width - margin - 1, height - 1
    labels = {round((1 - up.part(value)) * (tall - 1)): text for value, text in ticks.items()}
    cells = _cells(figure, drawn, wide, tall)
    rows: list[list[Span]] = [
        [(f"{labels.get(row, ''):>{margin}}{'┤' if row in labels else '│'}", None), *cells[row]]
        for row in range(tall)
    ]
    return [*rows, [(" " * margin + "╰" + _axis(figure, wide), None)]]


def _cells(figure: Figure, drawn: Sequence[Series], width: int, height: int) -> list[list[Span]]:
    """Braille between neighbouring values, then the letters on the values."""
    across, up = figure.across, figure.up
    cells = [[_BLANK] * width for _ in range(height)]
    dots: dict[tuple[int, int], int] = {}

    def place(x: float, y: float) -> tuple[float, float]:
        return across.part(x) * (width * 2 - 1), (1 - up.part(y)) * (height * 4 - 1)

    for index, series in enumerate(drawn):
        for piece in series.pieces:
            for begin, end in pairwise(place(*point) for point in piece):
                for column, row in _between(begin, end):
                    cell = (row // 4, column // 2)
                    dots[cell] = dots.get(cell, 0) | _DOTS[row % 4][column % 2]
                    cells[cell[0]][cell[1]] = (chr(0x2800 + dots[cell]), index)
    # Backwards, so that the first line's letters stay on top.
    for index, series in reversed(list(enumerate(drawn))):
        for x, y in series.known:
            right, down = place(x, y)
            cells[round(down) // 4][round(right) // 2] = (LETTERS[index], index)
    return cells


def _between(begin: tuple[float, float], end: tuple[float, float]) -> list[tuple[int, int]]:
    """Dots of a straight line, without gaps."""
    (x0, y0), (x1, y1) = begin, end
    count = max(round(max(abs(x1 - x0), abs(y1 - y0))), 1)
    return [
        (round(x0 + (x1 - x0) * n / count), round(y0 + (y1 - y0) * n / count))
        for n in range(count + 1)
    ]


def _axis(figure: Figure, width: int) -> str:
    """The values of the axis below their columns, as many as fit."""
    cells = ["─"] * width
    end = 0
    for value in figure.places:
        text = figure.mark(value)
        column = round(figure.across.part(value) * (width - 1)) - len(text) // 2
        column = min(max(column, 0), width - len(text))
        if column >= end:
            cells[column : column + len(text)] = text
            end = column + len(text) + 1
    return "".join(cells)
