"""Tables of memory: ledger, card, modules, largest, out of memory, two runs side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypedDict

from ..analysis.memory.difference import MemoryDifference
from ..analysis.memory.oom import out_of_memory
from ..formatting import format_bytes
from ..record.memory import Allocation, DeviceMemory, Oom, Origin
from ..record.record import LedgerRow, Memory, Record
from .table import Table, facts


class _Columns(TypedDict):
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def memory_table(memory: Memory) -> Table:
    """The byte totals, each under its own name: none of them is "the" memory."""
    values = {
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "end_allocated_bytes": memory.end_allocated_bytes,
        "driver_used_bytes": memory.driver_used_bytes,
        "baseline_bytes": memory.baseline_bytes,
        "baseline_blocks": memory.baseline_blocks,
        "first_step_peak_bytes": memory.first_step_peak_bytes,
        "predicted_peak_bytes": memory.predicted_peak_bytes,
        "peak_phase": memory.peak_phase or None,
        "events": memory.events,
        "events_dropped": memory.events_dropped,
    }
    source = "CUDA allocator" if memory.source == "cuda-snapshot" else "CPU allocator"
    return facts("memory", f"Memory of {memory.whole}, {source}", values, memory.missing)


def recording_notes(memory: Memory) -> list[str]:
    """What a reader must know of the recording: what it does not reach."""
    notes = []
    if memory.baseline_blocks:
        count, held = memory.baseline_blocks, format_bytes(memory.baseline_bytes)
        blocks = "block is" if count == 1 else "blocks are"
        why = "" if memory.events_dropped else " (it began late, or its ring of events wrapped)"
        notes.append(f"{count:,} {blocks} older than the recording: {held}{why}")
    if memory.peak_reserved_bytes is not None and (
        memory.peak_reserved_bytes < memory.peak_allocated_bytes
    ):
        notes.append("what was reserved is known of the end alone")
    if memory.events_dropped:
        notes.append(f"the ring of events wrapped: the first {memory.events_dropped:,} are lost")
    if memory.devices:
        shown = next(one for one in memory.devices if one.is_described)
        busiest = shown.events == max(one.events for one in memory.devices)
        rank = "the busiest" if busiest else "not the busiest"
        notes.append(f"{len(memory.devices)} devices: this is number {shown.device}, {rank}")
    return notes


def devices_table(memory: Memory) -> Table:
    """Every device of a snapshot that has several."""
    columns = tuple(DeviceMemory.__struct_fields__)
    return Table(
        name="devices",
        title="Devices of the snapshot, each with its own peak: `inspect --device N` shows another",
        columns=columns,
        rows=tuple(tuple(getattr(one, name) for name in columns) for one in memory.devices),
    )


def ledger_table(memory: Memory) -> Table:
    """What is resident at the peak, and the same names at the other recorded instants.

    The rows of ``peak_bytes`` sum to the peak allocated.
    """
    instants = {"peak": memory.ledger} | {
        name: rows for name, rows in memory.columns.items() if name != "peak"
    }
    amounts = {name: _amounts(rows) for name, rows in instants.items()}
    names = dict.fromkeys(row.name for rows in instants.values() for row in rows)
    peak = memory.peak_allocated_bytes or 1
    return Table(
        name="ledger",
        title=f"Memory ledger: what is resident at the peak of {memory.whole}",
        columns=(
            *("name", "peak_bytes", "share"),
            *map(_bytes_column, list(instants)[1:]),
        ),
        rows=tuple(
            (
                name,
                amounts["peak"].get(name, 0),
                amounts["peak"].get(name, 0) / peak,
                *(amounts[instant].get(name) for instant in list(instants)[1:]),
            )
            for name in names
        ),
    )


def _amounts(rows: list[LedgerRow]) -> dict[str, int]:
    return {row.name: row.bytes for row in rows}


def _bytes_column(instant: str) -> str:
    """``end_of_forward_bytes``."""
    return f"{re.sub('[ -]', '_', instant)}_bytes"


def card_table(memory: Memory) -> Table:
    """From the allocator to what the driver reports; on the CPU, to the resident set.

    ``bytes`` are at the peak; the other columns are as in `ledger_table`, null where nothing
    was read.
    """
    whole = "the driver" if memory.source == "cuda-snapshot" else "the operating system"
    total = sum(row.bytes for row in memory.card) or 1
    others = [name for name in memory.card_columns if name != "peak"]
    amounts = {name: _amounts(rows) for name, rows in memory.card_columns.items()}
    return Table(
        name="card",
        title=f"Card ledger: from the allocator to what {whole} counts",
        columns=("name", "bytes", "share", *map(_bytes_column, others)),
        rows=tuple(
            (
                *(row.name, row.bytes, row.bytes / total),
                *(amounts[other].get(row.name) for other in others),
            )
            for row in memory.card
        ),
    )


def pools_table(memory: Memory) -> Table:
    """The caching allocator's pools at every instant: how much is free, and in what pieces."""
    return Table(
        name="pools",
        title="Allocator pools: a request larger than the largest free piece asks the driver",
        columns=(
            *("instant", "pool", "reserved_bytes", "allocated_bytes", "free_bytes"),
            *("largest_free_bytes", "largest_share"),
        ),
        rows=tuple(
            (
                *(instant, pool.name, pool.reserved_bytes, pool.allocated_bytes),
                *(pool.free_bytes, pool.largest_free_bytes),
                pool.largest_free_bytes / pool.free_bytes if pool.free_bytes else None,
            )
            for instant, pools in memory.pools.items()
            for pool in pools
        ),
    )


