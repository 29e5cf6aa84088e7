"""The tables of a foreign file by section: those of a record that the file has data for."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.kernels.tree import TreeNode
from ..inspection.inspection import Inspection
from ..tables.sections import INSPECTED, SECTIONS, Source
from ..tables.table import Table
from .text_formats import table_as_markdown

READING_ORDER = tuple(dict.fromkeys(("kernels", "roofline", *INSPECTED)))
"""The tree, which is long, comes after both."""


def inspection_tables(inspection: Inspection, tree: TreeNode | None) -> dict[str, list[Table]]:
    """The tables by section; sections and tables without rows are left out.

    Args:
        inspection: The content of the file.
        tree: Of the kernels layer by layer, None without kernels.
    """
    source = Source(record=inspection.as_record(), tree=tree)
    sections = {name: SECTIONS[name].tables(source) for name in READING_ORDER}
    return {name: tables for name, tables in sections.items() if tables}


def tables_as_markdown(tables: Sequence[Table]) -> str:
    """Each table under its title."""
    return "\n".join(f"## {table.title}\n\n{table_as_markdown(table)}\n" for table in tables)
