"""The difference of two runs or files, row by row, as lines."""

from __future__ import annotations

from collections.abc import Iterator

from .....core.analysis.difference.nodes import Difference
from .....core.tables.cells import literal
from .....core.tables.difference.tree import Cut, change_tables
from .....core.tables.table import Table
from ..layout import Line, note, prose, table_lines, titled

TIMES = ("change_ns", "a_ns", "b_ns")
SHOWN = (
    *("change_ns", "a_ns", "b_ns", "a_calls", "b_calls"),
    *("change_bytes", "a_bytes", "b_bytes", "a_blocks", "b_blocks"),
    *("state", "phase", "row"),
)
NARROW = 120
"""Cells below which counts and phases give their room to the names."""
DEEPEST = 4
"""Levels of kernels, the deepest but for those of a fusion."""
DEEPER = f"--depth {DEEPEST} goes down to the kernels, --min 0 shows every row that changed"
DROPPED = ("b_blocks", "a_blocks", "phase", "b_calls", "a_calls")


def difference_lines(
    difference: Difference, cut: Cut, width: int, *, perturbed: bool
) -> Iterator[Line]:
    """The summary, what is to be known of it, and the rows that changed.

    Args:
        cut: The part of the rows to show.
        perturbed: Whether a side's traced step is so far off the bare one that times are void.
    """
    summary = [
        [("  ", ""), *line]
        for text in difference.summary
        for line in prose(literal(text), width - 2, hang=2)
    ]
    if summary:
        yield from titled("What changed", summary)
    yield from note(map(literal, difference.notes), width)
    yield from note(map(literal, difference.missing.values()), width)
    tables = change_tables(difference, cut)
    for table in tables:
        marked = TIMES if perturbed and "change_ns" in table.columns else ()
        columns = [name for name in SHOWN if name in table.columns and _says_something(table, name)]
        drop = DROPPED if width < NARROW else ()
        lines = table_lines(table, width, columns=columns, drop=drop, perturbed=marked)
        yield from titled(literal(table.title), lines)
    if tables and (cut.least or (cut.depth is not None and cut.depth < DEEPEST)):
        yield from note([DEEPER], width)


def _says_something(table: Table, column: str) -> bool:
    return any(cell not in (None, "") for cell in table.column(column))
