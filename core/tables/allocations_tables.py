"""Tables of allocations: alive at the peak by stack, and the largest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sysbench.core.record.memory import Allocation, Origin
from sysbench.core.record.record import Memory
from sysbench.core.tables.table import Column, Row, Table, field_of, fields_of, tabulate

ORIGIN_COLUMNS: tuple[Column[Origin], ...] = (
    *fields_of(Origin, "bytes"),
    Column("block_bytes", lambda row: row.block_bytes, is_optional=True),
    *fields_of(Origin, "blocks", "category", "phase"),
    Column("stack", lambda row: " < ".join(row.stack)),
)
"""``block_bytes`` are the allocator's blocks, ``bytes`` the requests."""


def origins_table(memory: Memory) -> Table:
    """Bytes alive at the peak by the stack of their request, innermost frame first."""
    return tabulate(
        memory.origins,
        ORIGIN_COLUMNS,
        name="origins",
        title="Alive at the peak, by category, phase and stack (bytes as requested)",
    )


LARGEST_COLUMNS: tuple[Column[Allocation], ...] = (
    field_of(Allocation, "bytes"),
    field_of(Allocation, "block_bytes", is_optional=True, priority=3),
    field_of(Allocation, "category", priority=1),
    field_of(Allocation, "phase", priority=2),
    field_of(Allocation, "module", priority=4),
    field_of(Allocation, "born_ms", priority=5),
    field_of(Allocation, "died_ms", priority=6),
    Column("stack", lambda row: " < ".join(row.stack), is_flexible=True),
)


def largest_table(memory: Memory) -> Table:
    """The largest allocations alive at the peak, innermost frame first.

    Where the recording has no times, nothing tells those of one size and place apart: they are one
    row, with their count.
    """
    title = "Largest allocations alive at the peak"
    if "times" not in memory.missing:
        return tabulate(largest_first(memory.largest), LARGEST_COLUMNS, name="largest", title=title)
    alike: dict[Row, int] = {}
    kept = [column for column in LARGEST_COLUMNS if column.name not in ("born_ms", "died_ms")]
    first: dict[Row, Allocation] = {}
    for row in largest_first(memory.largest):
        cells = tuple(column.value(row) for column in kept)
        alike[cells] = alike.get(cells, 0) + 1
        first.setdefault(cells, row)
    counts = {id(row): alike[cells] for cells, row in first.items()}
    return tabulate(
        first.values(),
        (Column("blocks", lambda row: counts[id(row)]), *kept),
        name="largest",
        title=title,
    )


def largest_alike_table(memory: Memory) -> Table:
    """The same without times: allocations of one size and place are one row, with their count."""
    alike = Counter(
        (row.bytes, row.block_bytes, row.category, row.phase, row.module, tuple(row.stack))
        for row in memory.largest
    )
    rows = sorted(alike.items(), key=lambda pair: -pair[0][0] * pair[1])
    return tabulate(
        rows,
        (
            Column("blocks", lambda pair: pair[1]),
            Column("bytes", lambda pair: pair[0][0], heading="each"),
            Column("block_bytes", lambda pair: pair[0][1], is_optional=True),
            Column("sum_bytes", lambda pair: pair[0][0] * pair[1], heading="all"),
            Column("stack", lambda pair: " < ".join(pair[0][5])),
        ),
        name="largest",
        title=f"Largest of {len(memory.largest)} allocations alive at the peak",
    )


def largest_first(largest: Sequence[Allocation]) -> list[Allocation]:
    """By bytes as requested; of equals the order stays."""
    return sorted(largest, key=lambda row: -row.bytes)
