"""Format tables and prose as lines of styled text that fit a width."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from sysbench.core.tables.cells import (
    cells_as_text,
    heading_of,
    is_numeric,
    known_columns,
    short_texts,
)
from sysbench.core.tables.table import GAP, Table, fit_columns
from sysbench.core.tables.trust import mark_perturbed
from sysbench.tui.commands.output import UNCUT
from sysbench.tui.glyphs import ascii_only, to_ascii
from sysbench.tui.text import truncate_distinct

Span = tuple[str, str]
"""A text and its rich style, or empty."""

Line = list[Span]

INDENT = 2
_GLUE = "\N{NO-BREAK SPACE}"
_LONGEST = 100
"""Maximum column width without truncation; a longer text shifts only the rest of its row. Names of
C++ templates can have a thousand characters."""


def blank() -> Line:
    return []


def titled(text: str, lines: Iterable[Line]) -> Iterator[Line]:
    yield []
    yield [(text, "bold")]
    yield from lines


def prose(text: str, width: int, *, hang: int = 0, style: str = "") -> list[Line]:
    """Wrap a paragraph; later lines are indented by ``hang``."""
    lines = _wrapped(text, width, hang)
    return [[(line, style)] for line in lines]


def _wrapped(text: str, width: int, hang: int = 0) -> list[str]:
    return textwrap.wrap(text, max(width, 20), subsequent_indent=" " * hang, break_on_hyphens=False)


def flowing(items: Iterable[str], width: int, *, hang: int = 0, style: str = "") -> list[Line]:
    """Join items with dots; break lines only between items."""
    # An item longer than a line may break between its words.
    text = " · ".join(
        item.replace(" ", _GLUE) if cell_len(item) <= width - hang else item for item in items
    )
    return [[(line.replace(_GLUE, " "), style)] for line in _wrapped(text, width, hang)]


def indented(lines: Iterable[Line]) -> list[Line]:
    return [[(" " * INDENT, ""), *line] for line in lines]


def note(items: Iterable[str], width: int) -> list[Line]:
    return indented(flowing(items, width - INDENT, style="dim"))


def labelled(
    label: str, text: str, width: int, *, column: int, style: str = "", label_style: str = "dim"
) -> list[Line]:
    lines = _wrapped(text, width - column - INDENT) or [""]
    heads = [f"{' ' * INDENT}{label:<{column}}", *[" " * (INDENT + column)] * (len(lines) - 1)]
    return [[(head, label_style), (line, style)] for head, line in zip(heads, lines, strict=True)]


def table_lines(
    table: Table,
    width: int,
    *,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    total: bool = False,
    perturbed: Collection[str] = (),
) -> list[Line]:
    """Format a table in aligned columns, at most ``width`` cells wide.

    If it is too wide, columns of ``drop`` are removed in that order, then those with the highest
    priority number; then the widest texts are truncated in the middle. A width of `UNCUT` disables
    this.

    Args:
        columns: Columns to show (default: those with a value in some row).
        total: Print the last row in bold.
        perturbed: Columns whose numbers are marked and dim.
    """
    # Blank columns are left out if the table has priorities.
    usual = known_columns(table) if table.has_priorities else table.shown
    chosen = list(columns) or usual
    by_column = zip(*cells_as_text(table), strict=True) if table.rows else [()] * len(table.columns)
    cells = dict(zip(table.columns, by_column, strict=True))
    cut = width < UNCUT
    for name in chosen if cut else ():
        if short := short_texts(table, name):
            cells[name] = tuple(short.get(text, text) for text in cells[name])
    for name in perturbed:
        cells[name] = tuple(mark_perturbed(text) for text in cells[name])
    numeric = {name for name in chosen if is_numeric(table, name)}
    heads = {name: heading_of(table, name) for name in chosen}
    natural = {name: max(map(cell_len, (heads[name], *cells[name]))) for name in chosen}
    if cut:
        widths = fit_columns(
            table, natural, width, numbers=numeric, flexible=table.flexible, drop=drop
        )
        for name in widths.keys() - numeric:
            cells[name] = tuple(truncate_distinct(cells[name], widths[name], shorten_line))
    else:
        widths = {name: min(size, _LONGEST) for name, size in natural.items()}
    lines = [_row(heads, widths, numeric, "dim", cut=cut)]
    for index in range(len(table.rows)):
        row = {name: cells[name][index] for name in widths}
        is_total = total and index == len(table.rows) - 1
        lines.append(_row(row, widths, numeric, "bold" if is_total else "", perturbed, cut=cut))
    return lines


def _row(
    texts: dict[str, str],
    widths: dict[str, int],
    numeric: set[str],
    style: str,
    perturbed: Collection[str] = (),
    *,
    cut: bool = True,
) -> Line:
    line: Line = []
    for name, size in widths.items():
        text = shorten_line(texts[name], size) if cut else texts[name]
        cell = _padded(text, size, right=name in numeric)
        gap = " " * (GAP if line else INDENT)
        if name in perturbed:
            text = cell.lstrip()
            line += [(gap + cell[: len(cell) - len(text)], style), (text, f"{style} dim")]
        else:
            line.append((gap + cell, style))
    if not perturbed:
        line = [("".join(text for text, _ in line).rstrip(), style)]
    return line


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def shorten_line(text: str, width: int) -> str:
    """Truncate in the middle, since both ends of a kernel's name identify it."""
    if cell_len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    tail = width - 1 - head
    return set_cell_size(text, head) + "…" + set_cell_size(text[::-1], tail)[::-1]


def picture_line(picture: str) -> str:
    """Return the picture, translated to ASCII if the terminal requires it."""
    return to_ascii(picture) if ascii_only() else picture
