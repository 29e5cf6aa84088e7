"""The memory block of a record, from an allocator's history and the worker's notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ..record import Memory
from .allocations import History
from .card import CardReading
from .ledger import replay
from .memory_columns import columns_of, instants_of
from .memory_tables import largest_alive, module_table
from .memory_timeline import draw_timeline
from .notes import Notes
from .origins import origins_alive
from .reconcile import rows_as_predicted
from .segments import Segments
from .snapshot import Snapshot

LARGEST = 50
ORIGINS = 200
NO_FORWARD_END = "compiled code is one call: where its forward ends is not seen from outside"


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
        readings: Of the device, or of the process on the CPU, by the column they belong to.
        segments: What the caching allocator held of the device; None where there is none.
        events_dropped: Events that the allocator's ring had no room for.
        missing: Why a value of the block is not there, by its name.
    """

    source: Literal["cuda-snapshot", "cpu-profiler"]
    history: History
    counters: Counters = field(default_factory=Counters)
    readings: Mapping[str, CardReading] = field(default_factory=dict)
    segments: Segments | None = None
    events_dropped: int = 0
    missing: dict[str, str] = field(default_factory=dict)

    def blocks(self) -> dict[str, int]:
        """What the counters say the allocator had handed out, by column."""
        read = {name: reading.allocated for name, reading in self.readings.items()}
        read["peak"] = self.counters.peak_allocated
        return {name: count for name, count in read.items() if count is not None}


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
    step = notes.steps[-1] if notes.steps else None
    steady = residents.span(step)
    instants = instants_of(residents)
    peak = instants["peak"]
    columns = columns_of(residents, recording.readings, recording.blocks(), recording.segments)
    ledger, card = columns.ledger["peak"], columns.card.get("peak", [])
    peak_bytes = sum(row.bytes for row in ledger)
    end_bytes = int(residents.live[steady[1]])
    missing = {} if "end of forward" in instants else {"columns.end of forward": NO_FORWARD_END}
    return Memory(
        source=recording.source,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=counters.peak_reserved,
        end_allocated_bytes=end_bytes if counters.end_allocated is None else counters.end_allocated,
        driver_used_bytes=sum(row.bytes for row in card) if card else None,
        baseline_bytes=int(residents.live[0]),
        peak_phase=residents.phase(peak, step),
        peak_ms=residents.time_ms(peak),
        first_step_peak_bytes=int(residents.live[instants.get("first step", peak)]),
        ledger=ledger,
        card=card,
        columns=columns.ledger,
        card_columns=columns.card,
        pools=columns.pools,
        peak_as_predicted=rows_as_predicted(residents, peak, peak_bytes),
        modules=module_table(residents, *steady),
        largest=largest_alive(residents, peak, LARGEST),
        origins=origins_alive(residents, peak, ORIGINS),
        timeline=draw_timeline(residents, *steady),
        events=len(history),
        events_dropped=recording.events_dropped,
        step_ms=step_ms,
        missing=(missing if notes.steps else {}) | recording.missing,
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
