"""Tables of memory: ledger, process memory, modules, allocations, out of memory, differences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

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
from sysbench.core.tables.table import Column, Row, Table, facts, field_of, fields_of, tabulate

ORIGIN_COLUMNS: tuple[Column[Origin], ...] = (
    *fields_of(Origin, bytes="requested bytes"),
    Column(
        "block_bytes",
        lambda row: row.block_bytes,
        is_optional=True,
        about="size of the allocator's block",
    ),
    *fields_of(
        Origin,
        blocks="number of blocks",
        category="kind of work or memory",
        phase="phase of the step",
    ),
    Column(
        "stack",
        lambda row: " < ".join(row.stack),
        about="stack of the request, innermost frame first",
    ),
)
"""``block_bytes`` are allocator blocks, ``bytes`` the requests."""


def origins_table(memory: Memory) -> Table:
    """Bytes alive at the peak by request stack, innermost frame first."""
    return tabulate(
        memory.origins,
        ORIGIN_COLUMNS,
        name="origins",
        title="Alive at the peak, by category, phase and stack (bytes as requested)",
    )


LARGEST_COLUMNS: tuple[Column[Allocation], ...] = (
    field_of(Allocation, "bytes", about="requested bytes"),
    field_of(
        Allocation,
        "block_bytes",
        is_optional=True,
        priority=3,
        about="size of the allocator's block",
    ),
    field_of(Allocation, "category", priority=1, about="kind of work or memory"),
    field_of(Allocation, "phase", priority=2, about="phase of the step"),
    field_of(Allocation, "module", priority=4, about="path of the module; * is every layer"),
    field_of(Allocation, "born_ms", priority=5, about="time of the allocation in the recording"),
    field_of(Allocation, "died_ms", priority=6, about="time of the free in the recording"),
    Column(
        "stack",
        lambda row: " < ".join(row.stack),
        is_flexible=True,
        about="stack of the request, innermost frame first",
    ),
)


def largest_table(memory: Memory) -> Table:
    """The largest allocations alive at the peak.

    Without times, allocations of the same size and place are one row with a count.
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
        (Column("blocks", lambda row: counts[id(row)], about="number of blocks"), *kept),
        name="largest",
        title=title,
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
            Column("blocks", lambda pair: pair[1], about="number of blocks"),
            Column("bytes", lambda pair: pair[0][0], heading="each", about="requested bytes"),
            Column(
                "block_bytes",
                lambda pair: pair[0][1],
                is_optional=True,
                about="size of the allocator's block",
            ),
            Column(
                "sum_bytes",
                lambda pair: pair[0][0] * pair[1],
                heading="all",
                about="bytes of all blocks of the row",
            ),
            Column(
                "stack",
                lambda pair: " < ".join(pair[0][5]),
                about="stack of the request, innermost frame first",
            ),
        ),
        name="largest",
        title=f"Largest of {len(memory.largest)} allocations alive at the peak",
    )


def largest_first(largest: Sequence[Allocation]) -> list[Allocation]:
    return sorted(largest, key=lambda row: -row.bytes)


def memory_table(memory: Memory) -> Table:
    """The byte totals, each under its own name."""
    values = {
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        **_requested_bytes(memory, "peak"),
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "end_allocated_bytes": memory.end_allocated_bytes,
        **_requested_bytes(memory, "end"),
        "driver_used_bytes": memory.driver_used_bytes,
        "baseline_bytes": memory.baseline_bytes,
        "baseline_blocks": memory.baseline_blocks,
        "first_step_peak_bytes": memory.first_step_peak_bytes,
        "predicted_peak_bytes": memory.predicted_peak_bytes,
        **_predicted_reserve(memory),
        "peak_phase": memory.peak_phase or None,
        "events": memory.events,
        "events_dropped": memory.events_dropped,
    }
    source = "CPU allocator" if memory.source == "cpu-profiler" else "CUDA allocator"
    return facts("memory", f"Memory of {memory.whole}, {source}", values, memory.missing)


def _requested_bytes(memory: Memory, when: str) -> dict[str, int | None]:
    """Requested bytes, if they differ from the allocated blocks."""
    key = f"{when}_requested_bytes"
    requested: int | None = getattr(memory, key)
    differs = requested not in (None, getattr(memory, f"{when}_allocated_bytes"))
    return {key: requested} if differs else {}


def _predicted_reserve(memory: Memory) -> dict[str, int | None]:
    if memory.source != "cuda-snapshot":
        return {}
    return {"predicted_reserved_bytes": memory.predicted_reserved_bytes}


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


DEVICE_COLUMNS = fields_of(
    DeviceMemory,
    device="device of the row",
    events="allocations and frees in the recording",
    peak_allocated_bytes="highest number of allocated bytes",
    peak_reserved_bytes="highest number of reserved bytes",
    end_allocated_bytes="bytes held by tensors at the end",
    baseline_bytes="bytes allocated before the recording",
    baseline_blocks="blocks older than the recording",
    is_described="true for the device of the other tables",
)


