"""Tables of memory: ledger, process memory, modules, allocations, out of memory, differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sysbench.core.formatting import counted, format_bytes
from sysbench.core.record.memory import SMALLER, Allocation, LedgerRow, Origin, Pool
from sysbench.core.record.record import Memory
from sysbench.core.tables.table import (
    MEANINGS,
    Cell,
    Column,
    Table,
    attributes,
    columns_for,
    facts,
    tabulate,
)

ORIGIN_COLUMNS = columns_for(
    Origin,
    "bytes",
    Column("block_bytes", is_optional=True),
    "blocks",
    "category",
    "phase",
    Column("metadata", is_optional=True),
    Column("stack", lambda row: " < ".join(row.stack)),
)
"""``block_bytes`` are allocator blocks, ``bytes`` the requests."""


LISTED_PARTS = 3


def memory_tables(memory: Memory) -> list[Table]:
    """Return the tables of the section in reading order; some may be empty."""
    return [
        memory_table(memory),
        peaks_table(memory),
        step_memory_table(memory),
        growth_table(memory),
        ledger_table(memory),
        card_table(memory),
        reconciliation_table(memory),
        resident_table(memory),
        pools_table(memory),
        module_table(memory),
        origins_table(memory),
        *([] if memory.is_counted else [largest_table(memory)]),
        devices_table(memory),
    ]


def peaks_table(memory: Memory) -> Table:
    """Measured and predicted peak of each rank; empty for one."""
    return tabulate(
        memory.ranks,
        "rank",
        "peak_bytes",
        Column("predicted_peak_bytes", about="peak of the same rank in a dry run"),
        Column("error", unit="share", about="predicted over measured, minus one"),
        Column("reserved_bytes", is_optional=True),
        Column(
            "predicted_reserved_bytes",
            is_optional=True,
            about="bytes that the allocator reserves in the dry run",
        ),
        "peak_phase",
        Column(
            "held",
            lambda row: ", ".join(
                f"{part.name} {format_bytes(part.bytes)}"
                for part in sorted(row.ledger, key=lambda part: -part.bytes)[:LISTED_PARTS]
            ),
            is_flexible=True,
            about="largest rows of the rank's ledger at its peak",
        ),
        name="memory_ranks",
        title="Peak of each rank, beside its prediction",
    )


def step_memory_table(memory: Memory) -> Table:
    """Every recorded step, where they differ; else empty."""
    return tabulate(
        memory.steps,
        Column("step", about="number of the step, from 1"),
        Column("peak_bytes", about="live bytes at the step's peak"),
        Column("end_bytes", about="live bytes at the step's end"),
        Column("inputs", about="dtypes and shapes that the model was called with"),
        name="step_memory",
        title="Memory step by step: they differ",
    )


def growth_table(memory: Memory) -> Table:
    """What each step leaves more of, largest first; else empty."""
    return tabulate(
        memory.growth,
        Column("bytes", about="more than after the step before"),
        Column("since_step", about="first step that left more"),
        *("category", "phase", "module"),
        Column("stack", lambda row: " < ".join(row.stack), is_flexible=True),
        name="growth",
        title="Memory that grows: by place, a step",
    )


def origins_table(memory: Memory) -> Table:
    """Bytes alive at the peak, or when memory ran out, by stack, innermost frame first."""
    held, moment = memory.holders
    return tabulate(
        held.origins,
        *ORIGIN_COLUMNS,
        name="origins",
        title=f"Alive {moment}, by category, phase and stack (bytes as requested)",
    )


LARGEST_COLUMNS = columns_for(
    Allocation,
    "bytes",
    Column("block_bytes", is_optional=True, priority=3),
    Column("category", priority=1),
    Column("phase", priority=2),
    Column("module", priority=4),
    Column("metadata", priority=3, is_optional=True),
    Column("born_ms", priority=5, about="time of the allocation in the recording"),
    Column("died_ms", priority=6, about="time of the free in the recording"),
    Column("stack", lambda row: " < ".join(row.stack), is_flexible=True),
)


def largest_table(memory: Memory) -> Table:
    """The largest allocations alive at the peak, or when memory ran out.

    Without times, allocations of the same size and place are one row with a count.
    """
    held, moment = memory.holders
    if "times" in memory.missing and held.alike:
        return largest_alike_table(memory)
    total = sum(row.blocks for row in held.origins)
    of_all = f", {len(held.largest)} of {total}" if total > len(held.largest) else ""
    return tabulate(
        largest_first(held.largest),
        *LARGEST_COLUMNS,
        name="largest",
        title=f"Largest allocations alive {moment}{of_all}",
    )


def _place(row: Origin) -> str:
    return " < ".join(row.stack) or (f"({SMALLER})" if row.category == SMALLER else "")


def _each(row: Origin, whole: int | None) -> int | None:
    """Bytes of one of the row's blocks; None for a row of several sizes."""
    return None if whole is None or row.category == SMALLER else whole // row.blocks


