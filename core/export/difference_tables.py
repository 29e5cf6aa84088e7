"""What differs between two runs' memory, as tables: rows, modules, stacks."""

from __future__ import annotations

from ..analysis.memory.difference import MemoryDifference
from ..tables.table import Table


def difference_tables(difference: MemoryDifference) -> list[Table]:
    """Three tables, the largest change first; without rows where nothing differs."""
    return [
        Table(
            name="ledger-difference",
            title="Ledgers at the two peaks: what differs",
            columns=("change_bytes", "a_bytes", "b_bytes", "name"),
            rows=tuple(
                (row.b_bytes - row.a_bytes, row.a_bytes, row.b_bytes, row.name)
                for row in difference.rows
            ),
        ),
        Table(
            name="module-difference",
            title="Modules, own and children's: what differs",
            columns=("change_bytes", "a_bytes", "b_bytes", "kind", "module"),
            rows=tuple(
                (
                    *(row.b_bytes - row.a_bytes, row.a_bytes, row.b_bytes),
                    *(row.kind.removesuffix("_bytes"), row.name),
                )
                for row in difference.modules
            ),
        ),
        Table(
            name="stack-difference",
            title="Stacks at the two peaks: what differs",
            columns=(
                *("change_bytes", "a_bytes", "b_bytes", "a_blocks", "b_blocks"),
                *("category", "phase", "stack"),
            ),
            rows=tuple(
                (
                    *(row.b_bytes - row.a_bytes, row.a_bytes, row.b_bytes),
                    *(row.a_blocks, row.b_blocks, row.category, row.phase),
                    " < ".join(row.stack),
                )
                for row in difference.origins
            ),
        ),
    ]
