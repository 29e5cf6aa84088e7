"""Tables of memory: ledger, process memory, modules, allocations, out of memory, differences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sysbench.core.formatting import format_bytes
from sysbench.core.memory.oom import out_of_memory
from sysbench.core.memory.peak_difference import MemoryDifference, OriginChange, RowChange
from sysbench.core.record.memory import (
    Allocation,
    ClosedForm,
    DeviceMemory,
    LedgerRow,
    Oom,
    Origin,
    Pool,
    ReconciledRow,
    WouldFit,
)
from sysbench.core.record.record import Memory, ModuleMemory, Record
from sysbench.core.tables.cells import SIGNED
from sysbench.core.tables.meanings import MEANINGS
from sysbench.core.tables.table import Cell, Column, Table, attributes, columns_for, facts, tabulate

ORIGIN_COLUMNS = columns_for(
    Origin,
    "bytes",
    Column("block_bytes", is_optional=True),
    "blocks",
    "category",
    "phase",
    Column("stack", lambda row: " < ".join(row.stack)),
)
"""``block_bytes`` are allocator blocks, ``bytes`` the requests."""


def memory_tables(memory: Memory) -> list[Table]:
    """Return the tables of the section in reading order; some may be empty."""
    return [
        memory_table(memory),
        ledger_table(memory),
        card_table(memory),
        reconciliation_table(memory),
        resident_table(memory),
        pools_table(memory),
        module_table(memory),
        origins_table(memory),
        largest_table(memory),
        devices_table(memory),
    ]


def origins_table(memory: Memory) -> Table:
    """Bytes alive at the peak by request stack, innermost frame first."""
    return tabulate(
        memory.origins,
        ORIGIN_COLUMNS,
        name="origins",
        title="Alive at the peak, by category, phase and stack (bytes as requested)",
    )


LARGEST_COLUMNS = columns_for(
    Allocation,
    "bytes",
    Column("block_bytes", is_optional=True, priority=3),
    Column("category", priority=1),
    Column("phase", priority=2),
    Column("module", priority=4),
    Column("born_ms", priority=5, about="time of the allocation in the recording"),
    Column("died_ms", priority=6, about="time of the free in the recording"),
    Column("stack", lambda row: " < ".join(row.stack), is_flexible=True),
)


def largest_table(memory: Memory) -> Table:
    """The largest allocations alive at the peak.

    Without times, allocations of the same size and place are one row with a count.
    """
    hidden = ("born_ms", "died_ms") if "times" in memory.missing else ()
    table = tabulate(
        largest_first(memory.largest),
        [column for column in LARGEST_COLUMNS if column.name not in hidden],
        name="largest",
        title="Largest allocations alive at the peak",
    )
    if not hidden:
        return table
    rows = tuple((count, *row) for row, count in Counter(table.rows).items())
    about = {"blocks": MEANINGS["blocks"], **table.about}
    return msgspec.structs.replace(
        table, columns=("blocks", *table.columns), rows=rows, about=about
    )


def largest_alike_table(memory: Memory) -> Table:
    """The largest allocations, with equal ones as one row."""
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
            Column(
                "sum_bytes",
                lambda pair: pair[0][0] * pair[1],
                heading="all",
                about="bytes of all blocks of the row",
            ),
            Column("stack", lambda pair: " < ".join(pair[0][5])),
        ),
        name="largest",
        title=f"Largest of {len(memory.largest)} allocations alive at the peak",
    )


def largest_first(largest: Sequence[Allocation]) -> list[Allocation]:
    return sorted(largest, key=lambda row: -row.bytes)


OF_ALLOCATOR = ("predicted_allocated_bytes", "predicted_reserved_bytes")
"""What the model of CUDA's allocator predicts."""


def memory_table(memory: Memory) -> Table:
    """The byte totals, each under its own name."""
    on_cuda = memory.source == "cuda-snapshot"
    values: dict[str, Cell] = {
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        **_requested_bytes(memory, "peak"),
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "end_allocated_bytes": memory.end_allocated_bytes,
        **_requested_bytes(memory, "end"),
        **attributes(memory, "driver_used_bytes", "baseline_bytes", "baseline_blocks"),
        **attributes(memory, "first_step_peak_bytes", "predicted_peak_bytes"),
        **(attributes(memory, *OF_ALLOCATOR) if on_cuda else {}),
        "peak_phase": memory.peak_phase or None,
        **attributes(memory, "events", "events_dropped"),
    }
    source = "CPU allocator" if memory.source == "cpu-profiler" else "CUDA allocator"
    return facts("memory", f"Memory of {memory.whole}, {source}", values, memory.missing)


def _requested_bytes(memory: Memory, when: str) -> dict[str, int | None]:
    """Requested bytes, if they differ from the allocated blocks."""
    key = f"{when}_requested_bytes"
    requested: int | None = getattr(memory, key)
    differs = requested not in (None, getattr(memory, f"{when}_allocated_bytes"))
    return {key: requested} if differs else {}