ALIKE_COLUMNS = columns_for(
    Origin,
    "blocks",
    Column("bytes", lambda row: _each(row, row.bytes), heading="each"),
    Column(
        "block_bytes",
        lambda row: _each(row, row.block_bytes),
        is_optional=True,
        about=f"{MEANINGS['block_bytes']}, of one block",
    ),
    Column("sum_bytes", "bytes", heading="all", about="bytes of all blocks of the row"),
    Column("category", priority=3),
    Column("phase", is_optional=True, priority=1),
    Column("metadata", is_optional=True, priority=2),
    Column("stack", _place, is_flexible=True),
)


def largest_alike_table(memory: Memory, most: int | None = None) -> Table:
    """Allocations by size and place in the code, largest sum first.

    All of them are grouped; what is beyond the listed groups is the row ``smaller``.

    Args:
        most: Groups to list; None for all of the record.
    """
    held, moment = memory.holders
    rows = held.alike
    if most is not None and len(rows) > most + 1:
        rows = [*rows[:most], _sum_of(rows[most:])]
    return tabulate(
        rows,
        *ALIKE_COLUMNS,
        name="largest",
        title=f"Largest of {counted(sum(row.blocks for row in rows), 'allocation')} alive "
        f"{moment}, by size and place",
    )


def _sum_of(rows: Sequence[Origin]) -> Origin:
    blocks = [row.block_bytes for row in rows if row.block_bytes is not None]
    return Origin(
        category=SMALLER,
        phase="",
        bytes=sum(row.bytes for row in rows),
        blocks=sum(row.blocks for row in rows),
        stack=[],
        block_bytes=sum(blocks) if blocks else None,
    )


def largest_first(largest: Sequence[Allocation]) -> list[Allocation]:
    return sorted(largest, key=lambda row: -row.bytes)


OF_ALLOCATOR = ("predicted_allocated_bytes", "predicted_reserved_bytes")
"""What the model of CUDA's allocator predicts."""


def memory_table(memory: Memory) -> Table:
    """The byte totals, each under its own name."""
    on_cuda = memory.source == "cuda-snapshot"
    drops_unknown = memory.ring_overflowed and not memory.events_dropped
    values: dict[str, Cell] = {
        **({} if memory.device is None else {"device": memory.device}),
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        **_requested_bytes(memory, "peak"),
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "end_allocated_bytes": memory.end_allocated_bytes,
        **_requested_bytes(memory, "end"),
        **({"end_reserved_bytes": memory.peak_reserved_bytes} if memory.is_state else {}),
        **attributes(memory, "driver_used_bytes", "baseline_bytes", "baseline_blocks"),
        **attributes(memory, "first_step_peak_bytes", "predicted_peak_bytes"),
        **(attributes(memory, *OF_ALLOCATOR) if on_cuda else {}),
        "peak_phase": memory.peak_phase or None,
        "events": memory.events,
        "events_dropped": None if drops_unknown else memory.events_dropped,
    }
    sources = {"cpu-profiler": "CPU allocator", "holders": "counted at the ends of phases"}
    source = sources.get(memory.source, "CUDA allocator")
    missing = {"events_dropped": RING_OVERFLOWED} | memory.missing
    when = f"of {memory.whole}"
    if memory.is_state:
        # What a snapshot without a history has is the state, which is neither a peak nor a start.
        values |= dict.fromkeys(OF_RECORDINGS & values.keys())
        missing |= dict.fromkeys(OF_RECORDINGS - missing.keys(), "nothing was recorded")
        when = memory.moment
    return facts("memory", f"Memory {when}, {source}", values, missing)


OF_RECORDINGS = {
    *("peak_allocated_bytes", "peak_requested_bytes", "peak_reserved_bytes"),
    *("baseline_bytes", "baseline_blocks"),
}
RING_OVERFLOWED = "the ring overflowed, and the file does not count what was lost"


def _requested_bytes(memory: Memory, when: str) -> dict[str, int | None]:
    """Requested bytes, if they differ from the allocated blocks."""
    key = f"{when}_requested_bytes"
    requested: int | None = getattr(memory, key)
    differs = requested not in (None, getattr(memory, f"{when}_allocated_bytes"))
    return {key: requested} if differs else {}


