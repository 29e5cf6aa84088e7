"""Build the memory block of a record from an allocator's history and the worker's notes.

Every recorded instant is one column of the ledger, of the process memory and of the pools.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from sysbench.core.memory.allocations import (
    HELD_BY_GRAPHS,
    UNKNOWN,
    AllocationHistory,
    Notes,
    join_clocks,
    replay_allocations,
)
from sysbench.core.memory.allocations import UNSPLIT as UNSPLIT
from sysbench.core.memory.card import CardReading, Segments, card_rows
from sysbench.core.memory.history import (
    Counters,
    History,
    Integers,
    OomEvent,
    annotated_place,
)
from sysbench.core.memory.predicted import rows_as_predicted
from sysbench.core.memory.step_memory import (
    described_step,
    growth_rows,
    measured_steps,
    stack_text,
    step_rows,
)
from sysbench.core.record.memory import (
    BEFORE_RECORDING,
    RESIDUAL,
    SMALLER,
    HeldMemory,
    Origin,
    Pool,
)
from sysbench.core.record.record import Allocation, LedgerRow, Memory, ModuleMemory, Timeline
from sysbench.core.trace.classify import WHOLE_MODEL


def largest_alive(allocations: AllocationHistory, instant: int, count: int) -> list[Allocation]:
    """The largest allocations alive at an instant, older ones first among equals."""
    alive = allocations.alive_at(instant)
    # The last key sorts first: by bytes, then by birth.
    order = np.lexsort((allocations.born[alive], -allocations.bytes[alive]))
    return [_describe(allocations, index) for index in alive[order][:count].tolist()]


def _describe(allocations: AllocationHistory, index: int) -> Allocation:
    died = int(allocations.died[index])
    blocks = allocations.shown_blocks
    return Allocation(
        bytes=int(allocations.bytes[index]),
        category=allocations.category[index],
        phase=allocations.phase[index],
        module=allocations.module[index],
        born_ms=allocations.time_ms(int(allocations.born[index])),
        died_ms=allocations.time_ms(died) if died < allocations.instants else None,
        stack=list(stack_text(allocations, int(allocations.stack[index]))),
        block_bytes=None if blocks is None else int(blocks[index]),
        metadata=_label(allocations, int(allocations.label[index])),
    )


def _label(allocations: AllocationHistory, label: int) -> str:
    return allocations.history.labels[label] if label >= 0 else ""


OWNED = ("parameters", "gradients", "optimizer state", "activations")


def module_rows(allocations: AllocationHistory, first: int, last: int) -> list[ModuleMemory]:
    """Bytes alive at some time between two instants, by module.

    A module's bytes include its children's; the first row is the whole model. Activations are all
    that its forward saved for backward, whether or not they are alive at the peak.
    """
    during = (allocations.born <= last) & (allocations.died > first)
    totals: dict[str, Counter[str]] = {}
    owned = [name for name in OWNED if name in allocations.categories]
    for index in np.flatnonzero(during).tolist() if owned else ():
        category = allocations.category[index]
        if category in owned:
            for path in containing_modules(allocations.module[index]):
                totals.setdefault(path, Counter())[category] += int(allocations.bytes[index])
    return [
        ModuleMemory(
            module=path,
            parameter_bytes=total["parameters"],
            gradient_bytes=total["gradients"],
            optimizer_bytes=total["optimizer state"],
            activation_bytes=total["activations"],
        )
        for path, total in totals.items()
    ]


def containing_modules(path: str) -> Iterable[str]:
    """Return the whole model, the parents of a path and the path, each once."""
    parts = path.split(".")
    containing = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return dict.fromkeys([WHOLE_MODEL, *containing])


MAX_FRAMES = 7
"""Number of frames that have a curve of their own."""
LINE_NUMBER = re.compile(r":\d+(?= )")


def _curves(allocations: AllocationHistory, peak: int) -> dict[str, Integers]:
    """Live bytes at each instant by category.

    In a recording without owners, those of the frames that hold the most at the peak: lines of
    code, or whole functions if the lines hold less than half.
    """
    curves = dict(allocations.categories)
    ownerless = [name for name in (UNKNOWN, BEFORE_RECORDING) if name in curves]
    if not ownerless or allocations.notes.phases:
        return curves
    is_of = {
        name: np.fromiter((each == name for each in allocations.category), dtype=np.bool_)
        for name in ownerless
    }
    with_stack = np.logical_or.reduce([*is_of.values()]) & (allocations.stack >= 0)
    lines = {
        stack: text[0]
        for stack in np.unique(allocations.stack[with_stack]).tolist()
        if (text := stack_text(allocations, stack))
    }
    alive = allocations.alive_at(peak)
    alive = alive[with_stack[alive]]
    held = list(
        zip(allocations.stack[alive].tolist(), allocations.bytes[alive].tolist(), strict=True)
    )
    for names in (lines, {stack: LINE_NUMBER.sub("", line) for stack, line in lines.items()}):
        totals: Counter[str] = Counter()
        for stack, count in held:
            if stack in names:
                totals[names[stack]] += count
        largest = dict(totals.most_common(MAX_FRAMES))
        if 2 * sum(largest.values()) >= totals.total():
            break
    for name in sorted(largest.keys() - curves.keys()):
        stacks = [stack for stack, its_name in names.items() if its_name == name]
        is_here = with_stack & np.isin(allocations.stack, stacks)
        curves[name] = allocations.curve(np.where(is_here, allocations.bytes, 0))
        for whole, is_part in is_of.items():
            part = allocations.curve(np.where(is_here & is_part, allocations.bytes, 0))
            curves[whole] = curves[whole] - part
    return curves


POINTS = 400


def draw_timeline(allocations: AllocationHistory, first: int, last: int) -> Timeline:
    """Sample at most POINTS instants, half of them between the two given ones.

    Each equal part of the events keeps its instant with the most live bytes, so peaks are never
    lost. Parts are of events, not of time, because building a model takes longer than a step.
    """
    # Half open ranges, and the number of points in each.
    ranges = (
        (0, first, POINTS // 4),
        (first, last + 1, POINTS // 2),
        (last + 1, allocations.instants, POINTS // 4),
    )
    instants = [
        allocations.peak(begin, end - 1)
        for start, stop, points in ranges
        # ``unique``: with fewer instants than points, edges coincide.
        for begin, end in pairwise(
            np.unique(np.linspace(start, stop, points + 1).astype(np.int64)).tolist()
        )
    ]
    return Timeline(
        t_ms=[allocations.time_ms(instant) for instant in instants],
        live_bytes=allocations.live[instants].tolist(),
        categories={
            name: curve[instants].tolist()
            for name, curve in _curves(allocations, allocations.peak(first, last)).items()
        },
        phases=[
            (
                mark.phase,
                allocations.since_start_ms(mark.time_ns),
                allocations.since_start_ms(after.time_ns),
            )
            for mark, after in pairwise(allocations.notes.phases)
            if mark.phase
        ],
    )


def origins_alive(
    allocations: AllocationHistory, instant: int, keep: int, *, by_size: bool = False
) -> list[Origin]:
    """The ``keep`` largest origins at an instant, and one for the rest; they sum to its bytes.

    Bytes are as requested. Stacks with the same text are one origin, unless sizes differ
    ``by_size``.
    """
    alive = allocations.alive_at(instant)
    blocks = allocations.shown_blocks
    of_blocks = (allocations.rounded if blocks is None else blocks)[alive]
    numbers = allocations.stack[alive].tolist()
    texts = {number: stack_text(allocations, number) for number in set(numbers)}
    sizes = zip(allocations.bytes[alive].tolist(), of_blocks.tolist(), strict=True)
    keys = [
        (
            allocations.category[index],
            allocations.phase[index],
            texts[stack],
            _label(allocations, label),
            size if by_size else (0, 0),
        )
        for index, stack, label, size in zip(
            alive.tolist(), numbers, allocations.label[alive].tolist(), sizes, strict=True
        )
    ]
    places = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    # One row an origin: bytes as requested, count, bytes of blocks.
    sums = np.zeros((len(places), 3), dtype=np.int64)
    amounts = (allocations.bytes[alive], np.ones(len(alive), dtype=np.int64), of_blocks)
    rows_of = np.array([places[key] for key in keys], dtype=np.int64)
    # ``add.at`` and not ``+=``: several allocations share a row.
    np.add.at(sums, rows_of, np.stack(amounts, axis=1))

    def origin(
        category: str, phase: str, stack: tuple[str, ...], metadata: str, parts: list[int]
    ) -> Origin:
        block_bytes = None if blocks is None else parts[2]
        return Origin(category, phase, parts[0], parts[1], list(stack), block_bytes, metadata)

    rows = sorted(zip(places, sums.tolist(), strict=True), key=lambda row: (-row[1][0], row[0]))
    origins = [origin(*key[:4], parts) for key, parts in rows[:keep]]
    if rows[keep:]:
        smaller = [sum(column) for column in zip(*(parts for _, parts in rows[keep:]), strict=True)]
        origins.append(origin(SMALLER, "", (), "", smaller))
    return origins


LAST_READING = "steady end"
"""The reading used for instants without their own on a device: within a step only the reserved
bytes change, and events record those."""


class Columns(NamedTuple):
    """Rows by column name: the ledger, the process memory, and the allocator's pools."""

    ledger: dict[str, list[LedgerRow]]
    card: dict[str, list[LedgerRow]]
    pools: dict[str, list[Pool]]