def recording_notes(memory: Memory) -> list[str]:
    """Limits of the recording, one sentence each."""
    notes = []
    if memory.baseline_blocks:
        count, baseline = memory.baseline_blocks, format_bytes(memory.baseline_bytes)
        blocks = "block is" if count == 1 else "blocks are"
        why = "" if memory.events_dropped else " (it started late, or its event buffer overflowed)"
        notes.append(f"{count:,} {blocks} older than the recording: {baseline}{why}")
    if memory.peak_reserved_bytes is not None and (
        memory.peak_reserved_bytes < memory.peak_allocated_bytes
    ):
        notes.append("reserved memory is only known at the end")
    if memory.events_dropped:
        notes.append(f"the event buffer overflowed: the first {memory.events_dropped:,} are lost")
    if memory.devices:
        shown = next(device for device in memory.devices if device.is_described)
        busiest = shown.events == max(device.events for device in memory.devices)
        rank = "the busiest" if busiest else "not the busiest"
        notes.append(f"{len(memory.devices)} devices: this is number {shown.device}, {rank}")
    return notes


def devices_table(memory: Memory) -> Table:
    """One row per device of the snapshot."""
    return tabulate(
        memory.devices,
        columns_for(
            DeviceMemory,
            "device",
            Column("events", about="allocations and frees in the recording"),
            "peak_allocated_bytes",
            Column("peak_reserved_bytes", about="highest number of reserved bytes"),
            Column("end_allocated_bytes", about="bytes held by tensors at the end"),
            "baseline_bytes",
            Column("baseline_blocks", about="blocks older than the recording"),
            Column("is_described", about="true for the device of the other tables"),
        ),
        name="devices",
        title="Devices of the snapshot, each with its own peak: `inspect --device N` shows another",
    )


def ledger_table(memory: Memory) -> Table:
    """The ledger at the peak and at other instants; ``peak_bytes`` adds up to the peak."""
    others = {name: _amounts(rows) for name, rows in memory.columns.items() if name != "peak"}
    at_peak = _amounts(memory.ledger)
    names = dict.fromkeys(name for amounts in (at_peak, *others.values()) for name in amounts)
    peak = memory.peak_allocated_bytes or 1
    return tabulate(
        names,
        (
            Column("name", lambda name: name),
            Column("peak_bytes", lambda name: at_peak.get(name, 0)),
            Column("share", lambda name: at_peak.get(name, 0) / peak, about="share of the peak"),
            *(
                Column(
                    _bytes_column(instant),
                    others[instant].get,
                    about="bytes of the row at this instant",
                )
                for instant in others
            ),
        ),
        name="ledger",
        title=f"Memory ledger: bytes at the peak of {memory.whole}",
    )


def _amounts(rows: list[LedgerRow]) -> dict[str, int]:
    return {row.name: row.bytes for row in rows}


def _bytes_column(instant: str) -> str:
    return f"{re.sub('[ -]', '_', instant)}_bytes"


def card_table(memory: Memory) -> Table:
    """From the allocator to what the driver reports, or to the resident set on a CPU.

    ``bytes`` are at the peak. Other columns are as in `ledger_table`, null if nothing was read.
    """
    counted_by = "the driver" if memory.source == "cuda-snapshot" else "the operating system"
    total = sum(row.bytes for row in memory.card) or 1
    others = {name: _amounts(rows) for name, rows in memory.card_columns.items() if name != "peak"}

    def instant_column(instant: str) -> Column[LedgerRow]:
        return Column(
            _bytes_column(instant),
            lambda row: others[instant].get(row.name),
            about="bytes of the row at this instant",
        )

    return tabulate(
        memory.card,
        columns_for(
            LedgerRow,
            "name",
            Column("bytes", about="bytes that the driver counts"),
            Column("share", lambda row: row.bytes / total),
            *map(instant_column, others),
        ),
        name="card",
        title=f"Process memory: from the allocator to what {counted_by} counts",
    )


@dataclass(frozen=True, slots=True)
class _PoolAt:
    instant: str
    pool: Pool

    @property
    def largest_share(self) -> float | None:
        free = self.pool.free_bytes
        return self.pool.largest_free_bytes / free if free else None


def pools_table(memory: Memory) -> Table:
    """Free bytes of the caching allocator's pools, and their largest piece."""
    return tabulate(
        (_PoolAt(instant, pool) for instant, pools in memory.pools.items() for pool in pools),
        columns_for(
            _PoolAt,
            Column("instant", about="moment in the step"),
            Column(
                "pool",
                lambda row: row.pool.name,
                about="pool of the allocator: ordinary, private, or of a CUDA graph",
            ),
            Column("reserved_bytes", lambda row: row.pool.reserved_bytes),
            Column("allocated_bytes", lambda row: row.pool.allocated_bytes),
            Column(
                "free_bytes",
                lambda row: row.pool.free_bytes,
                about="reserved bytes that are not in use",
            ),
            Column(
                "largest_free_bytes",
                lambda row: row.pool.largest_free_bytes,
                about="largest free piece",
            ),
            Column("largest_share", about="largest free piece over all free"),
        ),
        name="pools",
        title="Allocator pools: a request above the largest free piece needs more memory",
    )


