"""Summary of one rank's file, small enough to load many: collectives and computation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypedDict

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.trace.classify import classify_operator, is_communication
from sysbench.core.trace.collective_kernels import collective_bytes, kind_of, kind_of_call
from sysbench.core.trace.intervals import Cover, Times, open_at
from sysbench.core.trace.markers import read_marker
from sysbench.core.trace.operands import parse_operands
from sysbench.core.trace.scopes import COMMUNICATION, COMPUTE, launches_of
from sysbench.core.trace.time_ledger import (
    TimeLedger,
    device_trace,
    devices_by_work,
    time_ledger,
    without_processes,
)
from sysbench.core.trace.trace_events import (
    NONE,
    PROCESS_SHIFT,
    CollectiveCall,
    Kind,
    Trace,
    follow_flow,
    names_fit,
)
from sysbench.core.trace.trace_json import TraceOrigin

ON_HOST = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
"""torch's annotations around collectives run by host threads."""
WAY = re.compile(r"send|recv|receive", re.IGNORECASE)
MAX_CALLS = 2**17
MAX_INTERVALS = 2**20
"""Per file; a summary takes at most 160 MiB at both limits."""


class TracedCall(msgspec.Struct, frozen=True, array_like=True):
    """One collective on one rank, in nanoseconds of the file's clock since the epoch.

    ``position`` is its number in its process group, ``step`` that of the marked step that launched
    it; -1 if unknown. ``source`` and ``target`` are the ranks, by their number in the group, of a
    transfer from one to the other, which this rank ``sends`` or receives. ``purpose`` describes the
    group, such as ``mesh_tp``.
    """

    kind: str
    bytes: int | None
    group_size: int | None
    group: str
    position: int
    step: int
    start_ns: int
    end_ns: int
    source: int = NONE
    target: int = NONE
    sends: bool = False
    purpose: str = ""