def recording_notes(memory: Memory) -> list[str]:
    """Limits of the recording, one sentence each."""
    notes = []
    if memory.is_counted:
        peak = memory.recorded_peak_bytes
        if peak is None:
            return ["counted at the ends of phases: a peak within one is not seen"]
        where = memory.recorded_peak_phase and f" in {memory.recorded_peak_phase}"
        return [f"the allocator's peak{where} was {format_bytes(peak)}: `inspect` its snapshot"]
    if memory.is_state:
        return [memory.missing.get("peak_allocated_bytes", "")]
    if memory.baseline_blocks:
        count, baseline = memory.baseline_blocks, format_bytes(memory.baseline_bytes)
        blocks = "block is" if count == 1 else "blocks are"
        why = "it started late, or its event buffer overflowed"
        if memory.ring_overflowed is not None:
            why = "its ring overflowed" if memory.ring_overflowed else "it started late"
        why = "" if memory.events_dropped else f" ({why})"
        notes.append(f"{count:,} {blocks} older than the recording: {baseline}{why}")
    if memory.peak_reserved_bytes is not None and (
        memory.peak_reserved_bytes < memory.peak_allocated_bytes
    ):
        notes.append("reserved memory is only known at the end")
    if memory.events_dropped:
        notes.append(f"the event buffer overflowed: the first {memory.events_dropped:,} are lost")
    if memory.ring_overflowed:
        size = f" of {memory.ring_events:,} events" if memory.ring_events else " of events"
        notes.append(
            f"by the file the ring{size} overflowed: the oldest are lost, and an earlier peak "
            "would be unknown"
        )
    return notes


def peak_place(memory: Memory) -> str:
    """``in forward``, or ``between A and B``; empty if unknown."""
    place = memory.peak_phase
    return place if not place or place.startswith(OUTSIDE) else f"in {place}"


OUTSIDE = ("between ", "before ", "after ")
"""Beginnings of a place outside all annotations."""


def devices_text(memory: Memory) -> list[str]:
    """``device 1``, and the bytes of the others; empty for a run."""
    if memory.device is None:
        return []
    others = [
        f"{row.device} ({format_bytes(row.peak_allocated_bytes)})"
        for row in memory.devices
        if not row.is_described
    ]
    several = "other devices" if len(others) > 1 else "other device"
    return [f"device {memory.device}", *([f"{several}: {', '.join(others)}"] if others else [])]


def devices_table(memory: Memory) -> Table:
    """One row per device of the snapshot."""
    return tabulate(
        memory.devices,
        "device",
        Column("events", about="allocations and frees in the recording"),
        "peak_allocated_bytes",
        Column("peak_reserved_bytes", about="highest number of reserved bytes"),
        Column("end_allocated_bytes", about="bytes held by tensors at the end"),
        "baseline_bytes",
        Column("baseline_blocks", about="blocks older than the recording"),
        Column("is_described", about="true for the device of the other tables"),
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
        Column[str]("name", lambda name: name),
        Column(
            "peak_bytes",
            lambda name: at_peak.get(name, 0),
            heading="bytes" if memory.is_state else "",
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
        name="ledger",
        title=f"Memory ledger: bytes {memory.moment}"
        + ("" if memory.is_state else f" of {memory.whole}"),
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
        "name",
        Column("bytes", about="bytes that the driver counts"),
        Column("share", lambda row: row.bytes / total),
        *map(instant_column, others),
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
        Column("instant", about="moment in the step"),
        Column(
            "pool",
            "pool.name",
            about="pool of the allocator: ordinary, private, or of a CUDA graph",
        ),
        Column("reserved_bytes", "pool.reserved_bytes"),
        Column("allocated_bytes", "pool.allocated_bytes"),
        Column("free_bytes", "pool.free_bytes", about="reserved bytes that are not in use"),
        Column("largest_free_bytes", "pool.largest_free_bytes", about="largest free piece"),
        Column("largest_share", about="largest free piece over all free"),
        name="pools",
        title="Allocator pools: a request above the largest free piece needs more memory",
    )


def reconciliation_table(memory: Memory) -> Table:
    """Each row of the predicted ledger against measured bytes; then library memory and the peak."""
    return tabulate(
        memory.reconciliation,
        "name",
        Column("predicted_bytes", about="bytes by the closed form or the dry run"),
        Column("measured_bytes", about="bytes found by the memory pass"),
        "error",
        name="reconciliation",
        title="Predicted against measured, at the peak",
    )


def resident_table(memory: Memory) -> Table:
    """Closed forms against the measured peak; ``is_the_peak`` marks the match."""
    named = memory.resident_set or "none of these"
    return tabulate(
        memory.closed_forms,
        Column("form", "name", about="parts that the sum counts"),
        Column("bytes", about="bytes of the closed form"),
        "error",
        Column(
            "is_the_peak",
            lambda form: form.name == memory.resident_set,
            about="true for the sum nearest to the measured peak, within 25 %",
        ),
        Column("meaning", about="what the sum includes"),
        name="resident",
        title=f"What was resident: {named} · P weights, A saved for backward, C autocast's copies",
    )


def module_table(memory: Memory) -> Table:
    return tabulate(
        memory.modules,
        "module",
        "parameter_bytes",
        "gradient_bytes",
        "optimizer_bytes",
        "activation_bytes",
        name="modules",
        title="Memory by module, own and children's",
    )
