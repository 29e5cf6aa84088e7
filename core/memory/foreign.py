"""Build the memory block of an imported file: a snapshot, or a trace with memory requests."""

from __future__ import annotations

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import format_bytes
from sysbench.core.memory.allocations import Notes
from sysbench.core.memory.block import NO_COUNTER, Counters, Recording, describe_memory
from sysbench.core.memory.history import History, pair
from sysbench.core.memory.profiled import CountedHistory
from sysbench.core.memory.snapshot_reading import Snapshot
from sysbench.core.record.memory import DeviceMemory
from sysbench.core.record.record import Finding, Memory

FREED_BLOCKS = (
    "blocks in use at the end have the file's sizes; for blocks freed earlier a snapshot has only "
    "the request, which is rounded up"
)


def describe_snapshot(snapshot: Snapshot, device: int | None = None) -> Memory:
    """Build the memory block of one device of an imported snapshot, without owners.

    Raises:
        DamagedFileError: An event cannot be read, or the device is not in the file.
    """
    used = snapshot.used_devices
    if device is None:
        device = snapshot.busiest_device
    elif device not in used:
        numbers = ", ".join(map(str, used)) or "none"
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
    if not history.time_ns[history.time_ns > 1000].size:
        missing["times"] = "the snapshot has no times of its events"
    end_allocated = snapshot.end_allocated_bytes(device)
    counted = snapshot.counted_allocated_bytes(device)
    if counted is not None and counted != end_allocated:
        missing["allocated_size"] = (
            f"its segments say that {format_bytes(counted)} were allocated at the end, their "
            f"blocks {format_bytes(end_allocated or 0)}: the file was edited, block sizes are used"
        )
    recording = Recording(
        source="cuda-snapshot",
        history=history,
        counters=Counters(peak_reserved=reserved, end_allocated=end_allocated),
        missing=missing,
    )
    memory = describe_memory(recording, Notes())
    if len(used) < 2:
        return memory
    devices = [_describe_device(snapshot, number, number == device) for number in used]
    return msgspec.structs.replace(memory, devices=devices)


def describe_counted(counted: CountedHistory) -> tuple[Memory, Finding | None]:
    """Build the memory block of a GPU's requests in a trace, with its counters.

    Counters that contradict the requests are left out, and a finding says so.
    """
    lifetimes = pair(counted.history)
    live = lifetimes.curve(lifetimes.blocks)
    peak, end = int(live.max()), int(live[-1])
    is_sound = (peak, end) == (counted.peak_allocated, counted.end_allocated)
    missing = {
        "driver_used_bytes": "a trace does not record the memory of its process",
        "modules": "a trace does not record the owner of an allocation",
        "baseline_blocks": "the trace has only the total of memory allocated before it",
    }
    finding = None
    if is_sound:
        counters = Counters(
            peak_allocated=counted.peak_allocated,
            peak_reserved=counted.peak_reserved,
            end_allocated=counted.end_allocated,
        )
    else:
        counters = Counters()
        missing["residual_bytes"] = missing["peak_reserved_bytes"] = (
            "the file's counters contradict its requests"
        )
        finding = Finding(
            "health-counters",
            "warning",
            f"The file's counters of memory contradict its requests: {format_bytes(peak)} at the "
            f"peak and {format_bytes(end)} at the end by requests, "
            f"{format_bytes(counted.peak_allocated)} and {format_bytes(counted.end_allocated)} by "
            "counters. The tables are of the requests.",
            "Requests are missing, doubled or out of order, or the counters are of another "
            "allocator.",
            "",
            {
                **{"peak_bytes": peak, "end_bytes": end},
                **{"counted_peak_bytes": counted.peak_allocated},
                **{"counted_end_bytes": counted.end_allocated},
            },
        )
    recording = Recording(
        source="cuda-profiler", history=counted.history, counters=counters, missing=missing
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
