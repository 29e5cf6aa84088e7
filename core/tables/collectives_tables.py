"""Table of the collectives that a file has."""

from __future__ import annotations

from collections.abc import Sequence

from sysbench.core.record.steps import TracedCollective
from sysbench.core.tables.table import Column, Table, fields_of, tabulate

NOTE = (
    "one file does not tell waiting for another rank from moving data: bandwidths are at least "
    "these"
)

COLUMNS: tuple[Column[TracedCollective], ...] = (
    *fields_of(TracedCollective, "total_ns", "exposed_ns", "calls", "kind"),
    Column("bytes", lambda row: row.bytes, is_optional=True),
    Column("dtype", lambda row: row.dtype, is_optional=True),
    Column("group_size", lambda row: row.group_size, heading="ranks", is_optional=True),
    *fields_of(TracedCollective, "mean_ns", "min_ns", "max_ns"),
    Column("algorithm_gbs", lambda row: row.algorithm_gbs, heading="alg GB/s", is_optional=True),
    Column("bus_gbs", lambda row: row.bus_gbs, heading="bus GB/s", is_optional=True),
    Column("best_bus_gbs", lambda row: row.best_bus_gbs, heading="best bus", is_optional=True),
    Column("group", lambda row: row.group, is_optional=True),
    Column("which", lambda row: row.ranks, is_optional=True),
    *fields_of(TracedCollective, "name"),
)


def collectives_table(rows: Sequence[TracedCollective]) -> Table:
    """Collectives by kind, bytes and group, the longest first; times over the whole window."""
    return tabulate(
        rows,
        COLUMNS,
        name="collectives",
        title="Collectives: transfer and waiting together, exposed where nothing else computes",
    )