def reconciliation_table(memory: Memory) -> Table:
    """Each row of the predicted ledger against measured bytes; then library memory and the peak."""
    return tabulate(
        memory.reconciliation,
        columns_for(
            ReconciledRow,
            "name",
            Column("predicted_bytes", about="bytes by the closed form or the dry run"),
            Column("measured_bytes", about="bytes found by the memory pass"),
            "error",
        ),
        name="reconciliation",
        title="Predicted against measured, at the peak",
    )


def resident_table(memory: Memory) -> Table:
    """Closed forms against the measured peak; ``is_the_peak`` marks the match."""
    named = memory.resident_set or "none of these"
    return tabulate(
        memory.closed_forms,
        columns_for(
            ClosedForm,
            Column("form", lambda form: form.name, about="parts that the sum counts"),
            Column("bytes", about="bytes of the closed form"),
            "error",
            Column(
                "is_the_peak",
                lambda form: form.name == memory.resident_set,
                about="true if this sum is the measured peak",
            ),
            Column("meaning", about="what the sum includes"),
        ),
        name="resident",
        title=f"What was resident: {named} · P weights, A saved for backward, C autocast's copies",
    )


def module_table(memory: Memory) -> Table:
    return tabulate(
        memory.modules,
        columns_for(
            ModuleMemory,
            "module",
            "parameter_bytes",
            "gradient_bytes",
            "optimizer_bytes",
            "activation_bytes",
        ),
        name="modules",
        title="Memory by module, own and children's",
    )


CHANGE_COLUMNS = columns_for(
    RowChange,
    Column("change_bytes", lambda row: row.b_bytes - row.a_bytes, unit=f"{SIGNED}bytes"),
    Column("a_bytes", heading="A"),
    Column("b_bytes", heading="B"),
)


def difference_tables(difference: MemoryDifference) -> list[Table]:
    """Return three tables, largest change first; empty if nothing differs."""
    return [
        tabulate(
            difference.rows,
            columns_for(RowChange, *CHANGE_COLUMNS, "name"),
            name="ledger-difference",
            title="Ledgers at the two peaks: what differs",
        ),
        tabulate(
            difference.modules,
            (
                *CHANGE_COLUMNS,
                Column("kind", lambda row: row.kind.removesuffix("_bytes")),
                Column("module", lambda row: row.name),
            ),
            name="module-difference",
            title="Modules, own and children's: what differs",
        ),
        tabulate(
            difference.origins,
            columns_for(
                OriginChange,
                Column(
                    "change_bytes", lambda row: row.b_bytes - row.a_bytes, unit=f"{SIGNED}bytes"
                ),
                Column("a_bytes", heading="A"),
                Column("b_bytes", heading="B"),
                Column("a_blocks", heading="A blocks", priority=12),
                Column("b_blocks", heading="B blocks", priority=11),
                "category",
                Column("phase", priority=10),
                Column("stack", lambda row: " < ".join(row.stack), is_flexible=True),
            ),
            name="stack-difference",
            title="Stacks at the two peaks: what differs",
        ),
    ]


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
        columns_for(
            WouldFit,
            Column("key", about="setting"),
            Column("asked", about="requested value"),
            Column("largest", about="largest value that fits by the closed form"),
            "peak_bytes",
        ),
        name="oom_would_fit",
        title="What would fit, by the closed form, other keys unchanged",
    )


def stack_table(oom: Oom) -> Table:
    return tabulate(
        oom.stack,
        (Column("frame", lambda frame: frame, about="file, line and function"),),
        name="oom_stack",
        title="Stack of the failed request, innermost frame first",
    )


def oom_ledger_table(oom: Oom) -> Table:
    """The ledger at the failed request; rows add up to the allocated bytes."""
    total = sum(row.bytes for row in oom.ledger) or 1
    return tabulate(
        oom.ledger,
        columns_for(
            LedgerRow,
            "name",
            Column("bytes", about="bytes at the failed request"),
            Column("share", lambda row: row.bytes / total),
        ),
        name="oom_ledger",
        title="Memory ledger at the failed request: adds up to the allocated bytes",
    )


def oom_origins_table(oom: Oom) -> Table:
    """Bytes alive at the failed request, by request stack."""
    return tabulate(
        oom.origins,
        ORIGIN_COLUMNS,
        name="oom_origins",
        title="Alive at the failed request, by category, phase and stack (bytes as requested)",
    )


def oom_largest_table(oom: Oom) -> Table:
    """The largest allocations alive at the failed request."""
    return tabulate(
        largest_first(oom.largest),
        [column for column in LARGEST_COLUMNS if column.name != "died_ms"],
        name="oom_largest",
        title="Largest allocations alive at the failed request",
    )
