"""Describe the memory of a recording that ended with a failed request."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from sysbench.core.memory.allocations import (
    NEVER,
    AllocationHistory,
    Notes,
    PhaseMark,
    join_clocks,
    replay_allocations,
)
from sysbench.core.memory.block import (
    LARGEST,
    ORIGINS,
    Recording,
    draw_timeline,
    largest_alive,
    origins_alive,
)
from sysbench.core.memory.history import History, OomEvent, pair
from sysbench.core.record.memory import RESIDUAL, OomSnapshot
from sysbench.core.record.record import LedgerRow

NOT_SEEN = "torch recorded no failed request: this is the memory peak of the phase"


def snapshot_at_oom(recording: Recording, notes: Notes) -> OomSnapshot:
    """Describe the memory up to the failed request that ended a recording."""
    history, notes, _ = join_clocks(recording.history, notes)
    refusal = recording.refusal
    allocated_bytes = recording.counters.end_allocated
    count = _peak_instant(history, notes) if refusal is None else history.instant(refusal.time_ns)
    allocations = _replay_until(history, count, notes, refusal)
    live_bytes = int(allocations.live[count])
    ledger = [row for row in allocations.rows_at(count) if row.bytes]
    if allocated_bytes is not None and allocated_bytes != live_bytes:
        ledger.append(LedgerRow(RESIDUAL, allocated_bytes - live_bytes))
    step = notes.phases[-1].step
    span = allocations.span(step) if step in notes.steps else (0, count)
    refused_ns = allocations.notes.phases[-1].time_ns
    modules = [mark.module for mark in notes.modules if mark.time_ns <= refused_ns]
    is_exact = refusal is not None and recording.source == "cuda-snapshot"
    return OomSnapshot(
        requested_bytes=refusal.bytes if refusal and is_exact else None,
        op=refusal.op if refusal else None,
        module=modules[-1] if modules else None,
        free_bytes=_free_bytes(recording, live_bytes),
        ledger=ledger,
        origins=origins_alive(allocations, count, ORIGINS),
        largest=largest_alive(allocations, count, LARGEST),
        timeline=draw_timeline(allocations, *span),
        refused_ms=allocations.since_start_ms(refused_ns),
        missing={} if refusal else {"op": NOT_SEEN},
    )


def _free_bytes(recording: Recording, live_bytes: int) -> int | None:
    if recording.free_at_end is None:
        return None
    lifetimes = pair(recording.history)
    at_end = int(lifetimes.curve(lifetimes.rounded)[-1])
    return max(0, recording.free_at_end - (live_bytes - at_end))


def _peak_instant(history: History, notes: Notes) -> int:
    lifetimes = pair(history)
    live = lifetimes.curve(lifetimes.rounded)
    first = history.instant(notes.phases[-1].time_ns)
    return first + int(np.argmax(live[first:]))


def _replay_until(
    history: History, count: int, notes: Notes, refusal: OomEvent | None
) -> AllocationHistory:
    """Replay the first ``count`` events, with the step still open.

    The replay ends the step at NEVER, so that live memory counts as a temporary of the step and not
    as kept between steps. The result of the failed product and its workspace cannot be
    distinguished, so both count as temporaries.
    """
    columns = ("time_ns", "address", "change", "stack", "product", "block")
    before = replace(history, **{name: getattr(history, name)[:count] for name in columns})
    step = notes.phases[-1].step
    last_ns = max(int(before.time_ns[-1]) if count else 0, notes.phases[-1].time_ns)
    allocations = replay_allocations(before, _end_step(notes, step, NEVER))
    return replace(
        allocations, notes=_end_step(notes, step, refusal.time_ns if refusal else last_ns)
    )


def _end_step(notes: Notes, step: int, time_ns: int) -> Notes:
    return msgspec.structs.replace(notes, phases=[*notes.phases, PhaseMark(time_ns, step, "")])
