"""All tables of a record: the one source for the command line, CSV, Markdown and pandas."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.compare import BreakEven
from ..analysis.kernels.tree import TreeNode, from_share, kernel_tree
from ..errors import NotFoundError
from ..record.record import Record
from .context import spec_table
from .sections import SECTIONS, Source
from .table import Table, to_frame

__all__ = ["Table", "table_named", "tables_of", "to_frame"]


TREE_LEAST = 0.005
"""Share of the step under which nodes of the exported tree are summed up: the kernel table has
every row."""

READING_ORDER = (
    *("findings", "passes", "oom", "timing", "questions", "categories", "tree", "kernels"),
    *("roofline", "memory", "nsys", "numerics", "compile", "distributed", "telemetry"),
    "environment",
)
"""Sections as a report has them, and single tables that are read apart from their section. A
section that is not here comes before the last."""


def tables_of(
    record: Record, others: Sequence[Record] = (), worth: BreakEven | None = None
) -> list[Table]:
    """Every table that the record has data for, in reading order.

    ``others`` are runs of the same spec with another kind of step, for the questions;
    ``worth`` is what compiling saves against an eager run.
    """
    source = Source(record=record, others=others, worth=worth, tree=_short_tree(record))
    tables = [
        (_place(name, table), table)
        for name, section in SECTIONS.items()
        for table in section.tables(source)
    ]
    tables.sort(key=lambda placed: placed[0])
    return [spec_table(record), *(table for _, table in tables)]


def _short_tree(record: Record) -> TreeNode | None:
    if record.kernels is None:
        return None
    return from_share(kernel_tree(record.kernels, record.memory), TREE_LEAST)


def _place(section: str, table: Table) -> int:
    names = [name for name in (table.name, section) if name in READING_ORDER]
    return READING_ORDER.index(names[0] if names else READING_ORDER[-1])


def table_named(record: Record, name: str) -> Table:
    """One table by its name: ``timing``, ``kernels``, ``ledger``, …

    Raises:
        NotFoundError: The record has no such table; names those it has.
    """
    tables = {table.name: table for table in tables_of(record)}
    if name not in tables:
        raise NotFoundError(f"run {record.id} has no table {name!r}; it has {', '.join(tables)}")
    return tables[name]
