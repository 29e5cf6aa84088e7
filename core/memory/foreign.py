"""Build the memory block of an imported file: a snapshot, or a trace with memory requests."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import format_bytes
from sysbench.core.memory.allocations import Notes
from sysbench.core.memory.block import NO_COUNTER, Recording, describe_memory
from sysbench.core.memory.history import Counters, History, pair
from sysbench.core.memory.snapshot_reading import Snapshot
from sysbench.core.record.memory import DeviceMemory
from sysbench.core.record.record import Finding, Memory

FREED_BLOCKS = (
    "blocks in use at the end have the file's sizes; for blocks freed earlier a snapshot has only "
    "the request, which is rounded up"
)
NO_HISTORY = (
    "nothing was recorded: this is the state when the snapshot was taken, and its peak is unknown"
)
NO_ANNOTATIONS = "the snapshot has no annotations, as of record_function or an optimizer"
UNREAD_ANNOTATIONS = "the annotations of the snapshot cannot be read"
NOT_JOINED = "the memory of a trace is not joined with its annotations"
MAX_TIME_SLACK_NS = 1_000_000
"""By which an event may be earlier than the one before it; threads read different clocks."""


def describe_snapshot(snapshot: Snapshot, device: int | None = None) -> Memory:
    """Build the memory block of one device of an imported snapshot, without owners.

    Raises DamagedFileError: an event cannot be read, or the device is not in the file.
    """
    used = snapshot.used_devices
    if device is None:
        device = snapshot.default_device
    elif used and device not in used:
        numbers = ", ".join(map(str, used))
        raise DamagedFileError(f"no device {device} in the snapshot, which has {numbers}")
    reserved = snapshot.peak_reserved_bytes(device) or None
    missing = {
        "driver_used_bytes": "a snapshot contains only the memory of its allocator",
        "modules": "a snapshot does not record the owner of an allocation",
        "residual_bytes": "a snapshot has no counter of the peak",
    }
    if reserved is None:
        missing["peak_reserved_bytes"] = "the snapshot has no segments"
    history = snapshot.history(device)
    if len(history):
        missing["block_bytes"] = FREED_BLOCKS
    else:
        missing["peak_allocated_bytes"] = NO_HISTORY
        missing |= dict.fromkeys(("first_step_peak_bytes", "peak_phase"), "nothing was recorded")
    if len(history) and not history.ranges:
        is_unread = snapshot.annotations is None
        missing["peak_phase"] = UNREAD_ANNOTATIONS if is_unread else NO_ANNOTATIONS
    if not history.time_ns[history.time_ns > 1000].size:
        missing["times"] = "the snapshot has no times of its events"
    end_allocated = snapshot.end_allocated_bytes(device)
    counters = snapshot.counted_allocated_bytes(device)
    if counters is not None and counters != end_allocated:
        missing["allocated_size"] = (
            f"its segments say that {format_bytes(counters)} were allocated at the end, their "
            f"blocks {format_bytes(end_allocated or 0)}: the file was edited, block sizes are used"
        )
    found = contradictions(snapshot, device)
    if found:
        missing["events"] = f"events and segments contradict each other: {'; '.join(found.words)}"
    recording = Recording(
        source="cuda-snapshot",
        history=history,
        counters=Counters(
            peak_reserved=reserved,
            end_allocated=end_allocated,
            end_in_use=snapshot.end_in_use_bytes(device),
        ),
        device=device,
        refused=snapshot.refused_instant(device),
        missing=missing,
    )
    memory = msgspec.structs.replace(
        describe_memory(recording, Notes()),
        ring_events=snapshot.ring_events,
        ring_overflowed=snapshot.is_overflowed,
    )
    if found and memory.peak_allocated_bytes > (reserved or 0):
        why = {"peak_reserved_bytes": "events and segments contradict each other"}
        memory = msgspec.structs.replace(
            memory, peak_reserved_bytes=None, missing=memory.missing | why
        )
    if len(used) < 2:
        return memory
    devices = [_describe_device(snapshot, number, number == device) for number in used]
    return msgspec.structs.replace(memory, devices=devices)


class Contradictions(NamedTuple):
    """Requested bytes in use at the end by events and by segments, and a clause for each
    difference."""

    events_bytes: int
    segments_bytes: int
    words: list[str]


def contradictions(snapshot: Snapshot, device: int) -> Contradictions | None:
    """Compare the events of a device with each other and with its segments; None if they agree.

    Events that were overwritten at the beginning are no contradiction; lost ones in the middle,
    another order, or files that were merged are.
    """
    history = snapshot.history(device)
    if not len(history):
        return None
    order = np.argsort(history.address, kind="stable")
    address, taken = history.address[order], history.change[order] > 0
    is_last = np.append(np.diff(address) != 0, True)
    in_use, sizes = dict(history.survivors), history.end_blocks
    by_events = {
        start: size
        for start, size in zip(
            address[is_last & taken].tolist(),
            history.change[order][is_last & taken].tolist(),
            strict=True,
        )
    }
    freed = set(address[is_last & ~taken].tolist())
    again = int(np.count_nonzero((taken[1:] == taken[:-1]) & ~is_last[:-1]))
    steps_ns = np.diff(snapshot.events[device].time_us) * 1000
    counts = {
        "blocks taken or freed twice": again,
        "events earlier than the one before": int((steps_ns < -MAX_TIME_SLACK_NS).sum()),
    }
    if snapshot.has_segments(device):
        counts |= {
            "blocks taken, never freed, and in no segment": len(by_events.keys() - in_use.keys()),
            "blocks freed and still in use": len(freed & in_use.keys()),
            "blocks of another size": sum(
                # torch 2.0 has no size of the request, only that of the block.
                in_use.get(start, size) not in (size, sizes.get(start))
                or sizes.get(start, size) < size
                for start, size in by_events.items()
            ),
        }
    words = [f"{what}: {count:,}" for what, count in counts.items() if count]
    if not words:
        return None
    untouched = sum(
        size for start, size in in_use.items() if start not in by_events and start not in freed
    )
    return Contradictions(untouched + sum(by_events.values()), sum(in_use.values()), words)


def describe_counted(history: History, counters: Counters) -> tuple[Memory, Finding | None]:
    """Build the memory block of a GPU's requests in a trace, with its counters.

    Counters that contradict the requests are left out, and a finding says so.
    """
    lifetimes = pair(history)
    live = lifetimes.curve(lifetimes.blocks)
    peak, end = int(live.max()), int(live[-1])
    counted_peak, counted_end = counters.peak_allocated or 0, counters.end_allocated or 0
    missing = {
        "driver_used_bytes": "a trace does not record the memory of its process",
        "modules": "a trace does not record the owner of an allocation",
        "peak_phase": NOT_JOINED,
        "baseline_blocks": "the trace has only the total of memory allocated before it",
    }
    finding = None
    if (peak, end) != (counted_peak, counted_end):
        counters = Counters()
        missing["residual_bytes"] = missing["peak_reserved_bytes"] = (
            "the file's counters contradict its requests"
        )
        finding = Finding(
            "health-counters",
            "warning",
            f"The file's counters of memory contradict its requests: {format_bytes(peak)} at the "
            f"peak and {format_bytes(end)} at the end by requests, "
            f"{format_bytes(counted_peak)} and {format_bytes(counted_end)} by "
            "counters. The tables are of the requests.",
            "Requests are missing, doubled or out of order, or the counters are of another "
            "allocator.",
            "",
            {
                **{"peak_bytes": peak, "end_bytes": end},
                **{"counted_peak_bytes": counted_peak, "counted_end_bytes": counted_end},
            },
        )
    recording = Recording(
        source="cuda-profiler", history=history, counters=counters, missing=missing
    )
    memory = describe_memory(recording, Notes())
    return msgspec.structs.replace(memory, baseline_blocks=0), finding


def describe_profiled(history: History) -> Memory:
    recording = Recording(
        source="cpu-profiler",
        history=history,
        missing={
            "peak_reserved_bytes": "the CPU allocator reserves nothing ahead",
            "driver_used_bytes": "a trace does not record the memory of its process",
            "modules": "a trace does not record the owner of an allocation",
            "peak_phase": NOT_JOINED,
            "residual_bytes": NO_COUNTER,
        },
    )
    return describe_memory(recording, Notes())


def _describe_device(snapshot: Snapshot, device: int, is_described: bool) -> DeviceMemory:
    history = snapshot.history(device)
    lifetimes = pair(history)
    live = lifetimes.curve(lifetimes.blocks)
    end_allocated = snapshot.end_allocated_bytes(device)
    return DeviceMemory(
        device=device,
        events=len(history),
        peak_allocated_bytes=int(live.max()),
        peak_reserved_bytes=snapshot.peak_reserved_bytes(device),
        end_allocated_bytes=int(live[-1]) if end_allocated is None else end_allocated,
        baseline_bytes=int(live[0]),
        baseline_blocks=int(np.count_nonzero(lifetimes.born == 0)),
        is_described=is_described,
    )
