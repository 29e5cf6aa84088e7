"""Draw series of numbers as characters: braille lines, blocks, bars."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_LEFT = (0x01, 0x02, 0x04, 0x40)
_RIGHT = (0x08, 0x10, 0x20, 0x80)
EIGHTHS = " ▁▂▃▄▅▆▇█"


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
    dots_high = height * 4

    def dot(value: float) -> int:
        return min(max(round((high - value) / (high - low) * (dots_high - 1)), 0), dots_high - 1)

    cells = [[0] * width for _ in range(height)]
    last_top = last_bottom = None
    for column, (lowest, highest) in enumerate(columns(values, width * 2)):
        top, bottom = dot(highest), dot(lowest)
        begin, end = top, bottom
        # Join with the previous column, so that a jump is a line.
        if last_top is not None and last_bottom is not None:
            begin, end = min(top, last_bottom + 1), max(bottom, last_top - 1)
        last_top, last_bottom = top, bottom
        bits = _RIGHT if column % 2 else _LEFT
        for row in range(begin, end + 1):
            cells[row // 4][column // 2] |= bits[row % 4]
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in row) for row in cells]


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
