"""Draw series of numbers as characters: braille, axes, legends, blocks, bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise

from rich.cells import cell_len

Span = tuple[str, str]
"""A text and its kind, which selects its style."""

BLANK: Span = (" ", "")
GAP: Span = ("  ", "")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
EIGHTHS = " ▁▂▃▄▅▆▇█"
DOTS_ACROSS, DOTS_DOWN = 2, 4
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class Canvas:
    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells: list[list[Span]] = [[BLANK] * width for _ in range(height)]
        self._dots: dict[tuple[int, int], int] = {}

    def dot(self, column: int, row: int, kind: str = "") -> None:
        """Add a dot, counted in dots from the top left."""
        place = row // DOTS_DOWN, column // DOTS_ACROSS
        bit = _DOTS[row % DOTS_DOWN][column % DOTS_ACROSS]
        self._dots[place] = self._dots.get(place, 0) | bit
        self.cells[place[0]][place[1]] = (chr(0x2800 + self._dots[place]), kind)

    def rows(self) -> list[list[Span]]:
        return [join_spans(cells) for cells in self.cells]


def join_spans(cells: Iterable[Span]) -> list[Span]:
    """Join neighbours of the same kind, for fewer changes of style per row."""
    return [
        ("".join(text for text, _ in group), kind)
        for kind, group in groupby(cells, key=lambda cell: cell[1])
    ]


def add_axes(
    rows: Sequence[Sequence[Span]], ticks: Mapping[int, str], foot: Sequence[Span], kind: str
) -> list[list[Span]]:
    """Put an axis with ticks, by row, left of the rows, and the other axis below them."""
    margin = max(map(len, ticks.values()))
    edges = (
        f"{ticks.get(row, ''):>{margin}}{'┤' if row in ticks else '│'}" for row in range(len(rows))
    )
    up = [[(edge, kind), *row] for edge, row in zip(edges, rows, strict=True)]
    return [*up, [(" " * margin + "╰", kind), *foot]]


def place_labels(labels: Iterable[tuple[int, str]], width: int, line: str = "─") -> str:
    """Write labels at their columns, except those that would overlap or exceed the line."""
    cells, end = [line] * width, 0
    for column, text in labels:
        if end <= column <= width - len(text):
            cells[column : column + len(text)] = text
            end = column + len(text) + 1
    return "".join(cells)


SHORT_MARKS = {
    "forward": "fwd",
    "backward": "bwd",
    "optimizer": "opt",
    "zero-grad": "zero",
    "measured": "meas",
    "measure": "meas",
    "compile": "comp",
}
"""Labels of an axis where the full ones do not fit."""


def mark_row(marks: Sequence[tuple[int, str]], width: int) -> str:
    """Labels at their columns, ``│label``.

    A label that does not fit before the next one is shortened by `SHORT_MARKS`, or left away.
    """
    row = [" "] * width
    ends = [*(column for column, _ in marks[1:]), width]
    for (column, label), end in zip(marks, ends, strict=False):
        if 0 <= column < width:
            room = min(end, width) - column - 1
            fitting = (text for text in (label, SHORT_MARKS.get(label, "")) if len(text) <= room)
            text = f"│{next(fitting, '')}"
            row[column : column + len(text)] = text
    return "".join(row)[:width]


def centre(column: int, text: str, width: int) -> int:
    """First column of a text around this column, moved into the width."""
    return min(max(column - len(text) // 2, 0), width - len(text))


def flow_entries(entries: Sequence[list[Span]], width: int, max_rows: int) -> list[list[Span]]:
    """Wrap a legend's entries into at most ``max_rows`` lines; drop the rest."""
    rows: list[list[Span]] = [[]]
    for entry in entries:
        before, length = (sum(cell_len(text) for text, _ in row) for row in (rows[-1], entry))
        if before and before + len(GAP[0]) + length > width:
            if len(rows) == max_rows:
                break
            rows.append([*entry])
        else:
            rows[-1] += [GAP, *entry] if before else entry
    return rows


def extent(values: Sequence[float], *, margin: float = 0.08) -> tuple[float, float]:
    """The ends of an axis: lowest and highest value with a margin, never equal.

    Series without negative values get no negative axis.
    """
    low, high = min(values), max(values)
    room = (high - low) * margin or abs(high) * 0.05 or 1.0
    return (max(low - room, 0.0) if low >= 0 else low - room), high + room


def columns(values: Sequence[float], count: int) -> list[tuple[float, float]]:
    """The series as ``count`` columns of (lowest, highest).

    Interpolates fewer values than columns; groups more, so that outliers stay visible.
    """
    if len(values) == 1:
        return [(values[0], values[0])] * count
    if len(values) >= count:
        edges = [round(i * len(values) / count) for i in range(count + 1)]
        parts = [values[begin:end] for begin, end in pairwise(edges)]
        return [(min(part), max(part)) for part in parts]
    step = (len(values) - 1) / (count - 1) if count > 1 else 0
    joined = []
    for column in range(count):
        before, share = divmod(column * step, 1)
        left = values[int(before)]
        right = values[min(int(before) + 1, len(values) - 1)]
        joined.append((left + (right - left) * share,) * 2)
    return joined


def line_rows(
    values: Sequence[float], width: int, height: int, low: float, high: float
) -> list[str]:
    """Draw a line: ``height`` rows of ``width`` braille cells, top row first."""
    if not values or width < 1 or height < 1:
        return [" " * max(width, 0)] * max(height, 0)
    dots_high = height * DOTS_DOWN

    def dot(value: float) -> int:
        return min(max(round((high - value) / (high - low) * (dots_high - 1)), 0), dots_high - 1)

    canvas = Canvas(width, height)
    last_top = last_bottom = None
    for column, (lowest, highest) in enumerate(columns(values, width * DOTS_ACROSS)):
        top, bottom = dot(highest), dot(lowest)
        begin, end = top, bottom
        # Join with the previous column, so that a jump is a line.
        if last_top is not None and last_bottom is not None:
            begin, end = min(top, last_bottom + 1), max(bottom, last_top - 1)
        last_top, last_bottom = top, bottom
        for row in range(begin, end + 1):
            canvas.dot(column, row)
    return ["".join(char for char, _ in cells) for cells in canvas.cells]


def resample(values: Sequence[float | None], count: int) -> list[float | None]:
    """Resample to ``count`` values: repeat them, or take the highest of equal parts."""
    if len(values) <= count:
        return [values[column * len(values) // count] for column in range(count)]
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    parts = [values[begin:end] for begin, end in pairwise(edges)]
    return [max((v for v in part if v is not None), default=None) for part in parts]


def block_rows(values: Sequence[float | None], height: int, low: float, high: float) -> list[str]:
    """Draw a column of blocks for each value, top row first; ``·`` for None.

    A value at or below ``low`` gets the thinnest block.
    """
    scale = height * 8 / ((high - low) or 1.0)
    heights = [
        None if value is None else min(max(round((value - low) * scale), 1), height * 8)
        for value in values
    ]
    rows = []
    for row in reversed(range(height)):
        filled = (0 if tall is None else min(max(tall - row * 8, 0), 8) for tall in heights)
        rows.append("".join(EIGHTHS[eighths] for eighths in filled))
    foot = zip(rows[-1], heights, strict=True)
    rows[-1] = "".join("·" if tall is None else char for char, tall in foot)
    return rows


def bar(share: float, width: int) -> str:
    """A horizontal bar in eighths of cells, padded to its width."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full_cells, rest = divmod(eighths, 8)
    return ("█" * full_cells + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def gauge(share: float, width: int) -> str:
    """A bar on a track: ``██████░░░░``."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)
