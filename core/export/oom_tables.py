"""A pass that ran out of memory as tables: the request, what would fit, what was alive."""

from __future__ import annotations

from ..analysis.memory.oom import out_of_memory
from ..record.memory import Oom
from ..record.record import Record
from ..tables.memory import largest_columns, origin_columns
from ..tables.table import Table, facts

FACTS = (
    *("phase", "op", "module", "expression", "requested_bytes", "free_bytes"),
    *("largest_free_bytes", "allocated_bytes", "reserved_bytes", "limit_bytes"),
    *("capacity_bytes", "predicted_peak_bytes", "message"),
)
NO_LIMIT = "the spec sets no memory_limit"


def oom_tables(record: Record) -> list[Table]:
    """Of the pass that tells most; none where no pass ran out of memory."""
    told = out_of_memory(record)
    if told is None:
        return []
    one, oom = told
    tables = [oom_table(one.name, oom), would_fit_table(oom), stack_table(oom)]
    tables += [oom_ledger_table(oom), oom_origins_table(oom)]
    return [table for table in tables if table.rows]


def oom_table(name: str, oom: Oom) -> Table:
    """What was asked for, where, and what there was."""
    values = {"pass": name} | ({} if oom.rank is None else {"rank": oom.rank})
    values |= {key: getattr(oom, key) for key in FACTS}
    title = "Out of memory: what was asked for, and what there was"
    return facts("oom", title, values, {"limit_bytes": NO_LIMIT} | oom.missing)


def would_fit_table(oom: Oom) -> Table:
    """The largest of each key with which the predicted peak fits, all else as asked."""
    return Table(
        name="oom_would_fit",
        title="What would fit, by the closed form, all else as asked",
        columns=("key", "asked", "largest", "peak_bytes"),
        rows=tuple((one.key, one.asked, one.largest, one.peak_bytes) for one in oom.would_fit),
    )


def stack_table(oom: Oom) -> Table:
    """Our frames, innermost first."""
    return Table(
        name="oom_stack",
        title="Where the memory was asked for, innermost frame first",
        columns=("frame",),
        rows=tuple((frame,) for frame in oom.stack),
    )


def oom_ledger_table(oom: Oom) -> Table:
    """What was resident then; the rows sum to what was allocated."""
    total = sum(row.bytes for row in oom.ledger) or 1
    return Table(
        name="oom_ledger",
        title="Memory ledger at the refusal: sums to what was allocated",
        columns=("name", "bytes", "share"),
        rows=tuple((row.name, row.bytes, row.bytes / total) for row in oom.ledger),
    )


def oom_origins_table(oom: Oom) -> Table:
    """What was alive then by the stack that had asked for it."""
    return Table(
        name="oom_origins",
        title="Alive at the refusal, by category, phase and stack (bytes as requested)",
        **origin_columns(oom.origins),
    )


def oom_largest_table(oom: Oom) -> Table:
    """The largest allocations that were alive then."""
    return Table(
        name="oom_largest",
        title="Largest allocations alive at the refusal",
        **largest_columns(oom.largest, times=("born_ms",)),
    )
