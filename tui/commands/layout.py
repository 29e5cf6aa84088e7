"""Tables and prose as lines of styled text that fit a width."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from sysbench.core.tables.cells import cells_as_text, columns_of, heading_of, is_numeric
from sysbench.core.tables.table import GAP, Table, fit_columns
from sysbench.core.tables.trust import mark_perturbed
from sysbench.tui.commands.output import UNCUT
from sysbench.tui.glyphs import ascii_only, to_ascii
from sysbench.tui.text import truncate_distinct

Span = tuple[str, str]
"""A text and its style: a rich style, or empty."""

Line = list[Span]

INDENT = 2
_GLUE = "\N{NO-BREAK SPACE}"
_LONGEST = 100
"""Cells of a column of text where nothing is cut: a longer text pushes the rest of its own row
aside, not that of every row. Kernels of C++ templates have names of a thousand characters."""


def blank() -> Line:
    """An empty line."""
    return []


def titled(text: str, lines: Iterable[Line]) -> Iterator[Line]:
    """A table or list below its title, with an empty line above."""
    yield []
    yield [(text, "bold")]
    yield from lines


def prose(text: str, width: int, *, hang: int = 0, style: str = "") -> list[Line]:
    """A paragraph, wrapped; lines after the first are indented by ``hang``."""
    lines = _wrapped(text, width, hang)
    return [[(line, style)] for line in lines]


def _wrapped(text: str, width: int, hang: int = 0) -> list[str]:
    return textwrap.wrap(text, max(width, 20), subsequent_indent=" " * hang, break_on_hyphens=False)


def flowing(items: Iterable[str], width: int, *, hang: int = 0, style: str = "") -> list[Line]:
    """Short items with dots between them; a line breaks only between two items."""
    # A longer item would be broken inside a word: it breaks between words instead.
    text = " · ".join(
        item.replace(" ", _GLUE) if cell_len(item) <= width - hang else item for item in items
    )
    return [[(line.replace(_GLUE, " "), style)] for line in _wrapped(text, width, hang)]


def note(items: Iterable[str], width: int) -> list[Line]:
    """Quiet items below a table, indented like its rows."""
    return [[(" " * INDENT, ""), *line] for line in flowing(items, width - INDENT, style="dim")]


def labelled(
    label: str, text: str, width: int, *, column: int, style: str = "", label_style: str = "dim"
) -> list[Line]:
    """A paragraph with its label in a separate column at the left."""
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
    """A table in aligned columns, at most ``width`` cells wide.

    Without ``columns`` those that have something in a row. Where room is short, columns of ``drop``
    go first, in that order, then those with the highest priority number; then the widest texts are
    cut in the middle. With a width of `UNCUT` nothing is. With ``total`` the last row is set in
    bold. Numbers of the ``perturbed`` columns are marked, and dim.
    """
    chosen = list(columns) or _known_columns(table)
    by_column = zip(*cells_as_text(table), strict=True) if table.rows else [()] * len(table.columns)
    cells = dict(zip(table.columns, by_column, strict=True))
    for name in perturbed:
        cells[name] = tuple(mark_perturbed(text) for text in cells[name])
    numeric = {name for name in chosen if is_numeric(table, name)}
    heads = {name: heading_of(table, name) for name in chosen}
    natural = {name: max(map(cell_len, (heads[name], *cells[name]))) for name in chosen}
    cut = width < UNCUT
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


def _known_columns(table: Table) -> list[str]:
    """The columns to show; of a table with priorities without those that are blank."""
    if not table.has_priorities:
        return table.shown
    contents = columns_of(table)
    return [name for name in table.shown if not contents[name].is_blank(unknown=True)]


def _row(
    texts: dict[str, str],
    widths: dict[str, int],
    numeric: set[str],
    style: str,
    perturbed: Collection[str] = (),
    *,
    cut: bool = True,
) -> Line:
    """One span, or several where cells are dim."""
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
    """Text cut in the middle: both ends of a kernel's name identify it."""
    if cell_len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    tail = width - 1 - head
    return set_cell_size(text, head) + "…" + set_cell_size(text[::-1], tail)[::-1]


def picture_line(picture: str) -> str:
    """A picture of an interval, in ASCII where the terminal has nothing else."""
    return to_ascii(picture) if ascii_only() else picture
