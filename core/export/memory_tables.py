"""The memory pass as tables: totals, ledgers that close, who holds what."""

from __future__ import annotations

from ..record import LedgerRow, Memory
from .table import Table, facts


def memory_table(memory: Memory) -> Table:
    """The byte totals, each under its own name: none of them is "the" memory."""
    values = {
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "end_allocated_bytes": memory.end_allocated_bytes,
        "driver_used_bytes": memory.driver_used_bytes,
        "baseline_bytes": memory.baseline_bytes,
        "first_step_peak_bytes": memory.first_step_peak_bytes,
        "predicted_peak_bytes": memory.predicted_peak_bytes,
        "peak_phase": memory.peak_phase,
        "events": memory.events,
        "events_dropped": memory.events_dropped,
    }
    source = "CUDA allocator" if memory.source == "cuda-snapshot" else "CPU allocator"
    return facts("memory", f"Memory of one steady step, {source}", values, memory.missing)


def ledger_table(memory: Memory) -> Table:
    """What is resident at the peak, and the same names at the other recorded instants.

    The rows of ``peak_bytes`` sum to the peak allocated.
    """
    instants = {"peak": memory.ledger} | {
        name: rows for name, rows in memory.columns.items() if name != "peak"
    }
    amounts = {name: {row.name: row.bytes for row in rows} for name, rows in instants.items()}
    names = dict.fromkeys(row.name for rows in instants.values() for row in rows)
    peak = memory.peak_allocated_bytes or 1
    return Table(
        name="ledger",
        title="Memory ledger: what is resident at the peak of a steady step",
        columns=(
            *("name", "peak_bytes", "share"),
            *(f"{name.replace(' ', '_')}_bytes" for name in list(instants)[1:]),
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


def card_table(memory: Memory) -> Table:
    """From the allocator to what the driver reports; on the CPU, to the resident set."""
    whole = "the driver" if memory.source == "cuda-snapshot" else "the operating system"
    title = f"Card ledger: from the allocator to what {whole} counts"
    return _ledger("card", title, memory.card)


def _ledger(name: str, title: str, rows: list[LedgerRow]) -> Table:
    total = sum(row.bytes for row in rows) or 1
    return Table(
        name=name,
        title=title,
        columns=("name", "bytes", "share"),
        rows=tuple((row.name, row.bytes, row.bytes / total) for row in rows),
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


def largest_table(memory: Memory) -> Table:
    """The largest allocations alive at the peak, innermost frame first."""
    return Table(
        name="largest",
        title="Largest allocations alive at the peak",
        columns=("bytes", "category", "phase", "module", "born_ms", "died_ms", "stack"),
        rows=tuple(
            (
                *(row.bytes, row.category, row.phase, row.module, row.born_ms, row.died_ms),
                " < ".join(row.stack),
            )
            for row in sorted(memory.largest, key=lambda row: -row.bytes)
        ),
    )
