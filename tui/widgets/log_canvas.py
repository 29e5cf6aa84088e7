"""A drawing with logarithmic axes in character cells: curves in braille, letters, labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import NamedTuple

Span = tuple[str, str]
"""A text and the kind of thing it is, which decides its style."""

BLANK = (" ", "")
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
DOTS_ACROSS, DOTS_DOWN = 2, 4


class Range(NamedTuple):
    """An axis from ``low`` to ``high``, both positive, ``low`` less."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], factor: float, part: float = 0.0) -> Range:
        """All values, and so much more at both ends; above them at least that part of it all."""
        known = list(values)
        low, high = min(known) / factor, max(known)
        return cls(low, high * max(factor, math.pow(high / low, part / (1 - part))))

    def part(self, value: float) -> float:
        """Where a value lies, 0 at the low end and 1 at the high."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def value(self, part: float) -> float:
        """The value at a place."""
        return self.low * math.pow(self.high / self.low, part)

    @property
    def decades(self) -> list[float]:
        """The powers of ten in it."""
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]


class LogCanvas:
    """Cells of ``width`` by ``height``, row 0 on top."""

    def __init__(self, width: int, height: int, across: Range, up: Range) -> None:
        self.width, self.height, self.across, self.up = width, height, across, up
        self._cells: list[list[Span]] = [[BLANK] * width for _ in range(height)]

    def column(self, x: float) -> int:
        """The column of a value, within the drawing."""
        return min(max(math.floor(self.across.part(x) * self.width), 0), self.width - 1)

    def row(self, y: float) -> int:
        """The row of a value, within the drawing."""
        return min(max(math.floor((1 - self.up.part(y)) * self.height), 0), self.height - 1)

    def curve(self, function: Callable[[float], float], kind: str) -> None:
        """A curve without gaps where it rises faster than it goes on; outside it is cut off."""
        wide, tall = self.width * DOTS_ACROSS, self.height * DOTS_DOWN
        dots: dict[tuple[int, int], int] = {}
        before: int | None = None
        for column in range(wide):
            y = function(self.across.value((column + 0.5) / wide))
            row = math.floor((1 - self.up.part(y)) * tall)
            low, high = sorted((row, row if before is None else before))
            inner = range(low + 1, high) if before is not None else range(0)
            for place in {row, *inner}:
                if 0 <= place < tall:
                    cell = (place // DOTS_DOWN, column // DOTS_ACROSS)
                    bit = _DOTS[place % DOTS_DOWN][column % DOTS_ACROSS]
                    dots[cell] = dots.get(cell, 0) | bit
            before = row
        for (row, column), bits in dots.items():
            self._cells[row][column] = (chr(0x2800 + bits), kind)

    def letter(self, x: float, y: float, letter: str, kind: str) -> None:
        """A letter at a value; where another one stands, in the nearest cell of the row."""
        row, column = self.row(y), self.column(x)
        free = [at for at in range(self.width) if self._cells[row][at][1] != kind]
        if free:
            at = min(free, key=lambda place: abs(place - column))
            self._cells[row][at] = (letter, kind)

    def label(self, column: int, row: int, text: str, kind: str) -> bool:
        """A text where all cells are blank; whether there was room."""
        cells = range(column, column + len(text))
        if not 0 <= row < self.height or column < 0 or cells.stop > self.width:
            return False
        if any(self._cells[row][cell] != BLANK for cell in cells):
            return False
        for cell, char in zip(cells, text, strict=True):
            self._cells[row][cell] = (char, kind)
        return True

    def spans(self, row: int) -> list[Span]:
        """A row as texts of one kind each."""
        groups = groupby(self._cells[row], key=lambda cell: cell[1])
        return [("".join(char for char, _ in cells), kind) for kind, cells in groups]
