"""Table of collectives."""

from __future__ import annotations

from collections.abc import Sequence

from sysbench.core.record.steps import TracedCollective
from sysbench.core.tables.table import Column, Table, fields_of, tabulate

NOTE = (
    "one file does not separate waiting for other ranks from moving data: bandwidths are lower "
    "bounds"
)

COLUMNS: tuple[Column[TracedCollective], ...] = (
    *fields_of(
        TracedCollective,
        total_ns="sum of the call times, waiting included",
        exposed_ns="communication during which no other kernel ran",
        calls="number of calls",
        kind="kind of the row",
    ),
    Column("bytes", lambda row: row.bytes, is_optional=True, about="bytes of one call"),
    Column("dtype", lambda row: row.dtype, is_optional=True, about="type of the elements"),
    Column(
        "group_size",
        lambda row: row.group_size,
        heading="ranks",
        is_optional=True,
        about="number of ranks in the group",
    ),
    *fields_of(
        TracedCollective, mean_ns="time over calls", min_ns="shortest call", max_ns="longest call"
    ),
    Column(
        "algorithm_gbs",
        lambda row: row.algorithm_gbs,
        heading="alg GB/s",
        is_optional=True,
        about="bytes over transfer time",
    ),
    Column(
        "bus_gbs",
        lambda row: row.bus_gbs,
        heading="bus GB/s",
        is_optional=True,
        about="bus bandwidth as in nccl-tests",
    ),
    Column(
        "best_bus_gbs",
        lambda row: row.best_bus_gbs,
        heading="best bus",
        is_optional=True,
        about="highest bus bandwidth",
    ),
    Column("group", lambda row: row.group, is_optional=True, about="group of ranks"),
    Column("which", lambda row: row.ranks, is_optional=True, about="ranks in the group"),
    *fields_of(TracedCollective, name="name of the row"),
)


def collectives_table(rows: Sequence[TracedCollective]) -> Table:
    """Collectives by kind, bytes and group, longest first. Times are over the whole window."""
    return tabulate(
        rows,
        COLUMNS,
        name="collectives",
        title="Collectives: transfer and waiting together, exposed where nothing else computes",
    )
