"""What was resident when an allocator refused, from a recording of its events."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from ...record.memory import RESIDUAL, OomSnapshot
from ...record.record import LedgerRow
from .block import Recording
from .clock_join import joined
from .history import History, OomEvent, pair
from .lists import draw_timeline, largest_alive, origins_alive
from .owners import NEVER, Notes, PhaseMark
from .residents import Residents
from .residents import replay as replay_history

LARGEST = 50


ORIGINS = 200


NOT_SEEN = "no allocator of torch's saw a refusal: this is the fullest instant of the phase"


def snapshot_at_oom(recording: Recording, notes: Notes) -> OomSnapshot:
    """The ledger, the origins and the timeline up to the failed request that ended a recording.

    Args:
        notes: The worker's, up to the step that did not end.
    """
    history, notes, _ = joined(recording.history, notes)
    refusal = recording.refusal
    allocated_bytes = recording.counters.end_allocated
    count = (
        _fullest(history, notes) if refusal is None else history.last_before(refusal.time_ns) + 1
    )
    residents = _until(history, count, notes, refusal)
    ledger = [row for row in residents.rows(count) if row.bytes]
    if allocated_bytes is not None:
        beyond = allocated_bytes - int(residents.live[count])
        ledger += [LedgerRow(RESIDUAL, beyond)] if beyond else []
    step = notes.phases[-1].step
    span = residents.span(step) if step in notes.steps else (0, count)
    refused_ns = residents.notes.phases[-1].time_ns
    modules = [mark.module for mark in notes.modules if mark.time_ns <= refused_ns]
    is_exact = refusal is not None and recording.source == "cuda-snapshot"
    return OomSnapshot(
        requested_bytes=refusal.bytes if refusal and is_exact else None,
        op=refusal.op if refusal else None,
        module=modules[-1] if modules else None,
        free_bytes=_free(recording, int(residents.live[count])),
        ledger=ledger,
        origins=origins_alive(residents, count, ORIGINS),
        largest=largest_alive(residents, count, LARGEST),
        timeline=draw_timeline(residents, *span),
        refused_ms=residents.since_start_ms(refused_ns),
        missing={} if refusal else {"op": NOT_SEEN},
    )


def _free(recording: Recording, live_bytes: int) -> int | None:
    """Free bytes at the failed request: those at the end, less those freed in between."""
    if recording.free_at_end is None:
        return None
    allocations = pair(recording.history)
    at_end = int(allocations.curve(allocations.rounded(recording.history.granule))[-1])
    return max(0, recording.free_at_end - (live_bytes - at_end))


def _fullest(history: History, notes: Notes) -> int:
    """Count of events up to the most live bytes since the last phase began.

    Element i of the curve is the state after i events, so that its index is the count.
    """
    allocations = pair(history)
    live = allocations.curve(allocations.rounded(history.granule))
    first = history.last_before(notes.phases[-1].time_ns) + 1
    return first + int(np.argmax(live[first:]))


def _until(history: History, count: int, notes: Notes, refusal: OomEvent | None) -> Residents:
    """The residents after the first ``count`` events, the step still open.

    The replay ends the step at NEVER: memory still alive is a temporary of the step, which
    would have freed it, and not kept between steps. Of what the refused product itself had
    taken, its result would have outlived it and its workspace would not: they cannot be told
    apart, and both are temporaries.
    """
    columns = ("time_ns", "address", "change", "stack", "product", "block")
    before = replace(history, **{name: getattr(history, name)[:count] for name in columns})
    step = notes.phases[-1].step
    last_ns = max(int(before.time_ns[-1]) if count else 0, notes.phases[-1].time_ns)
    residents = replay_history(before, _ended(notes, step, NEVER))
    return replace(residents, notes=_ended(notes, step, refusal.time_ns if refusal else last_ns))


def _ended(notes: Notes, step: int, time_ns: int) -> Notes:
    return msgspec.structs.replace(notes, phases=[*notes.phases, PhaseMark(time_ns, step, "")])