def devices_table(memory: Memory) -> Table:
    """One row per device of the snapshot."""
    return tabulate(
        memory.devices,
        DEVICE_COLUMNS,
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
            Column("name", lambda name: name, about="name of the row"),
            Column(
                "peak_bytes", lambda name: at_peak.get(name, 0), about="bytes alive at the peak"
            ),
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
        (
            *fields_of(LedgerRow, name="name of the row", bytes="bytes that the driver counts"),
            Column("share", lambda row: row.bytes / total, about="share of the table's total"),
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


POOL_COLUMNS: tuple[Column[_PoolAt], ...] = (
    Column("instant", lambda row: row.instant, about="moment in the step"),
    Column(
        "pool",
        lambda row: row.pool.name,
        about="pool of the allocator: ordinary, private, or of a CUDA graph",
    ),
    Column(
        "reserved_bytes",
        lambda row: row.pool.reserved_bytes,
        about="bytes reserved from the driver",
    ),
    Column(
        "allocated_bytes",
        lambda row: row.pool.allocated_bytes,
        about="bytes in blocks that are in use",
    ),
    Column(
        "free_bytes", lambda row: row.pool.free_bytes, about="reserved bytes that are not in use"
    ),
    Column(
        "largest_free_bytes", lambda row: row.pool.largest_free_bytes, about="largest free piece"
    ),
    Column(
        "largest_share", lambda row: row.largest_share, about="largest free piece over all free"
    ),
)


def pools_table(memory: Memory) -> Table:
    """Free bytes of the caching allocator's pools, and their largest piece."""
    return tabulate(
        (_PoolAt(instant, pool) for instant, pools in memory.pools.items() for pool in pools),
        POOL_COLUMNS,
        name="pools",
        title="Allocator pools: a request above the largest free piece needs more memory",
    )


RECONCILIATION_COLUMNS = fields_of(
    ReconciledRow,
    name="name of the row",
    predicted_bytes="bytes by the closed form or the dry run",
    measured_bytes="bytes found by the memory pass",
    error="predicted over measured, minus one",
)


def reconciliation_table(memory: Memory) -> Table:
    """Each row of the predicted ledger against measured bytes; then library memory and the peak."""
    return tabulate(
        memory.reconciliation,
        RECONCILIATION_COLUMNS,
        name="reconciliation",
        title="Predicted against measured, at the peak",
    )


def resident_table(memory: Memory) -> Table:
    """Closed forms against the measured peak; ``is_the_peak`` marks the match."""
    named = memory.resident_set or "none of these"
    return tabulate(
        memory.closed_forms,
        (
            Column("form", lambda form: form.name, about="parts that the sum counts"),
            *fields_of(
                ClosedForm,
                bytes="bytes of the closed form",
                error="predicted over measured, minus one",
            ),
            Column(
                "is_the_peak",
                lambda form: form.name == memory.resident_set,
                about="true if this sum is the measured peak",
            ),
            *fields_of(ClosedForm, meaning="what the sum includes"),
        ),
        name="resident",
        title=f"What was resident: {named} · P weights, A saved for backward, C autocast's copies",
    )


MODULE_COLUMNS = fields_of(
    ModuleMemory,
    module="path of the module; * is every layer",
    parameter_bytes="bytes of parameters",
    gradient_bytes="bytes of gradients",
    optimizer_bytes="bytes of the optimizer's state",
    activation_bytes="saved for backward, alive at the peak",
)


def module_table(memory: Memory) -> Table:
    return tabulate(
        memory.modules, MODULE_COLUMNS, name="modules", title="Memory by module, own and children's"
    )


CHANGE_COLUMNS: tuple[Column[RowChange], ...] = (
    Column("change_bytes", lambda row: row.b_bytes - row.a_bytes, about="B minus A"),
    *fields_of(RowChange, a_bytes="bytes of A at its peak", b_bytes="bytes of B at its peak"),
)
STACK_CHANGE_COLUMNS: tuple[Column[OriginChange], ...] = (
    Column("change_bytes", lambda row: row.b_bytes - row.a_bytes, about="B minus A"),
    *fields_of(
        OriginChange,
        a_bytes="bytes of A at its peak",
        b_bytes="bytes of B at its peak",
        a_blocks="blocks of A at its peak",
        b_blocks="blocks of B at its peak",
        category="kind of work or memory",
        phase="phase of the step",
    ),
    Column(
        "stack",
        lambda row: " < ".join(row.stack),
        about="stack of the request, innermost frame first",
    ),
)


def difference_tables(difference: MemoryDifference) -> list[Table]:
    """Return three tables, largest change first; empty if nothing differs."""
    return [
        tabulate(
            difference.rows,
            (*CHANGE_COLUMNS, *fields_of(RowChange, name="name of the row")),
            name="ledger-difference",
            title="Ledgers at the two peaks: what differs",
        ),
        tabulate(
            difference.modules,
            (
                *CHANGE_COLUMNS,
                Column(
                    "kind", lambda row: row.kind.removesuffix("_bytes"), about="kind of the row"
                ),
                Column(
                    "module", lambda row: row.name, about="path of the module; * is every layer"
                ),
            ),
            name="module-difference",
            title="Modules, own and children's: what differs",
        ),
        tabulate(
            difference.origins,
            STACK_CHANGE_COLUMNS,
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
    values = {"pass": name} | ({} if oom.rank is None else {"rank": oom.rank})
    values |= {key: getattr(oom, key) for key in FACTS}
    title = "Out of memory: requested and available memory"
    return facts("oom", title, values, {"limit_bytes": NO_LIMIT} | oom.missing)


def would_fit_table(oom: Oom) -> Table:
    """Largest value of each key that fits, other keys unchanged."""
    return tabulate(
        oom.would_fit,
        fields_of(
            WouldFit,
            key="setting",
            asked="requested value",
            largest="largest value that fits by the closed form",
            peak_bytes="bytes alive at the peak",
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
        (
            *fields_of(LedgerRow, name="name of the row", bytes="bytes at the failed request"),
            Column("share", lambda row: row.bytes / total, about="share of the table's total"),
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
