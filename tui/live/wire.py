"""What the terminal shows already, so that only what changes goes over the wire.

Textual sends all of a widget that was painted anew. A plot that moves twice a second is then the
whole plot twice a second, most of it as it was: more than a slow line carries. Here every update is
held against the cells that were sent before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from rich.cells import cell_len
from rich.console import Console
from rich.control import Control
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

Cell = tuple[str, Style | None]
"""A character and its style; the second half of a wide character is empty text."""

Piece = tuple[int, int, Strip]
"""Column, row, and what is painted there."""

NEAR = 6
"""Unchanged cells between two changes that are sent all the same: moving takes as many bytes."""


class Shown:
    """The cells of the terminal, as far as they are known."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, Cell]] = {}
        self._laid_out: dict[int, list[tuple[int, list[Strip]]]] = {}
        """By row what a layout sent, from which column on: cells are made of it on demand."""

    def only_changes(self, update: CompositorUpdate) -> CompositorUpdate:
        """The update without what the terminal shows already.

        A layout is sent whole: it also mends what another program wrote over the screen.
        """
        if isinstance(update, LayoutUpdate):
            self._note(update)
            return update
        if not isinstance(update, ChopsUpdate):
            self._rows.clear()
            self._laid_out.clear()
            return update
        return Changes([change for piece in pieces_of(update) for change in self._changes(*piece)])

    def _note(self, layout: LayoutUpdate) -> None:
        layout.strips = [[*strips] for strips in layout.strips]
        for y, strips in enumerate(layout.strips, layout.region.y):
            if layout.region.x == 0:  # the whole row
                self._rows.pop(y, None)
                self._laid_out.pop(y, None)
            self._laid_out.setdefault(y, []).append((layout.region.x, [*strips]))

    def _row(self, y: int) -> dict[int, Cell]:
        """The known cells of a row, by column."""
        row = self._rows.setdefault(y, {})
        for x, strips in self._laid_out.pop(y, ()):
            for strip in strips:
                cells = cells_of(strip)
                row.update(enumerate(cells, x))
                x += len(cells)
        return row

    def _changes(self, x: int, y: int, strip: Strip) -> Iterator[Piece]:
        """The parts of a strip that differ from what is shown there."""
        row = self._row(y)
        cells = cells_of(strip)
        differing = [at for at, cell in enumerate(cells) if row.get(x + at) != cell]
        row.update(enumerate(cells, x))
        for first, last in _runs(differing):
            # Half of a wide character is none.
            while first and not cells[first][0]:
                first -= 1
            while last + 1 < len(cells) and not cells[last + 1][0]:
                last += 1
            segments = [
                Segment("".join(text for text, _ in run), style)
                for style, run in groupby(cells[first : last + 1], key=itemgetter(1))
            ]
            yield x + first, y, Strip(segments)


class Changes(CompositorUpdate):
    """Pieces of lines, each at its place."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def render_segments(self, console: Console) -> str:
        """The bytes for the terminal."""
        return "".join(
            f"{Control.move_to(x, y).segment.text}{strip.render(console)}"
            for x, y, strip in self.pieces
        )


def pieces_of(update: ChopsUpdate) -> Iterator[Piece]:
    """What an update paints, in the way in which `ChopsUpdate` writes it."""
    for y, from_x, to_x in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is None or x > to_x or end <= from_x:
                continue
            if to_x > x >= from_x and end <= to_x:
                yield x, y, strip
            else:
                yield x, y, strip.crop(0, min(end, to_x) - x)


def cells_of(strip: Strip) -> list[Cell]:
    """The cells of a strip, one by one."""
    cells: list[Cell] = []
    for text, style, control in strip:
        if control:
            continue
        if text.isascii():
            cells += [(char, style) for char in text]
            continue
        for char in text:
            width = cell_len(char)
            if width:
                cells += [(char, style), *[("", style)] * (width - 1)]
            elif cells:
                # An accent belongs to the character before it.
                place = next(at for at in range(len(cells) - 1, -1, -1) if cells[at][0])
                cells[place] = (cells[place][0] + char, cells[place][1])
    return cells


def _runs(places: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of places that are near each other."""
    first = last = -1
    for place in places:
        if first < 0:
            first = place
        elif place - last > NEAR:
            yield first, last
            first = place
        last = place
    if first >= 0:
        yield first, last
