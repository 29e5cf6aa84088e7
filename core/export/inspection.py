"""The tables of a foreign file by section: those of a record, as far as the file has them."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.kernels.tree import TreeNode
from ..inspection.inspection import Inspection
from ..tables.kernels import category_table, kernel_table, roofline_table
from ..tables.memory import devices_table, largest_table, ledger_table, memory_table, origins_table
from ..tables.nsys import nsys_tables
from ..tables.table import Table
from ..tables.tree import tree_table
from .text_formats import table_as_markdown


def inspection_tables(inspection: Inspection, tree: TreeNode | None) -> dict[str, list[Table]]:
    """The tables by section; sections and tables without rows are left out.

    Args:
        inspection: What was found.
        tree: Of the kernels layer by layer, None without kernels.
    """
    sections: dict[str, list[Table]] = {}
    if kernels := inspection.kernels:
        sections["kernels"] = [kernel_table(kernels), category_table(kernels)]
        sections["roofline"] = [roofline_table(kernels)]
    if tree:
        sections["tree"] = [tree_table(tree)]
    if memory := inspection.memory:
        sections["memory"] = [
            *(memory_table(memory), ledger_table(memory)),
            *(origins_table(memory), largest_table(memory), devices_table(memory)),
        ]
    if nsys := inspection.nsys:
        sections["nsys"] = nsys_tables(nsys)
    filled = {name: [one for one in tables if one.rows] for name, tables in sections.items()}
    return {name: tables for name, tables in filled.items() if tables}


def tables_as_markdown(tables: Sequence[Table]) -> str:
    """Each table under its title."""
    return "\n".join(f"## {table.title}\n\n{table_as_markdown(table)}\n" for table in tables)