def reconciliation_table(memory: Memory) -> Table:
    """Every row of the predicted ledger beside what was measured when most bytes of tensors were
    alive; then what libraries added to that, and the peak."""
    return Table(
        name="reconciliation",
        title="Predicted against measured, at the peak",
        columns=("name", "predicted_bytes", "measured_bytes", "error"),
        rows=tuple(
            (row.name, row.predicted_bytes, row.measured_bytes, row.error)
            for row in memory.reconciliation
        ),
    )


def resident_table(memory: Memory) -> Table:
    """The closed forms beside the measured peak; the one that it is made of says so."""
    named = memory.resident_set or "none of these"
    return Table(
        name="resident",
        title=f"What was resident: {named} · P weights, A saved for backward, C autocast's copies",
        columns=("form", "bytes", "error", "is_the_peak", "meaning"),
        rows=tuple(
            (form.name, form.bytes, form.error, form.name == memory.resident_set, form.meaning)
            for form in memory.closed_forms
        ),
    )


def module_table(memory: Memory) -> Table:
    """Bytes by module, own and children's."""
    kinds = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
    return Table(
        name="modules",
        title="Memory by module, own and children's",
        columns=("module", *kinds),
        rows=tuple((row.module, *(getattr(row, kind) for kind in kinds)) for row in memory.modules),
    )


def origins_table(memory: Memory) -> Table:
    """What is alive at the peak by the stack that asked for it, innermost frame first."""
    return Table(
        name="origins",
        title="Alive at the peak, by category, phase and stack (bytes as requested)",
        **origin_columns(memory.origins),
    )


def origin_columns(origins: Sequence[Origin]) -> _Columns:
    """Columns and rows of a table of origins."""
    return _beside_blocks(
        ("bytes", "blocks", "category", "phase", "stack"),
        [
            (row.bytes, row.blocks, row.category, row.phase, " < ".join(row.stack))
            for row in origins
        ],
        [row.block_bytes for row in origins],
    )


def largest_table(memory: Memory) -> Table:
    """The largest allocations alive at the peak, innermost frame first."""
    return Table(
        name="largest",
        title="Largest allocations alive at the peak",
        **largest_columns(memory.largest),
    )


def largest_columns(
    largest: Sequence[Allocation], times: tuple[str, ...] = ("born_ms", "died_ms")
) -> _Columns:
    """Columns and rows of a table of allocations."""
    rows = sorted(largest, key=lambda row: -row.bytes)
    columns = ("bytes", "category", "phase", "module", *times)
    return _beside_blocks(
        (*columns, "stack"),
        [(*(getattr(row, name) for name in columns), " < ".join(row.stack)) for row in rows],
        [row.block_bytes for row in rows],
    )


def _beside_blocks(
    columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]], held: Sequence[int | None]
) -> _Columns:
    """With the blocks' bytes beside those requested, the first column, where they are known."""
    if all(one is None for one in held):
        return {"columns": columns, "rows": tuple(rows)}
    return {
        "columns": ("bytes", "block_bytes", *columns[1:]),
        "rows": tuple((row[0], one, *row[1:]) for row, one in zip(rows, held, strict=True)),
    }


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