def instants_of(allocations: AllocationHistory, refused: int | None = None) -> dict[str, int]:
    """The instants with a column, in order of time; ``refused`` is that of the failed request.

    Without steps these are the peak, the failed request if there is one, and the end; without
    events only the state, as the peak.
    """
    described = described_step(allocations)
    steady = allocations.span(described)
    peak = allocations.peak(*steady)
    if described is None:
        at_failure = {} if refused is None else {"out of memory": refused}
        return (
            {"peak": peak, **at_failure, "end": steady[1]}
            if len(allocations.history)
            else {"peak": peak}
        )
    steps, measured = allocations.notes.steps, measured_steps(allocations.notes)
    first = allocations.span(steps[0])
    forward_end_ns = allocations.notes.forward_end_ns(described)
    forward_end = (
        {}
        if forward_end_ns is None
        else {"end of forward": allocations.history.instant(forward_end_ns)}
    )
    return {
        "after build": first[0],
        "first step": allocations.peak(*first),
        "after warm-up": allocations.span(measured[0])[0],
        **forward_end,
        "peak": peak,
        "steady end": allocations.span(measured[-1])[1],
    }


def history_columns(
    allocations: AllocationHistory, recording: Recording, instants: dict[str, int]
) -> Columns:
    """Build the columns of the instants that the recording supports.

    The residual is what the allocator's counters have and the replayed events do not explain.
    """
    columns = Columns({}, {}, {})
    counted, segments, readings = recording.blocks(), recording.segments, recording.readings
    for name, instant in instants.items():
        rows = allocations.rows_at(instant)
        if name in counted:
            handed_out = int(allocations.live[instant]) - allocations.held_by_graphs(instant)
            rows.append(LedgerRow(RESIDUAL, counted[name] - handed_out))
        columns.ledger[name] = rows
        reading = readings.get(name)
        if segments is not None:
            time_ns, alive = allocations.time_ns(instant), allocations.alive_at(instant)
            columns.pools[name] = segments.pools(
                time_ns, allocations.address[alive], allocations.blocks[alive]
            )
            reading = (reading or readings.get(LAST_READING, CardReading())).with_reserved(
                segments.reserved_bytes(time_ns)
            )
        if reading is not None:
            total = sum(row.bytes for row in rows)
            card = card_rows(total, reading, columns.pools.get(name, ()))
            if card:
                columns.card[name] = card
    used = {row.name for rows in columns.ledger.values() for row in rows if row.bytes}
    ledger = {
        name: [row for row in rows if row.name in used] for name, rows in columns.ledger.items()
    }
    return columns._replace(ledger=ledger)


