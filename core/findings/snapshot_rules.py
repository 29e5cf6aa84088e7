"""Rules on an imported memory snapshot."""

from __future__ import annotations

from sysbench.core.formatting import format_bytes, short_path
from sysbench.core.memory.foreign import contradictions
from sysbench.core.memory.history import annotated_place
from sysbench.core.memory.snapshot_reading import Snapshot
from sysbench.core.record.record import Finding, Memory


def findings_of_snapshot(snapshot: Snapshot, memory: Memory) -> list[Finding]:
    """The request that ran out of memory, what contradicts itself, or that there is nothing."""
    if snapshot.is_empty:
        return [
            Finding(
                rule="file-empty-snapshot",
                severity="problem",
                verdict="The snapshot is empty: no memory was reserved and nothing was recorded.",
                why="PyTorch's allocator of that process held nothing on any GPU.",
                next="Take it in the process that uses the GPU, while its tensors are alive, and "
                "call torch.cuda.memory._record_memory_history() before.",
            )
        ]
    device = memory.device or 0
    found = (_failed_request(snapshot, memory, device), _contradiction(snapshot, device))
    return [finding for finding in found if finding is not None]


def _failed_request(snapshot: Snapshot, memory: Memory, device: int) -> Finding | None:
    failed = snapshot.failed_request(device)
    if failed is None:
        return None
    frame = failed.stack[0] if failed.stack else None
    where = f" at {short_path(frame.file)}:{frame.line} {frame.name}" if frame else ""
    of_device = f" on device {device}" if len(snapshot.used_devices) > 1 else ""
    free = "" if failed.free_bytes is None else f"{format_bytes(failed.free_bytes)} free, "
    unused = failed.reserved_bytes - failed.allocated_bytes
    callers = [f"{short_path(row.file)}:{row.line} {row.name}" for row in failed.stack[1:4]]
    around = annotated_place(snapshot.history(device).ranges, failed.time_us * 1000)
    others = [number for number in snapshot.refusals if number != device]
    sentences = (
        f"The allocator had reserved {format_bytes(failed.reserved_bytes)}, of which "
        f"{format_bytes(unused)} were unused.",
        f"Called from {' < '.join(callers)}." if callers else "",
        f"Annotation: {around}." if around else "",
        f"It is the last of {failed.failures} failed requests." if failed.failures > 1 else "",
        f"Requests failed on device {', '.join(map(str, others))}, too." if others else "",
        _fragmented(snapshot, device) if unused >= failed.bytes else "",
    )
    column = "in the column out of memory, " if "out of memory" in memory.columns else ""
    return Finding(
        rule="file-out-of-memory",
        severity="problem",
        verdict=f"Out of memory{of_device}: {format_bytes(failed.bytes)} requested{where}, "
        f"{free}{format_bytes(failed.allocated_bytes)} allocated.",
        why=" ".join(filter(None, sentences)),
        next=f"See what was alive then, {column}on the Memory tab or with --section memory.",
        numbers={
            **{"requested_bytes": failed.bytes, "allocated_bytes": failed.allocated_bytes},
            **{"reserved_bytes": failed.reserved_bytes, "device": device},
            **({} if failed.free_bytes is None else {"free_bytes": failed.free_bytes}),
        },
    )


def _fragmented(snapshot: Snapshot, device: int) -> str:
    """Say that no free piece was large enough, and what helps unless segments can grow already."""
    rows = [segment for segment in snapshot.segments if segment.device == device]
    remedy = (
        ""
        if any(row.is_expandable for row in rows)
        else (" Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.")
    )
    return f"More was unused than requested; no piece of it served the request.{remedy}"


def _contradiction(snapshot: Snapshot, device: int) -> Finding | None:
    found = contradictions(snapshot, device)
    if found is None:
        return None
    ends = (
        f"at the end {format_bytes(found.events_bytes)} are in use by the events, "
        f"{format_bytes(found.segments_bytes)} by the segments"
    )
    return Finding(
        rule="file-contradicts-itself",
        severity="problem",
        verdict="The events of this snapshot contradict "
        + (
            f"its segments: {ends}." if found.events_bytes != found.segments_bytes else "its state."
        ),
        why=f"{'; '.join(found.words).capitalize()}. Events are lost in the middle, not in order, "
        "or of several files.",
        next="Trust the end, not the peak. Record without interruption, and take the snapshot "
        "again.",
        numbers={
            **{"events_bytes": found.events_bytes, "segments_bytes": found.segments_bytes},
        },
    )
