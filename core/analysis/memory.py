"""The memory block of a record, from an allocator's history and the worker's notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ..record import LedgerRow, Memory
from .allocations import History
from .card import CardReading, card_rows
from .ledger import replay
from .memory_tables import largest_alive, module_table
from .memory_timeline import draw_timeline
from .notes import Notes
from .snapshot import Snapshot

LARGEST = 50
UNSPLIT = "blocks larger than asked for"


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What the allocator's own counters said of the steady step, in bytes; None without any."""

    peak_allocated: int | None = None
    peak_reserved: int | None = None
    end_allocated: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a recorder brought back.

    Attributes:
        history: The allocator's events.
        counters: Of the steady step.
        card: Read when the steady step was over.
        events_dropped: Events that the allocator's ring had no room for.
        missing: Why a value of the block is not there, by its name.
    """

    source: Literal["cuda-snapshot", "cpu-profiler"]
    history: History
    counters: Counters = field(default_factory=Counters)
    card: CardReading = field(default_factory=CardReading)
    events_dropped: int = 0
    missing: dict[str, str] = field(default_factory=dict)


def describe_memory(recording: Recording, notes: Notes, *, step_ms: float | None = None) -> Memory:
    """All that the record says of memory.

    The last step of the notes is the steady one. Without steps, as in a foreign snapshot,
    the whole history stands for it.

    Events and rows are in requested bytes, CUDA's counters in blocks: the rounding of each
    request to the allocator's granule is a row, and so is what a block holds beyond that,
    when the allocator hands out a cached one that it may not split.
    """
    history, counters = recording.history, recording.counters
    residents = replay(history, notes)
    steps: list[int | None] = [*notes.steps] or [None]
    first = residents.span(steps[0])
    steady = residents.span(steps[-1])
    peak = residents.peak(*steady)
    first_peak = residents.peak(*first)

    columns = {"peak": residents.rows(peak), "steady end": residents.rows(steady[1])}
    if notes.steps:
        before = {"after build": residents.rows(first[0]), "first step": residents.rows(first_peak)}
        columns = before | columns
    peak_bytes = int(residents.live[peak])
    if counters.peak_allocated is not None:
        columns["peak"].append(LedgerRow(UNSPLIT, counters.peak_allocated - peak_bytes))
        peak_bytes = counters.peak_allocated
    columns = _without_empty_rows(columns)

    end_bytes = int(residents.live[steady[1]])
    return Memory(
        source=recording.source,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=counters.peak_reserved,
        end_allocated_bytes=end_bytes if counters.end_allocated is None else counters.end_allocated,
        driver_used_bytes=recording.card.used,
        baseline_bytes=int(residents.live[0]),
        peak_phase=residents.phase(peak, steps[-1]),
        peak_ms=residents.time_ms(peak),
        first_step_peak_bytes=int(residents.live[first_peak]),
        ledger=columns["peak"],
        card=card_rows(peak_bytes, recording.card),
        columns=columns,
        modules=module_table(residents, *steady),
        largest=largest_alive(residents, peak, LARGEST),
        timeline=draw_timeline(residents, *steady),
        events=len(history),
        events_dropped=recording.events_dropped,
        step_ms=step_ms,
        missing=recording.missing,
    )


def describe_snapshot(snapshot: Snapshot) -> Memory:
    """Someone else's snapshot: the same tables for its busiest device, without owners.

    Raises:
        DamagedFileError: An event of it cannot be read.
    """
    device = snapshot.busiest_device
    recording = Recording(
        source="cuda-snapshot",
        history=snapshot.history(device),
        counters=Counters(peak_reserved=snapshot.peak_reserved_bytes(device)),
        missing={
            "driver_used_bytes": "a snapshot knows only what its allocator holds",
            "modules": "a snapshot does not say whose an allocation is",
        },
    )
    return describe_memory(recording, Notes())


def _without_empty_rows(columns: dict[str, list[LedgerRow]]) -> dict[str, list[LedgerRow]]:
    """Drop the rows that are zero in every column."""
    used = {row.name for rows in columns.values() for row in rows if row.bytes}
    return {name: [row for row in rows if row.name in used] for name, rows in columns.items()}
