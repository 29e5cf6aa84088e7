"""What the terminal shows already, so that only what changes goes over the wire.

Textual sends all of a widget that was painted anew. A plot that moves twice a second is then the
whole plot twice a second, most of it as it was: more than a slow line carries. Here every update is
held against the cells that were sent before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.strip import Strip

from .pen import Look, Pen, Piece, Run, blank_of, runs_of

Cell = tuple[str, Look]
"""A character and its look; the second half of a wide character is empty text."""

NEAR = 5
"""Unchanged cells that take about as many bytes as to move over them."""


class Shown:
    """The cells of the terminal, as far as they are known.

    Attributes:
        pen: Writes what changes.
        colours: Those that the terminal has.
    """

    def __init__(self, pen: Pen, colours: ColorSystem) -> None:
        self.pen = pen
        self.colours = colours
        self._screen: object = None
        self._size: Size | None = None  # of the last whole layout
        self._rows: dict[int, dict[int, Cell]] = {}
        self._whole: dict[int, list[Run]] = {}
        """Rows that were sent once, from the left: cells are made of them on demand."""

    def forget(self) -> None:
        """Know nothing of the terminal, as after it took another size."""
        self._rows.clear()
        self._whole.clear()

    def only_changes(
        self, update: CompositorUpdate, screen: object, width: int
    ) -> CompositorUpdate:
        """The update without what the terminal shows already.

        The first layout of another screen is sent whole: it also mends what another program wrote
        over the terminal. A dialog leaves the screen below it as it was.

        Args:
            screen: What is painted.
            width: Columns of the terminal.
        """
        is_other = screen is not self._screen
        is_dialog = isinstance(screen, ModalScreen) or isinstance(self._screen, ModalScreen)
        self._screen = screen
        if (is_other and not is_dialog) or not isinstance(update, ChopsUpdate | LayoutUpdate):
            self.forget()
        if isinstance(update, LayoutUpdate):
            if self._size not in (None, update.region.size):
                self.forget()  # a frame of the old size may have come after the resize
            self._size = update.region.size
            x = update.region.x
            rows = enumerate(update.strips, update.region.y)
            pieces = [
                (x, y, [run for strip in strips for run in runs_of(strip, self.colours)])
                for y, strips in rows
            ]
        elif isinstance(update, ChopsUpdate):
            pieces = [(x, y, runs_of(strip, self.colours)) for x, y, strip in pieces_of(update)]
        else:
            return update
        changes = [change for piece in pieces for change in self._changes(*piece)]
        return Changes(changes, self.pen, width)

    def _changes(self, x: int, y: int, runs: list[Run]) -> Iterator[Piece]:
        """The parts of a piece that differ from what is shown there."""
        row = self._rows.get(y)
        if row is None:
            whole = self._whole.pop(y, None)
            if x == 0 and (whole is None or whole == runs):
                self._whole[y] = runs
                if whole is None:
                    yield x, y, runs
                return
            row = self._rows[y] = dict(enumerate(cells_of(whole or ())))
        cells = cells_of(runs)
        differing = [at for at, cell in enumerate(cells) if row.get(x + at) != cell]
        row.update(enumerate(cells, x))
        for first, last in _runs(differing, cells):
            # Half of a wide character is none.
            while first and not cells[first][0]:
                first -= 1
            while last + 1 < len(cells) and not cells[last + 1][0]:
                last += 1
            runs = [
                ("".join(text for text, _ in run), look)
                for look, run in groupby(cells[first : last + 1], key=itemgetter(1))
            ]
            yield x + first, y, runs


class Changes(CompositorUpdate):
    """Pieces of lines, each at its place."""

    def __init__(self, pieces: list[Piece], pen: Pen, width: int) -> None:
        self.pieces = pieces
        self._pen = pen
        self._width = width

    def render_segments(self, console: Console) -> str:
        """The bytes for the terminal."""
        return self._pen.write(self.pieces, self._width)


def is_nothing(update: CompositorUpdate) -> bool:
    """Whether an update changes no cell."""
    return isinstance(update, Changes) and not update.pieces


def pieces_of(update: ChopsUpdate) -> Iterator[tuple[int, int, Strip]]:
    """Column, row and strip of what an update paints, in the way in which it writes it."""
    for y, from_x, to_x in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is None or x > to_x or end <= from_x:
                continue
            if to_x > x >= from_x and end <= to_x:
                yield x, y, strip
            else:
                yield x, y, strip.crop(0, min(end, to_x) - x)


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """The cells of a line, one by one; a blank has only what is seen of its look."""
    cells: list[Cell] = []
    for text, look in runs:
        blank = blank_of(look)
        if text.isascii():
            cells += [(char, blank if char == " " else look) for char in text]
            continue
        for char in text:
            width = cell_len(char)
            if width:
                cells += [(char, blank if char == " " else look), *[("", look)] * (width - 1)]
            elif cells:
                # An accent belongs to the character before it.
                place = next(at for at in range(len(cells) - 1, -1, -1) if cells[at][0])
                cells[place] = (cells[place][0] + char, look)
    return cells


def _runs(places: list[int], cells: list[Cell]) -> Iterator[tuple[int, int]]:
    """First and last of each run of places between which it takes no more to write than to move."""
    first = last = -1
    for place in places:
        if first < 0:
            first = place
        elif place - last > 1 and not _is_bridged(cells[last : place + 1]):
            yield first, last
            first = place
        last = place
    if first >= 0:
        yield first, last


def _is_bridged(cells: list[Cell]) -> bool:
    """Whether unchanged cells are sent with the changed ones at both of their ends."""
    start, *between, end = cells
    if start[0] == " " and all(cell == start for cell in (*between, end)):
        return True  # one blank, however long
    return len(between) <= NEAR and {look for _, look in between} <= {start[1], end[1]}
