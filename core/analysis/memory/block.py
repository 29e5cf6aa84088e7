"""The memory block of a record, from an allocator's history and the worker's notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from ...errors import DamagedFileError
from ...record.memory import DeviceMemory
from ...record.record import Memory
from ..memory_columns import columns_of, instants_of
from ..memory_timeline import draw_timeline
from ..notes import Notes
from ..origins import origins_alive
from ..predicted_rows import rows_as_predicted
from ..refusal import Refusal
from ..segments import Segments
from .card import CardReading
from .history import History, pair
from .lists import largest_alive, module_table
from .residents import replay
from .snapshot import Snapshot

LARGEST = 50
ORIGINS = 200
NO_STEPS = "a foreign recording does not mark steps and phases"
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
        refusal: The last time that the allocator had nothing to give; None if it always had.
        free_at_end: Bytes that a limit still left when the recording ended; None without one.
        missing: Why a value of the block is not there, by its name.
    """

    source: Literal["cuda-snapshot", "cpu-profiler"]
    history: History
    counters: Counters = field(default_factory=Counters)
    readings: Mapping[str, CardReading] = field(default_factory=dict)
    segments: Segments | None = None
    events_dropped: int = 0
    refusal: Refusal | None = None
    free_at_end: int | None = None
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
    first_step_peak = int(residents.live[instants["first step"]]) if notes.steps else None
    return Memory(
        source=recording.source,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=counters.peak_reserved,
        end_allocated_bytes=end_bytes if counters.end_allocated is None else counters.end_allocated,
        driver_used_bytes=sum(row.bytes for row in card) if card else None,
        baseline_bytes=int(residents.live[0]),
        baseline_blocks=int(np.count_nonzero(residents.allocations.born < 0)),
        peak_phase=residents.phase(peak, step),
        peak_ms=residents.time_ms(peak),
        first_step_peak_bytes=first_step_peak,
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
        missing=_missing(instants) | recording.missing,
    )


def _missing(instants: Mapping[str, int]) -> dict[str, str]:
    if "first step" not in instants:
        return dict.fromkeys(("first_step_peak_bytes", "peak_phase"), NO_STEPS)
    if "end of forward" not in instants:
        return {"columns.end of forward": NO_FORWARD_END}
    return {}


def describe_snapshot(snapshot: Snapshot, device: int | None = None) -> Memory:
    """Someone else's snapshot: the same tables for one of its devices, without owners.

    Args:
        device: Its number; without one, the busiest.

    Raises:
        DamagedFileError: An event of it cannot be read, or it has nothing of that device.
    """
    used = snapshot.used_devices
    if device is None:
        device = snapshot.busiest_device
    elif device not in used:
        known = ", ".join(map(str, used)) or "none"
        raise DamagedFileError(f"no device {device} in the snapshot, which has {known}")
    reserved = snapshot.peak_reserved_bytes(device) or None
    missing = {
        "driver_used_bytes": "a snapshot knows only what its allocator holds",
        "modules": "a snapshot does not say whose an allocation is",
    }
    if reserved is None:
        missing["peak_reserved_bytes"] = "the snapshot has no segments"
    recording = Recording(
        source="cuda-snapshot",
        history=snapshot.history(device),
        counters=Counters(peak_reserved=reserved),
        missing=missing,
    )
    memory = describe_memory(recording, Notes())
    if len(used) < 2:
        return memory
    devices = [_describe_device(snapshot, each, each == device) for each in used]
    return msgspec.structs.replace(memory, devices=devices)


def describe_profiled(history: History) -> Memory:
    """The CPU allocator's requests in someone's trace, without owners."""
    recording = Recording(
        source="cpu-profiler",
        history=history,
        missing={
            "peak_reserved_bytes": "the CPU allocator reserves nothing ahead",
            "driver_used_bytes": "a trace does not say what its process held",
            "modules": "a trace does not say whose an allocation is",
        },
    )
    return describe_memory(recording, Notes())


def _describe_device(snapshot: Snapshot, device: int, is_described: bool) -> DeviceMemory:
    history = snapshot.history(device)
    allocations = pair(history)
    live = allocations.curve(allocations.rounded(history.granule))
    return DeviceMemory(
        device=device,
        events=len(history),
        peak_allocated_bytes=int(live.max()),
        peak_reserved_bytes=snapshot.peak_reserved_bytes(device),
        end_allocated_bytes=int(live[-1]),
        baseline_bytes=int(live[0]),
        baseline_blocks=int(np.count_nonzero(allocations.born < 0)),
        is_described=is_described,
    )
