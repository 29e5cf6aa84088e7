"""Tables of a request that ran out of memory: its place, what would fit, and what was alive."""

from __future__ import annotations

from sysbench.core.memory.oom import out_of_memory
from sysbench.core.record.memory import Oom
from sysbench.core.record.record import Record
from sysbench.core.tables.memory_tables import LARGEST_COLUMNS, ORIGIN_COLUMNS, largest_first
from sysbench.core.tables.table import Cell, Column, Table, attributes, facts, tabulate

FACTS = (
    *("phase", "op", "module", "expression", "requested_bytes", "free_bytes"),
    *("largest_free_bytes", "allocated_bytes", "reserved_bytes", "limit_bytes"),
    *("capacity_bytes", "predicted_peak_bytes", "message"),
)
NO_LIMIT = "the spec sets no memory_limit"


def oom_tables(record: Record) -> list[Table]:
    """Return tables of the out-of-memory pass with the most detail."""
    pass_and_oom = out_of_memory(record)
    if pass_and_oom is None:
        return []
    pass_record, oom = pass_and_oom
    tables = [oom_table(pass_record.name, oom), would_fit_table(oom), stack_table(oom)]
    tables += [oom_ledger_table(oom), oom_origins_table(oom)]
    return [table for table in tables if table.rows]


def oom_table(name: str, oom: Oom) -> Table:
    """The failed request, its place, and the available memory."""
    rank = {} if oom.rank is None else {"rank": oom.rank}
    values: dict[str, Cell] = {"pass": name, **rank, **attributes(oom, *FACTS)}
    title = "Out of memory: requested and available memory"
    return facts("oom", title, values, {"limit_bytes": NO_LIMIT} | oom.missing)


def would_fit_table(oom: Oom) -> Table:
    """Largest value of each key that fits, other keys unchanged."""
    return tabulate(
        oom.would_fit,
        Column("key", about="setting"),
        Column("asked", about="requested value"),
        Column("largest", about="largest value that fits by the closed form"),
        "peak_bytes",
        name="oom_would_fit",
        title="What would fit, by the closed form, other keys unchanged",
    )


def stack_table(oom: Oom) -> Table:
    return tabulate(
        oom.stack,
        Column("frame", lambda frame: frame, about="file, line and function"),
        name="oom_stack",
        title="Stack of the failed request, innermost frame first",
    )


def oom_ledger_table(oom: Oom) -> Table:
    """The ledger at the failed request; rows add up to the allocated bytes."""
    total = sum(row.bytes for row in oom.ledger) or 1
    return tabulate(
        oom.ledger,
        "name",
        Column("bytes", about="bytes at the failed request"),
        Column("share", lambda row: row.bytes / total),
        name="oom_ledger",
        title="Memory ledger at the failed request: adds up to the allocated bytes",
    )


def oom_origins_table(oom: Oom) -> Table:
    """Bytes alive at the failed request, by request stack."""
    return tabulate(
        oom.origins,
        *ORIGIN_COLUMNS,
        name="oom_origins",
        title="Alive at the failed request, by category, phase and stack (bytes as requested)",
    )


def oom_largest_table(oom: Oom) -> Table:
    """The largest allocations alive at the failed request."""
    return tabulate(
        largest_first(oom.largest),
        *[column for column in LARGEST_COLUMNS if column.name != "died_ms"],
        name="oom_largest",
        title="Largest allocations alive at the failed request",
    )