class StepPart(msgspec.Struct, frozen=True, array_like=True):
    number: int
    start_ns: int
    end_ns: int


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One file; times are nanoseconds of the file's clock since the epoch.

    ``computing`` (computation) and ``working`` (computation and copies) are disjoint intervals as
    packed int64, all starts before all ends. ``has_step_numbers`` says whether the markers of the
    steps contain numbers.
    """

    rank: int | None
    world_size: int | None
    source: Literal["kernels", "operators"]
    device: int | None
    other_devices: list[int]
    low_ns: int
    high_ns: int
    steps: list[StepPart]
    calls: list[TracedCall]
    computing: bytes
    working: bytes
    has_step_numbers: bool = True

    @property
    def compute(self) -> Cover:
        return _unpack(self.computing)

    @property
    def work(self) -> Cover:
        return _unpack(self.working)

    @property
    def communication(self) -> Cover:
        return self.cover([(call.start_ns, call.end_ns) for call in self.calls])

    def cover(self, intervals: list[tuple[int, int]]) -> Cover:
        bounds = np.array(intervals, dtype=np.int64).reshape(-1, 2)
        bounds = np.clip(bounds, self.low_ns, self.high_ns)
        return Cover(bounds[:, 0], np.maximum(bounds[:, 0], bounds[:, 1]))


def rank_trace(trace: Trace, ledger: TimeLedger, origin: TraceOrigin) -> RankTrace | None:
    """Return the summary of a rank's file; None without collectives.

    Collectives of a device are its communication kernels. In a file without device work they are
    torch's annotations around gloo, MPI or UCC calls, and operators are computation. Raises
    DamagedFileError beyond the events that a summary may hold.
    """
    base = trace.base_ns + origin.clock_base_ns
    on_device = ledger.source == "kernels"
    calls = (
        _device_calls(trace, ledger, base)
        if on_device
        else _host_calls(trace, ledger, origin, base)
    )
    if not calls:
        return None
    work = ledger.work
    if on_device:
        is_computing, is_working = work.rank == COMPUTE, work.rank != COMMUNICATION
    else:
        is_computing = is_working = names_fit(
            ledger.names, work.name, lambda name: classify_operator(name) != "communication"
        )
    computing, working = (
        _pack(work.start[mask] + base, work.end[mask] + base) for mask in (is_computing, is_working)
    )
    low, high = ledger.window.low + base, ledger.window.high + base
    if not on_device:  # a rank may end in a collective, with no operator after it
        low = min(low, *(call.start_ns for call in calls))
        high = max(high, *(call.end_ns for call in calls))
    marked = ledger.marked.rows if ledger.marked else ()
    rows = [row for row in marked if row.number is not None]
    return RankTrace(
        rank=origin.rank,
        world_size=origin.world_size,
        source=ledger.source,
        device=ledger.device,
        other_devices=ledger.other_devices,
        low_ns=low,
        high_ns=high,
        steps=[
            StepPart(row.number or 0, row.start_ns + base, row.start_ns + base + row.ns)
            for row in rows
        ],
        calls=sorted(calls, key=lambda call: (call.start_ns, call.end_ns)),
        computing=computing,
        working=working,
        has_step_numbers=all(_has_number(row.name) for row in rows),
    )


def _has_number(name: str) -> bool:
    marker = read_marker(name)
    return marker is not None and marker[1].number is not None


def rank_traces(trace: Trace, origin: TraceOrigin) -> dict[str, RankTrace]:
    """Return the summaries of the ranks that one file contains, by what tells them apart.

    A rank is a device with collectives; where several processes run them on one device, a process
    on it. Empty if there are fewer than two. Raises as `rank_trace`.
    """
    process = trace.host.thread >> PROCESS_SHIFT
    if len(devices_by_work(trace)) < 2 and not (len(process) and np.ptp(process)):
        return {}
    communicates = names_fit(trace.names, trace.device.name, is_communication)
    communicates |= trace.device.collective != NONE
    units = {}
    for device in np.unique(trace.device.device[communicates]).tolist():
        is_here = trace.device.device == device
        events = trace.device.take(is_here)
        launched_by = follow_flow(launches_of(events, trace.host), process)
        own = launched_by[communicates[is_here]]
        several = np.unique(own[own != NONE])
        if len(several) < 2:
            units[f"device {device}"] = device, device_trace(trace, device)
            continue
        for number, each in enumerate(several.tolist()):
            part = replace(trace, device=events.take(launched_by == each))
            part = without_processes(part, several[several != each])
            units[f"device {device}, process {number}"] = device, part
    if len(units) < 2:
        return {}
    found = {}
    for name, (device, part) in units.items():
        if summary := rank_trace(part, time_ledger(part, device=device), origin):
            found[name] = summary
    return found if len(found) > 1 else {}


def encode_rank(rank: RankTrace) -> bytes:
    return msgspec.msgpack.encode(rank)


def decode_rank(data: bytes, source: Path) -> RankTrace:
    """Decode from MessagePack; DamagedFileError if it is no summary of a rank."""
    try:
        return msgspec.msgpack.decode(data, type=RankTrace)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFileError(f"{source} is not a rank summary: {error}") from error


def _device_calls(trace: Trace, ledger: TimeLedger, base: int) -> list[TracedCall]:
    work = ledger.work
    pieces = np.flatnonzero((work.rank == COMMUNICATION) | (work.collective != NONE))
    _check(len(pieces))
    steps = _steps_at(ledger, work.launched[pieces])
    positions = _positions_at(trace, work.launched[pieces])
    calls = []
    for piece, step, position in zip(pieces.tolist(), steps, positions, strict=True):
        number = int(work.collective[piece])
        arguments = trace.collectives[number] if number != NONE else None
        kind = kind_of_call(arguments, ledger.names[work.name[piece]])
        calls.append(
            TracedCall(
                kind=kind,
                bytes=collective_bytes(kind, arguments) if arguments else None,
                group_size=arguments.group_size if arguments and arguments.group_size > 0 else None,
                group=_group(arguments) if arguments else "",
                position=position,
                step=step,
                start_ns=int(work.start[piece]) + base,
                end_ns=int(work.end[piece]) + base,
                purpose=arguments.purpose if arguments else "",
                **_ends(kind, arguments),
            )
        )
    return calls


class _Ends(TypedDict, total=False):
    source: int
    target: int
    sends: bool


def _ends(kind: str, call: CollectiveCall | None) -> _Ends:
    """Return the two ranks of a send or a receive, if known; empty for other calls."""
    way = WAY.findall(call.name) if call else []
    if (
        call is None
        or kind != "send-receive"
        or len(way) != 1
        or NONE in (call.source, call.target)
    ):
        return {}
    return {"source": call.source, "target": call.target, "sends": way[0].lower() == "send"}


def _group(call: CollectiveCall) -> str:
    """Return name and ranks: two groups of a job may have the same name."""
    return " ".join(filter(None, (call.group, call.ranks)))


def _host_calls(
    trace: Trace, ledger: TimeLedger, origin: TraceOrigin, base: int
) -> list[TracedCall]:
    host = trace.host
    matches = {name: ON_HOST.fullmatch(trace.names[name]) for name in np.unique(host.name).tolist()}
    kinds = {name: kind_of(match[1]) for name, match in matches.items() if match}
    events = host.take(np.isin(host.name, list(kinds)) & (host.kind == Kind.ANNOTATION))
    _check(len(events))
    ranks = origin.world_size if origin.group else None
    return [
        TracedCall(
            kind=kinds[name],
            bytes=_operand_bytes(trace, kinds[name], operands, ranks),
            group_size=ranks,
            group=origin.group,
            position=NONE,
            step=step,
            start_ns=start + base,
            end_ns=end + base,
        )
        for name, operands, step, start, end in zip(
            events.name.tolist(),
            events.operands.tolist(),
            _steps_at(ledger, events.start),
            events.start.tolist(),
            events.end.tolist(),
            strict=True,
        )
    ]


def _operand_bytes(trace: Trace, kind: str, operands: int, ranks: int | None) -> int | None:
    """Return bytes of a rank's own tensor, times the ranks if each has a part of the result."""
    inputs = parse_operands(trace.operands[operands]) if operands != NONE else None
    tensors = [operand for operand in inputs or () if operand.is_tensor]
    if len(tensors) != 1 or (kind == "all-gather" and ranks is None):
        return None
    size = tensors[0].elements * tensors[0].item_bytes
    return size * (ranks or 1) if kind == "all-gather" else size


