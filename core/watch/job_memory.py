"""Read the counts of a watched process's memory: at a request that failed, and over some steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import format_bytes
from sysbench.core.memory.block import ORIGINS, OWNED, containing_modules
from sysbench.core.memory.foreign import describe_snapshot
from sysbench.core.memory.oom import requested_bytes
from sysbench.core.memory.snapshot_reading import read_snapshot
from sysbench.core.memory.step_memory import growing_places
from sysbench.core.record.events import OutOfMemory
from sysbench.core.record.memory import (
    RESIDUAL,
    SMALLER,
    WORKSPACES,
    LedgerRow,
    OomSnapshot,
    Origin,
    StepMemory,
    Timeline,
)
from sysbench.core.record.record import Memory, ModuleMemory
from sysbench.core.step_patterns import growth_of
from sysbench.core.storage import UNREADABLE_JSON, read_json

COUNT_FILES = "memory-*.json"
OTHER, INPUTS = "other tensors", "inputs"
NOT_FOUND = (
    "blocks larger than asked for, workspaces of libraries, gradients on their way, and what else "
    "no Python object holds"
)
CPU_MISSING = dict.fromkeys(
    ("free_bytes", "reserved_bytes", "largest_free_bytes", "capacity_bytes"),
    "the CPU's allocator has no counters",
)


class Holder(NamedTuple):
    """Storages of one holder; ``stack`` has names and lines, the innermost first."""

    category: str
    module: str
    bytes: int
    blocks: int
    stack: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The stack, with the module: ``fc1.weight``, or as its last entry."""
        if self.category in ("parameters", "buffers") and self.stack:
            return [".".join(filter(None, (self.module, self.stack[0])))]
        return [*self.stack, *([self.module] if self.module else [])]


class HolderCount(msgspec.Struct, frozen=True, kw_only=True):
    """Holders at one instant; the counters are those of CUDA's allocator and device."""

    t_ns: int
    rows: list[list[str | int]]
    step: int = 0
    phase: str = ""
    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None
    free: int | None = None
    total: int | None = None
    workspaces: int | None = None

    @property
    def holders(self) -> list[Holder]:
        """The holders; raises DamagedFileError for rows of another form."""
        found = []
        for row in self.rows:
            match row:
                case [str(category), str(module), int(size), int(blocks), *stack]:
                    texts = tuple(map(str, stack))
                    found.append(Holder(category, module, size, blocks, texts))
                case _:
                    raise DamagedFileError(f"{row} is no holder of memory")
        return found

    def ledger(self) -> list[LedgerRow]:
        """Bytes by category, largest first, and the rest of the allocator's counter."""
        sums: Counter[str] = Counter()
        for holder in self.holders:
            sums[holder.category] += holder.bytes
        if self.workspaces:
            sums[WORKSPACES] += self.workspaces
        rows = [LedgerRow(name, size) for name, size in sums.most_common()]
        if self.allocated is not None:
            rows.append(LedgerRow(RESIDUAL, self.allocated - sums.total()))
        return rows


class CountFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `memory_recorder` wrote: ``first`` is the number of the first step, from 0.

    ``message`` is that of the refused request; empty for counts that were asked for.
    """

    pid: int
    device: str
    counts: list[HolderCount]
    rank: str | None = None
    first: int = 0
    message: str = ""
    stack: list[str] = []
    line: str = ""
    phase: str = ""
    snapshot: str = ""

    @property
    def time_ns(self) -> int:
        return self.counts[0].t_ns

    @property
    def snapshot_name(self) -> str:
        """Name of the snapshot in the same folder, whatever the process wrote."""
        return Path(self.snapshot).name


def read_counts(folder: Path, inside: Path) -> Iterator[CountFile]:
    """Yield the counts of all processes; raises DamagedFileError for what is none."""
    for path in sorted(folder.glob(COUNT_FILES)):
        data = read_json(path, inside=inside)
        try:
            file = msgspec.json.decode(data, type=CountFile)
        except UNREADABLE_JSON as error:
            raise DamagedFileError(f"{path} is no count of memory: {error}") from error
        if file.counts:
            yield file


def refused_request(file: CountFile) -> tuple[OutOfMemory, OomSnapshot]:
    """Return the request that failed, and what was alive when its exception ended the process."""
    count = file.counts[0]
    event = OutOfMemory(
        phase=file.phase,
        requested_bytes=requested_bytes(file.message),
        free_bytes=count.free,
        allocated_bytes=count.allocated,
        reserved_bytes=count.reserved,
        capacity_bytes=count.total,
        message=file.message,
        stack=file.stack,
        expression=file.line or None,
        rank=int(file.rank) if file.rank and file.rank.isdecimal() else None,
        missing={} if count.total is not None else CPU_MISSING,
    )
    missing = {f"ledger.{RESIDUAL}": NOT_FOUND} if count.allocated is not None else {}
    return event, OomSnapshot(
        ledger=count.ledger(), origins=origins_of(count.holders), missing=missing
    )


def refused_sentence(event: OutOfMemory) -> str:
    """``out of memory in forward: tried to allocate 2.00 GiB at train.py:31 MLP.forward``."""
    amount = "" if event.requested_bytes is None else f" {format_bytes(event.requested_bytes)}"
    place = f" at {event.stack[0]}" if event.stack else ""
    rank = "" if event.rank is None else f"rank {event.rank}: "
    return f"{rank}out of memory in {event.phase}: tried to allocate{amount}{place}"


def origins_of(holders: Sequence[Holder], phase: str = "") -> list[Origin]:
    """The largest holders, and one row for the rest."""
    rows = sorted(holders, key=lambda row: -row.bytes)
    origins = [Origin(row.category, phase, row.bytes, row.blocks, row.words) for row in rows]
    rest = origins[ORIGINS:]
    if rest:
        size, blocks = sum(row.bytes for row in rest), sum(row.blocks for row in rest)
        return [*origins[:ORIGINS], Origin(SMALLER, "", size, blocks, [])]
    return origins


def counted_memory(file: CountFile) -> Memory:
    """Return the memory block of steps in which holders were counted."""
    counts = _with_inputs(file.counts)
    steps = sorted({count.step for count in counts})
    by_step = {step: [count for count in counts if count.step == step] for step in steps}
    last = by_step[steps[-1]]
    ledgers = [count.ledger() for count in last]
    totals = [sum(row.bytes for row in rows) for rows in ledgers]
    at_peak = totals.index(max(totals))
    peak, end = last[at_peak], last[-1]
    columns = {f"end of {count.phase}": rows for count, rows in zip(last, ledgers, strict=True)}
    columns["steady end"] = columns.pop(f"end of {end.phase}")
    ends = [sum(row.bytes for row in by_step[step][-1].ledger()) for step in steps]
    rows = [
        StepMemory(
            file.first + step + 1,
            max(sum(row.bytes for row in count.ledger()) for count in by_step[step]),
            ends[number],
        )
        for number, step in enumerate(steps)
    ]
    return Memory(
        source="holders",
        peak_allocated_bytes=totals[at_peak],
        peak_reserved_bytes=peak.reserved,
        end_allocated_bytes=totals[-1],
        driver_used_bytes=None,
        baseline_bytes=0,
        peak_phase=peak.phase,
        peak_ms=_begins_ms(counts)[counts.index(peak)],
        first_step_peak_bytes=None,
        ledger=ledgers[at_peak],
        card=[],
        columns=columns | {"peak": ledgers[at_peak]},
        modules=_module_rows(last),
        largest=[],
        origins=origins_of(peak.holders, peak.phase),
        timeline=_timeline(counts),
        steps=rows if len(set(ends)) > 1 else [],
        growth=growing_places(_held_at_ends(by_step), [row.step for row in rows])
        if growth_of(ends)
        else [],
        missing={
            "driver_used_bytes": "it was not read",
            **({} if peak.reserved is not None else CPU_MISSING),
            **({} if peak.allocated is None else {f"ledger.{RESIDUAL}": NOT_FOUND}),
        },
    )


def with_recorded_peak(memory: Memory, snapshot: Path) -> Memory:
    """Add the peak of the allocator's history; raises DamagedFileError if it cannot be read."""
    recorded = describe_snapshot(read_snapshot(snapshot))
    if recorded.is_state:
        return memory
    return msgspec.structs.replace(
        memory,
        recorded_peak_bytes=recorded.peak_allocated_bytes,
        recorded_peak_phase=recorded.peak_phase,
    )


def _with_inputs(counts: Sequence[HolderCount]) -> list[HolderCount]:
    """Let a variable that held an input of a graph hold inputs also where there is no graph."""
    inputs = {row.stack for count in counts for row in count.holders if row.category == INPUTS}
    return [
        msgspec.structs.replace(
            count,
            rows=[
                [INPUTS, *row[1:]] if row[0] == OTHER and tuple(row[4:]) in inputs else row
                for row in count.rows
            ],
        )
        for count in counts
    ]


def _module_rows(counts: Sequence[HolderCount]) -> list[ModuleMemory]:
    """The most that each module held of each kind, whether or not at the same time."""
    totals: dict[str, Counter[str]] = {}
    for count in counts:
        now: dict[str, Counter[str]] = {}
        for row in count.holders:
            for path in containing_modules(row.module) if row.category in OWNED else ():
                now.setdefault(path, Counter())[row.category] += row.bytes
        for path, amounts in now.items():
            totals[path] = totals.get(path, Counter()) | amounts
    return [
        ModuleMemory(path, *(total[category] for category in OWNED))
        for path, total in totals.items()
    ]


def _timeline(counts: Sequence[HolderCount]) -> Timeline:
    """Draw the count at the end of a phase over the whole phase."""
    ledgers = [{row.name: row.bytes for row in count.ledger()} for count in counts]
    names = dict.fromkeys(name for ledger in ledgers for name in ledger)
    begins = _begins_ms(counts)
    return Timeline(
        t_ms=begins[:-1],
        live_bytes=[sum(ledger.values()) for ledger in ledgers],
        categories={name: [ledger.get(name, 0) for ledger in ledgers] for name in names},
        phases=[
            (count.phase, begin, end)
            for count, (begin, end) in zip(counts, pairwise(begins), strict=True)
        ],
    )


def _begins_ms(counts: Sequence[HolderCount]) -> list[float]:
    """When each phase began, and the last one ended; the first is drawn as long as the next."""
    ends = [count.t_ns for count in counts]
    first = ends[0] - (ends[1] - ends[0]) if len(ends) > 1 else ends[0] - 1
    return [(time_ns - first) / 1e6 for time_ns in (first, *ends)]


def _held_at_ends(
    by_step: dict[int, list[HolderCount]],
) -> dict[tuple[str, str, str, tuple[str, ...]], list[int]]:
    """Bytes at the end of each step by category, phase, module and stack."""
    held: dict[tuple[str, str, str, tuple[str, ...]], list[int]] = {}
    for number, counts in enumerate(by_step.values()):
        for row in counts[-1].holders:
            key = (row.category, "", row.module, row.stack)
            held.setdefault(key, [0] * len(by_step))[number] += row.bytes
    return held
