"""Table of collectives."""

from __future__ import annotations

from collections.abc import Sequence

from sysbench.core.record.steps import TracedCollective
from sysbench.core.tables.table import Column, Table, columns_for, tabulate

NOTE = (
    "one file does not separate waiting for other ranks from moving data: bandwidths are lower "
    "bounds"
)

COLUMNS = columns_for(
    TracedCollective,
    Column("total_ns", about="sum of the call times, waiting included"),
    "exposed_ns",
    "calls",
    "kind",
    Column("bytes", is_optional=True, about="bytes of one call"),
    Column("dtype", is_optional=True, about="type of the elements"),
    Column("group_size", heading="ranks", is_optional=True),
    "mean_ns",
    "min_ns",
    "max_ns",
    Column("algorithm_gbs", heading="alg GB/s", is_optional=True),
    Column("bus_gbs", heading="bus GB/s", is_optional=True),
    Column("best_bus_gbs", heading="best bus", is_optional=True, about="highest bus bandwidth"),
    Column("group", is_optional=True),
    Column("which", lambda row: row.ranks, is_optional=True, about="ranks in the group"),
    "name",
)


def collectives_table(rows: Sequence[TracedCollective]) -> Table:
    """Collectives by kind, bytes and group, longest first. Times are over the whole window."""
    return tabulate(
        rows,
        COLUMNS,
        name="collectives",
        title="Collectives: transfer and waiting together, exposed where nothing else computes",
    )