def _steps_at(ledger: TimeLedger, times: Times) -> list[int]:
    marked = ledger.marked
    rows = [row for row in marked.rows if row.number is not None] if marked else []
    begins = np.array([row.host_start_ns or 0 for row in rows], dtype=np.int64)
    ends = begins + np.array([row.host_ns or 0 for row in rows], dtype=np.int64)
    numbers = np.array([row.number for row in rows], dtype=np.int64)
    steps: list[int] = follow_flow(open_at(begins, ends, times), numbers).tolist()
    return steps


def _positions_at(trace: Trace, launched: Times) -> list[int]:
    """Return the number of the only collective open on the host at each launch, or -1."""
    numbered = sorted(trace.numbered)
    if not numbered:
        return [NONE] * len(launched)
    begins, ends, positions = np.array(numbered, dtype=np.int64).T
    at = open_at(begins, ends, launched)
    # How far any earlier call reached: index -1, before the first, reads the last that is added.
    reached = np.append(np.maximum.accumulate(ends), NONE)[at - 1]
    is_only = (
        (reached <= launched) | (at == 0) | (positions[np.maximum(at - 1, 0)] == positions[at])
    )
    found: list[int] = np.where(is_only, follow_flow(at, positions), NONE).tolist()
    return found


def _check(calls: int) -> None:
    if calls > MAX_CALLS:
        raise DamagedFileError(f"{calls:,} collectives; the limit is {MAX_CALLS:,}")


def _pack(start: Times, end: Times) -> bytes:
    cover = Cover(start, end)
    if len(cover.start) > MAX_INTERVALS:
        raise DamagedFileError(
            f"{len(cover.start):,} separate pieces of work; the limit is {MAX_INTERVALS:,}"
        )
    return cover.start.tobytes() + cover.end.tobytes()


def _unpack(packed: bytes) -> Cover:
    start, end = np.frombuffer(packed, dtype=np.int64).reshape(2, -1)
    return Cover(start, end)