LARGEST = 50
ORIGINS = 200
WHOLE_RECORDING = "the whole recording is shown, not its steps"
INSIDE_GRAPHS = (
    "a CUDA graph replay emits no allocator events, so its gradients, activations and temporaries "
    "are one row"
)
NO_COUNTER = "the CPU allocator has no counter to check the ledger against"
NOT_SOUNDED = "no clock probe aligned the allocator's clock with the host's"
NO_FORWARD_END = "compiled code is one call, so the end of its forward is unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Result of a recorder; ``readings`` of the device are by column, counters of the steady step.

    ``events_dropped`` are those that the allocator's ring had no space for. ``device`` and
    ``refused``, the instant of the last failed request, are of an imported snapshot.
    ``free_at_end`` are bytes left under a memory limit, None without one; ``missing`` maps names of
    absent values to reasons.
    """

    source: Literal["cuda-snapshot", "cuda-profiler", "cpu-profiler"]
    history: History
    counters: Counters = field(default_factory=Counters)
    readings: Mapping[str, CardReading] = field(default_factory=dict)
    segments: Segments | None = None
    events_dropped: int = 0
    device: int | None = None
    refusal: OomEvent | None = None
    refused: int | None = None
    free_at_end: int | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def blocks(self) -> dict[str, int]:
        read = {name: reading.allocated for name, reading in self.readings.items()}
        read["peak"] = self.counters.peak_allocated
        read["end"] = self.counters.end_in_use
        return {name: count for name, count in read.items() if count is not None}


def describe_memory(recording: Recording, notes: Notes, *, step_ms: float | None = None) -> Memory:
    """Build the memory block of a record.

    The measured step with the highest peak is the steady one. Without steps, as in an imported
    snapshot, the whole history counts as one.

    Events and rows are in requested bytes, CUDA's counters in blocks. The rounding of requests to
    the allocator's granule is a row. So is the excess of cached blocks that the allocator may not
    split, where the history has block sizes. The residual is the rest of the counters.
    """
    counters = recording.counters
    clocks = join_clocks(recording.history, notes)
    notes = clocks.notes
    allocations = replay_allocations(clocks.history, notes, recording.segments)
    step = described_step(allocations)
    first, last = allocations.span(step)
    instants = instants_of(allocations, recording.refused)
    peak, failure = instants["peak"], instants.get("out of memory")
    columns = history_columns(allocations, recording, instants)
    ledger, card = columns.ledger["peak"], columns.card.get("peak", [])
    peak_bytes = sum(row.bytes for row in ledger)
    live, tensors = allocations.live, allocations.without_library
    # Bytes by which the peak exceeds that of tensors; the two instants can differ.
    workspace_bytes = int(live[first : last + 1].max() - tensors[first : last + 1].max())
    peak_of_tensors = first + int(np.argmax(tensors[first : last + 1]))
    end = instants.get("steady end", last)
    end_bytes, residual = int(live[end]), None
    if counters.end_allocated is not None:
        end_bytes = counters.end_allocated + allocations.held_by_graphs(end)
    if counters.peak_allocated is not None:
        residual = counters.peak_allocated - int(live[peak]) + allocations.held_by_graphs(peak)
    return Memory(
        source=recording.source,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=counters.peak_reserved,
        end_allocated_bytes=end_bytes,
        peak_requested_bytes=allocations.requested_at(peak),
        end_requested_bytes=allocations.requested_at(end),
        driver_used_bytes=sum(row.bytes for row in card) if card else None,
        baseline_bytes=int(live[0]),
        baseline_blocks=int(np.count_nonzero(allocations.born == 0)),
        peak_phase=allocations.phase_at(peak, step)
        or annotated_place(clocks.history.ranges, allocations.time_ns(peak)),
        peak_ms=allocations.time_ms(peak),
        first_step_peak_bytes=int(live[instants["first step"]]) if notes.steps else None,
        ledger=ledger,
        card=card,
        columns=columns.ledger,
        card_columns=columns.card,
        pools=columns.pools,
        library_workspace_bytes=workspace_bytes,
        residual_bytes=residual,
        clock_offset_us=clocks.offset_us,
        peak_as_predicted=rows_as_predicted(
            allocations, peak_of_tensors, peak_bytes - workspace_bytes
        ),
        modules=module_rows(allocations, first, last),
        **msgspec.structs.asdict(_held(allocations, peak, recording.device)),
        at_failure=None if failure is None else _held(allocations, failure, recording.device),
        device=recording.device,
        timeline=draw_timeline(allocations, first, last),
        events=len(allocations.history),
        events_dropped=recording.events_dropped,
        step_ms=step_ms,
        steps=step_rows(allocations),
        growth=growth_rows(allocations),
        missing=_missing(instants, allocations)
        | recording.missing
        | ({} if clocks.offsets else {"clock_offset_us": NOT_SOUNDED}),
    )


def _held(allocations: AllocationHistory, instant: int, device: int | None) -> HeldMemory:
    """Group what is alive at an instant, of an imported snapshot also by size and place."""
    return HeldMemory(
        origins=origins_alive(allocations, instant, ORIGINS),
        largest=largest_alive(allocations, instant, LARGEST),
        alike=[] if device is None else origins_alive(allocations, instant, LARGEST, by_size=True),
    )


def _missing(instants: Mapping[str, int], allocations: AllocationHistory) -> dict[str, str]:
    missing = {}
    if HELD_BY_GRAPHS in allocations.categories:
        missing[f"ledger.{HELD_BY_GRAPHS}"] = INSIDE_GRAPHS
    if "first step" not in instants:
        missing |= dict.fromkeys(("first_step_peak_bytes", "peak_phase"), WHOLE_RECORDING)
    elif "end of forward" not in instants:
        missing["columns.end of forward"] = NO_FORWARD_END
    return missing
