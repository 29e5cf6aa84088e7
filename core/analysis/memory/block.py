"""The memory block of a record, from an allocator's history and the notes of the worker.

Every recorded instant is one column of the ledger, of the card and of the pools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from ...estimate.closed_form import ROWS
from ...record.memory import (
    LIBRARY_WORKSPACE,
    RESIDUAL,
    Pool,
)
from ...record.record import LedgerRow, Memory
from ..trace.names import LOSS
from .card import CardReading, Segments, card_rows
from .clock_join import joined
from .history import History, OomEvent
from .lists import draw_timeline, largest_alive, module_table, origins_alive
from .owners import Notes
from .predicted import NOT_PREDICTED
from .residents import HELD_BY_GRAPHS, Residents, replay
from .residents import UNSPLIT as UNSPLIT

LAST_READING = "steady end"
"""The reading that stands for instants without one, on a device: within a step only the bytes
that the allocator reserves change, and its events give those."""


class Columns(NamedTuple):
    """By the column's name: the ledger's rows, the card's, and the allocator's pools."""

    ledger: dict[str, list[LedgerRow]]
    card: dict[str, list[LedgerRow]]
    pools: dict[str, list[Pool]]


def instants_of(residents: Residents) -> dict[str, int]:
    """The instants with a column, in order of time; without steps the peak and the end alone."""
    steps: list[int | None] = [*residents.notes.steps] or [None]
    first, steady = residents.span(steps[0]), residents.span(steps[-1])
    peak = residents.peak(*steady)
    if steps[-1] is None:
        return {"peak": peak, "end": steady[1]}
    forward_end_ns = residents.notes.forward_end_ns(steps[-1])
    return {
        "after build": first[0],
        "first step": residents.peak(*first),
        "after warm-up": steady[0],
        **({} if forward_end_ns is None else {"end of forward": residents.instant(forward_end_ns)}),
        "peak": peak,
        "steady end": steady[1],
    }


def columns_of(
    residents: Residents,
    readings: Mapping[str, CardReading],
    blocks: Mapping[str, int],
    segments: Segments | None,
) -> Columns:
    """The columns of every instant that the recording supports.

    Args:
        readings: Of the device or process, by column.
        blocks: Bytes handed out by the allocator's counters, where they were read: what the
            replayed events do not explain of them is the residual.
        segments: Of the caching allocator, where there is one.
    """
    columns = Columns({}, {}, {})
    for name, instant in instants_of(residents).items():
        rows = residents.rows(instant)
        if name in blocks:
            handed_out = int(residents.live[instant]) - residents.held(instant)
            rows.append(LedgerRow(RESIDUAL, blocks[name] - handed_out))
        columns.ledger[name] = rows
        reading = readings.get(name)
        if segments is not None:
            columns.pools[name] = _pools(residents, instant, segments)
            reserved_bytes = segments.reserved_bytes(residents.time_ns(instant))
            reading = (reading or readings.get(LAST_READING, CardReading())).with_reserved(
                reserved_bytes
            )
        if reading is not None:
            total = sum(row.bytes for row in rows)
            card = card_rows(total, reading, columns.pools.get(name, ()))
            if card:
                columns.card[name] = card
    return columns._replace(ledger=_without_empty_rows(columns.ledger))


def _with_graphs(residents: Residents, segments: Segments) -> Residents:
    """The residents with what the private pools of CUDA graphs reserve and do not hand out.

    The allocator sees no event while a graph is replayed: without this, a step that only replays
    would seem to need nothing.
    """
    allocations = residents.allocations
    is_private = segments.is_private(allocations.address)
    handed_out = allocations.curve(np.where(is_private, residents.blocks, 0))
    times_ns = np.append(residents.time_ns(0), residents.history.time_ns)
    held = np.maximum(segments.private_bytes(times_ns) - handed_out, 0)
    return residents.with_graphs(held)


def _pools(residents: Residents, instant: int, segments: Segments) -> list[Pool]:
    allocations = residents.allocations
    alive = allocations.alive_at(instant - 1)
    return segments.pools(
        residents.time_ns(instant), allocations.address[alive], residents.blocks[alive]
    )


def _without_empty_rows(columns: dict[str, list[LedgerRow]]) -> dict[str, list[LedgerRow]]:
    """Drop the rows that are zero in every column."""
    used = {row.name for rows in columns.values() for row in rows if row.bytes}
    return {name: [row for row in rows if row.name in used] for name, rows in columns.items()}


LARGEST = 50
ORIGINS = 200
NO_STEPS = "a foreign recording does not mark steps and phases"
INSIDE_GRAPHS = (
    "what is inside is not told apart: while a graph is replayed the allocator sees no event, so "
    "gradients, activations and temporaries in it are this one row"
)
NO_COUNTER = "the CPU allocator keeps no counter to hold the ledger against"
NOT_SOUNDED = "no allocation of known time joins the allocator's clock with another one"
NO_FORWARD_END = "compiled code is one call: where its forward ends is not seen from outside"


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The allocator's counters over the steady step, in bytes; None without any."""

    peak_allocated: int | None = None
    peak_reserved: int | None = None
    end_allocated: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The result of a recorder.

    Attributes:
        history: The allocator's events.
        counters: Of the steady step.
        readings: Of the device, or of the process on the CPU, by the column they belong to.
        segments: The caching allocator's segments; None where there is no such allocator.
        events_dropped: Events that the allocator's ring had no room for.
        refusal: The last request for which the allocator had no memory; None without any.
        free_at_end: Bytes that a limit still left when the recording ended; None without one.
        missing: Name of an absent value to the reason.
    """

    source: Literal["cuda-snapshot", "cuda-profiler", "cpu-profiler"]
    history: History
    counters: Counters = field(default_factory=Counters)
    readings: Mapping[str, CardReading] = field(default_factory=dict)
    segments: Segments | None = None
    events_dropped: int = 0
    refusal: OomEvent | None = None
    free_at_end: int | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def blocks(self) -> dict[str, int]:
        """Bytes that the allocator had handed out by its counters, by column."""
        read = {name: reading.allocated for name, reading in self.readings.items()}
        read["peak"] = self.counters.peak_allocated
        return {name: count for name, count in read.items() if count is not None}


def describe_memory(recording: Recording, notes: Notes, *, step_ms: float | None = None) -> Memory:
    """The memory block of a record.

    The last step of the notes is the steady one. Without steps, as in a foreign snapshot,
    the whole history stands for it.

    Events and rows are in requested bytes, CUDA's counters in blocks: the rounding of each
    request to the allocator's granule is a row, and so is the excess of a cached block that the
    allocator hands out and may not split, where the history has the blocks. What the counters have
    beyond all of that is the residual.
    """
    counters = recording.counters
    clocks = joined(recording.history, notes)
    history, notes = clocks.history, clocks.notes
    residents = replay(history, notes)
    if recording.segments is not None:
        residents = _with_graphs(residents, recording.segments)
    step = notes.steps[-1] if notes.steps else None
    steady = residents.span(step)
    instants = instants_of(residents)
    peak = instants["peak"]
    columns = columns_of(residents, recording.readings, recording.blocks(), recording.segments)
    ledger, card = columns.ledger["peak"], columns.card.get("peak", [])
    peak_bytes = sum(row.bytes for row in ledger)
    workspace_bytes = residents.added_by_library(*steady)
    end_bytes = int(residents.live[steady[1]])
    if counters.end_allocated is not None:
        end_bytes = counters.end_allocated + residents.held(steady[1])
    first_step_peak = int(residents.live[instants["first step"]]) if notes.steps else None
    return Memory(
        source=recording.source,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=counters.peak_reserved,
        end_allocated_bytes=end_bytes,
        peak_requested_bytes=_requested(residents, peak),
        end_requested_bytes=_requested(residents, steady[1]),
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
        library_workspace_bytes=workspace_bytes,
        residual_bytes=_residual(recording, residents, peak),
        clock_offset_us=clocks.offset_us,
        peak_as_predicted=rows_as_predicted(
            residents, residents.peak_of_tensors(*steady), peak_bytes - workspace_bytes
        ),
        modules=module_table(residents, *steady),
        largest=largest_alive(residents, peak, LARGEST),
        origins=origins_alive(residents, peak, ORIGINS),
        timeline=draw_timeline(residents, *steady),
        events=len(history),
        events_dropped=recording.events_dropped,
        step_ms=step_ms,
        missing=_missing(instants, residents)
        | recording.missing
        | ({} if clocks.offsets else {"clock_offset_us": NOT_SOUNDED}),
    )


def _requested(residents: Residents, instant: int) -> int:
    allocations = residents.allocations
    return int(allocations.bytes[allocations.alive_at(instant - 1)].sum())


def _residual(recording: Recording, residents: Residents, peak: int) -> int | None:
    """Bytes of the counted peak that the replayed events do not explain; None without a count."""
    counted = recording.counters.peak_allocated
    if counted is None:
        return None
    return counted - int(residents.live[peak]) + residents.held(peak)


def _missing(instants: Mapping[str, int], residents: Residents) -> dict[str, str]:
    missing = {}
    if HELD_BY_GRAPHS in residents.categories:
        missing[f"ledger.{HELD_BY_GRAPHS}"] = INSIDE_GRAPHS
    if "first step" not in instants:
        missing |= dict.fromkeys(("first_step_peak_bytes", "peak_phase"), NO_STEPS)
    elif "end of forward" not in instants:
        missing["columns.end of forward"] = NO_FORWARD_END
    return missing


LOGITS, TEMPORARIES = "logits and loss", "temporaries"


def rows_as_predicted(residents: Residents, instant: int, total: int) -> list[LedgerRow]:
    """The bytes alive at an instant in the rows of a prediction, without library workspace.

    Bytes of no such row, such as a workspace kept between steps or the rounding of blocks, make
    the last row, so that all sum to ``total``.
    """
    allocations, attribution = residents.allocations, residents.attribution
    amounts: Counter[str] = Counter()
    # Instant i follows event i - 1, and `alive_at` counts events.
    for index in np.flatnonzero(allocations.alive_at(instant - 1)).tolist():
        if attribution.category[index] != LIBRARY_WORKSPACE:
            name = _predicted_row(attribution.category[index], attribution.module[index])
            amounts[name] += int(allocations.bytes[index])
    amounts[NOT_PREDICTED] += total - amounts.total()
    return [LedgerRow(name, amounts[name]) for name in (*ROWS, NOT_PREDICTED) if amounts[name]]


def _predicted_row(category: str, module: str) -> str:
    is_passing = category.startswith(TEMPORARIES) or category == "activations"
    if category == "outputs" or (is_passing and module == LOSS):
        return LOGITS
    if category.startswith(TEMPORARIES):
        return TEMPORARIES
    return category if category in ROWS else NOT_PREDICTED
