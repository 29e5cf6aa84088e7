"""Lanes of a timeline: what ran on each stream and thread, idle time by cause, steps and phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import counted
from sysbench.core.trace.classify import CATEGORIES, LAUNCH, SYNC, classify_operator
from sysbench.core.trace.columns import Launches
from sysbench.core.trace.intervals import Times, sums_by
from sysbench.core.trace.kernel_rows import category_of
from sysbench.core.trace.marked_steps import device_cuts
from sysbench.core.trace.markers import Marker, Steps, find_steps, read_marker
from sysbench.core.trace.scopes import (
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    OTHER_PHASE,
    UNKNOWN_PHASE,
    Activities,
    PhaseRanges,
    Scopes,
    device_activities,
    host_scopes,
    outermost_operators,
)
from sysbench.core.trace.time_ledger import (
    TimeLedger,
    Window,
    device_trace,
    devices_by_work,
    processes_elsewhere,
    steps_window,
    window_gaps,
)
from sysbench.core.trace.trace_events import (
    NONE,
    EventColumns,
    Index,
    Kind,
    Numbers,
    Trace,
    names_fit,
    nearest,
    occurring,
)

LANES_FILE = "lanes.msgpack"
"""Name of the file in the folder of the trace pass, and in the entry of an imported file."""

LaneKind = Literal["steps", "phases", "work", "idle", "ranges", "calls"]
HOST = "CPU"
"""Group of the lanes of threads."""
NO_PHASES = (OTHER_PHASE, UNKNOWN_PHASE)
STEP, RANGE, CALL, SYNC_CALL = "step", "range", "CUDA call", "synchronizing call"
"""Categories of lanes that are not of the kernel table."""
UNATTRIBUTED = "unattributed"
CARRIED = {COMPUTE: "compute", COMMUNICATION: "comm.", MEMORY: "copies"}
MAX_DEVICES, MAX_STREAMS, MAX_THREADS = 16, 32, 16
MAX_LAUNCHING_THREADS = 4
MAX_EVENTS = 2**23
"""Events of all lanes; a file of that size has 288 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneEvents(EventColumns):
    """Events of a lane by start, in nanoseconds; other columns are indices of `Lanes.texts`, or
    -1."""

    label: Index
    category: Index
    operator: Index
    module: Index
    phase: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One row of the timeline; ``group`` is a device (``GPU 0``) or the host (``CPU``)."""

    name: str
    group: str
    kind: LaneKind
    events: LaneEvents


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """A timeline; times are nanoseconds since the first event of the file.

    ``low`` and ``high`` span all lanes, ``window`` what the tables include. ``left_out`` says in
    words which lanes are not here.
    """

    texts: list[str]
    low: int
    high: int
    window: tuple[int, int]
    lanes: list[Lane]
    left_out: list[str]


def lanes_of(trace: Trace, ledger: TimeLedger) -> Lanes:
    """Return the lanes of all devices and of the threads that launched their work; without a
    device, of all threads with operators."""
    maker = _LaneMaker(trace, ledger)
    lanes = [lane for lane in maker.lanes() if len(lane.events)]
    count = sum(len(lane.events) for lane in lanes)
    if count > MAX_EVENTS:
        lanes, maker.left_out = [], [f"{count:,} events: more than {MAX_EVENTS:,} are not drawn"]
    return Lanes(
        texts=list(maker.texts),
        low=min((int(lane.events.start[0]) for lane in lanes), default=0),
        high=max((int(lane.events.end.max()) for lane in lanes), default=0),
        window=(ledger.window.low, ledger.window.high),
        lanes=lanes,
        left_out=maker.left_out,
    )


class _Texts(Numbers):
    def at(self, names: Sequence[str], index: Index) -> Index:
        """Return the number of the text of each index of ``names``; -1 stays."""
        used = occurring(index[index >= 0])
        numbers = np.full(len(names) + 1, NONE)  # index -1 reads the last
        numbers[used] = [self[names[name]] for name in used.tolist()]
        return numbers[index]


class _LaneMaker:
    def __init__(self, trace: Trace, ledger: TimeLedger) -> None:
        self.trace, self.ledger = trace, ledger
        self.scopes: Scopes = ledger.scopes
        # The ledger leaves out the processes that launched onto other devices only.
        is_whole = not len(processes_elsewhere(trace, ledger.device))
        self.host = self.scopes if is_whole else host_scopes(trace)
        self.texts = _Texts()
        self.left_out: list[str] = []

    def lanes(self) -> Iterator[Lane]:
        if self.ledger.device is None:
            window = self.ledger.window
            yield from self._of_work(HOST, self.ledger.work, window, None, self.trace, self.scopes)
            yield from self._host_ranges(self._threads(MAX_LAUNCHING_THREADS))
            return
        devices = devices_by_work(self.trace)
        self._note_rest("device", "file", len(devices), MAX_DEVICES)
        for device in sorted(devices[:MAX_DEVICES]):
            trace, scopes = self._host_of(device)
            work = self._work_of(device, scopes)
            low, high = int(work.start.min()), int(work.end.max())
            if device == self.ledger.device and self.ledger.host_window is None:
                low = min(low, self.ledger.window.low)
                high = max(high, self.ledger.window.high)
            window = Window(low, high)
            yield from self._of_work(f"GPU {device}", work, window, device, trace, scopes)
        threads = self._threads(MAX_LAUNCHING_THREADS)
        yield from self._host_ranges(threads)
        yield from self._host_calls(threads)

    def _host_of(self, device: int) -> tuple[Trace, Scopes]:
        """Return the trace and the scopes of the processes that launched onto the device."""
        trace = device_trace(self.trace, device)
        shown, own = (
            processes_elsewhere(self.trace, each) for each in (self.ledger.device, device)
        )
        return trace, self.scopes if np.array_equal(own, shown) else host_scopes(trace)

    def _work_of(self, device: int, scopes: Scopes) -> Activities:
        ledger = self.ledger
        # The ledger's own work may have places from the trace of a graph's capture.
        if device == ledger.device and ledger.host_window is None and len(ledger.work):
            return ledger.work
        return device_activities(self.trace, scopes, device)

    def _note_rest(self, noun: str, group: str, count: int, limit: int) -> None:
        if count > limit:
            self.left_out.append(f"{counted(count - limit, f'idler {noun}')} of the {group}")

    def _of_work(
        self,
        group: str,
        work: Activities,
        window: Window,
        device: int | None,
        trace: Trace,
        scopes: Scopes,
    ) -> Iterator[Lane]:
        on_device = device is not None
        low, high = window.low, window.high
        marked = steps_window(trace)
        steps = own_steps(scopes.ranges, marked) if marked else find_steps(trace)
        if steps is not None:
            start, end = device_cuts(steps, work) if on_device else (steps.start, steps.end)
            low, high = min(low, int(start[0])), max(high, int(end[-1]))
            index = np.arange(len(start))
            yield self._plain_lane("steps", group, (start, end), steps.names, index, STEP)
        # Those of the ledger may go on with the modules of a capture.
        source = self.ledger if scopes is self.scopes else scopes
        start, end, phase = _phase_runs(work, source.phases)
        yield self._plain_lane("phases", group, (start, end), source.phases, phase)
        events = self._work_events(work, source)
        if on_device:
            yield from self._streams(group, work, events)
        else:
            yield from self._operator_threads(group, work, events)
        launches = Launches(trace, device)
        gaps = window_gaps(launches, work, Window(low, high), on_device=on_device)
        covers = {**gaps.causes, UNATTRIBUTED: gaps.unattributed}
        start = np.concatenate([cover.start for cover in covers.values()])
        end = np.concatenate([cover.end for cover in covers.values()])
        cause = np.repeat(np.arange(len(covers)), [len(cover.start) for cover in covers.values()])
        yield self._plain_lane("idle", group, (start, end), [*covers], cause)

    def _work_events(self, work: Activities, source: TimeLedger | Scopes) -> LaneEvents:
        ledger, texts = self.ledger, self.texts
        # One lookup per pair of name and operator, not per event.
        width = len(ledger.names) + 1
        pairs, which = np.unique(work.name * width + work.operator + 1, return_inverse=True)
        categories = [
            texts[category_of(ledger, pair // width, pair % width - 1)] for pair in pairs.tolist()
        ]
        return LaneEvents(
            start=work.start,
            end=work.end,
            label=texts.at(ledger.names, work.name),
            category=np.array(categories, dtype=np.int64)[which.reshape(-1)],
            operator=texts.at(ledger.names, work.operator),
            module=texts.at(source.modules, work.module),
            phase=texts.at(source.phases, work.phase),
        )

    def _streams(self, group: str, work: Activities, events: LaneEvents) -> Iterator[Lane]:
        streams, stream = np.unique(work.lane, return_inverse=True)
        self._note_rest("stream", group, len(streams), MAX_STREAMS)
        length = work.end - work.start
        busiest = np.argsort(-sums_by(stream, length, len(streams)), kind="stable")[:MAX_STREAMS]
        for place in np.sort(busiest).tolist():
            number = int(streams[place])
            for rank, what in CARRIED.items():
                own = events.take((stream == place) & (work.rank == rank))
                name = f"{'work' if number == NONE else f'stream {number}'} {what}"
                yield Lane(name=name, group=group, kind="work", events=_sorted(own))

    def _operator_threads(self, group: str, work: Activities, events: LaneEvents) -> Iterator[Lane]:
        has_length = work.end > work.start
        threads, thread = np.unique(work.lane, return_inverse=True)
        self._note_rest("thread", group, len(threads), MAX_THREADS)
        busy = sums_by(thread, work.end - work.start, len(threads))
        for number, place in enumerate(np.argsort(-busy, kind="stable")[:MAX_THREADS].tolist(), 1):
            chosen = (thread == place) & has_length
            name = f"thread {number}"
            yield Lane(name=name, group=group, kind="work", events=_sorted(events.take(chosen)))

    def _threads(self, limit: int) -> list[int]:
        """Return the threads with the most launches; without launches, the most operators."""
        events = self.host.events
        wanted = (events.kind == Kind.RUNTIME) & names_fit(
            self.trace.names, events.name, LAUNCH.search
        )
        if not wanted.any():
            wanted = events.kind == Kind.OPERATOR
        threads, counts = np.unique(events.thread[wanted], return_counts=True)
        busiest: list[int] = threads[np.argsort(-counts, kind="stable")][:limit].tolist()
        return busiest

    def _host_ranges(self, threads: Sequence[int]) -> Iterator[Lane]:
        """Yield the outermost annotations of the user on each thread."""
        events = self.host.events
        is_user = (events.kind == Kind.ANNOTATION) & ~self.host.names.is_range[events.name]
        is_user &= names_fit(self.trace.names, events.name, lambda name: read_marker(name) is None)
        if not is_user.any():
            return
        # Index -1, an event outside all others, reads the last.
        around = np.append(nearest(is_user, self.host.parent), NONE)[self.host.parent]
        is_outermost = is_user & (around == NONE)
        for number, thread in enumerate(threads, 1):
            chosen = np.flatnonzero(is_outermost & (events.thread == thread))
            category = np.zeros(len(chosen), dtype=np.int64)
            yield self._host_lane(f"thread {number} ranges", "ranges", chosen, [RANGE], category)

    def _host_calls(self, threads: Sequence[int]) -> Iterator[Lane]:
        """Yield the outermost operators of each thread, and its calls of the runtime."""
        events, names = self.host.events, self.trace.names
        outermost = outermost_operators(events, self.host.parent, self.host.names)
        is_outermost = outermost == np.arange(len(events))
        used = occurring(events.name[is_outermost])
        category_of_name = np.zeros(len(names), dtype=np.int64)
        category_of_name[used] = [
            CATEGORIES.index(classify_operator(names[name])) for name in used.tolist()
        ]
        is_call = events.kind == Kind.RUNTIME
        is_sync = is_call & names_fit(names, events.name, SYNC.search)
        for number, thread in enumerate(threads, 1):
            on_thread = events.thread == thread
            chosen = np.flatnonzero(on_thread & is_outermost)
            category = category_of_name[events.name[chosen]]
            name = f"thread {number} operators"
            yield self._host_lane(name, "work", chosen, CATEGORIES, category)
            chosen = np.flatnonzero(on_thread & is_call)
            category = is_sync[chosen].astype(np.int64)
            name = f"thread {number} calls"
            yield self._host_lane(name, "calls", chosen, [CALL, SYNC_CALL], category)

    def _host_lane(
        self, name: str, kind: LaneKind, chosen: Index, categories: Sequence[str], category: Index
    ) -> Lane:
        scopes, texts = self.host, self.texts
        lane_events = LaneEvents(
            start=scopes.events.start[chosen],
            end=scopes.events.end[chosen],
            label=texts.at(self.trace.names, scopes.events.name[chosen]),
            category=texts.at(categories, category),
            operator=texts.at(self.trace.names, scopes.operator[chosen]),
            module=texts.at(scopes.modules, scopes.module[chosen]),
            phase=texts.at(scopes.phases, scopes.phase[chosen]),
        )
        return Lane(name=name, group=HOST, kind=kind, events=_sorted(lane_events))

    def _plain_lane(
        self,
        kind: LaneKind,
        group: str,
        times: tuple[Times, Times],
        names: Sequence[str],
        label: Index,
        category: str = "",
    ) -> Lane:
        """Return a lane without places; the category is the label unless given."""
        label = self.texts.at(names, label)
        none = np.full(len(label), NONE)
        events = LaneEvents(
            start=times[0],
            end=times[1],
            label=label,
            category=np.full(len(label), self.texts[category]) if category else label,
            operator=none,
            module=none,
            phase=none,
        )
        has_length = events.end > events.start
        return Lane(name=kind, group=group, kind=kind, events=_sorted(events.take(has_length)))


def _sorted(events: LaneEvents) -> LaneEvents:
    # Of equal starts the longest comes first, as in `by_thread`.
    return events.take(np.lexsort((-events.end, events.start)))


def _phase_runs(work: Activities, phases: Sequence[str]) -> tuple[Times, Times, Index]:
    """Return start, end and phase of runs of consecutive computation of one phase.

    Work of an unknown phase ends a run and is in none.
    """
    work = work.take((work.rank == COMPUTE) & (work.end > work.start))
    work = work.take(np.argsort(work.start, kind="stable"))
    first = np.flatnonzero(np.diff(work.phase, prepend=NONE - 1))
    if not len(first):
        return work.start, work.end, work.phase
    start, phase = work.start[first], work.phase[first]
    end = np.minimum(np.maximum.reduceat(work.end, first), np.append(start[1:], work.end.max()))
    is_known = ~np.isin(phase, [phases.index(name) for name in NO_PHASES if name in phases])
    return start[is_known], end[is_known], phase[is_known]


def own_steps(ranges: PhaseRanges, window: Window) -> Steps | None:
    """Return the steps of the trace pass: each begins with the first phase of the window.

    None if these phases do not divide into the window's number of steps.
    """
    inside = (ranges.start >= window.low) & (ranges.start < window.high)
    first = ranges.phase[inside][:1].tolist()
    begins = ranges.start[inside & np.isin(ranges.phase, first)]
    if not len(begins) or len(begins) % window.steps:
        return None
    start = begins[:: len(begins) // window.steps]
    return Steps(
        family="",
        names=[f"step {number}" for number in range(1, window.steps + 1)],
        markers=[Marker()] * window.steps,
        numbers=list(range(1, window.steps + 1)),
        start=start,
        end=np.append(start[1:], window.high),
        left_out=0,
    )


TIMES = ("start", "end")
INDICES = ("label", "category", "operator", "module", "phase")


class _StoredLane(msgspec.Struct, frozen=True, array_like=True):
    """``times`` and ``indices`` are packed int64 and int32, one column after the other."""

    name: str
    group: str
    kind: LaneKind
    times: bytes
    indices: bytes


class _StoredLanes(msgspec.Struct, frozen=True):
    texts: list[str]
    low: int
    high: int
    window: tuple[int, int]
    lanes: list[_StoredLane]
    left_out: list[str]


def encode_lanes(lanes: Lanes) -> bytes:
    stored = [
        _StoredLane(
            lane.name,
            lane.group,
            lane.kind,
            b"".join(getattr(lane.events, name).astype(np.int64).tobytes() for name in TIMES),
            b"".join(getattr(lane.events, name).astype(np.int32).tobytes() for name in INDICES),
        )
        for lane in lanes.lanes
    ]
    return msgspec.msgpack.encode(
        _StoredLanes(lanes.texts, lanes.low, lanes.high, lanes.window, stored, lanes.left_out)
    )


def decode_lanes(data: bytes, source: Path) -> Lanes:
    """Decode from MessagePack; DamagedFileError if it is no timeline."""
    try:
        stored = msgspec.msgpack.decode(data, type=_StoredLanes)
        lanes = [_unpack(lane, stored) for lane in stored.lanes]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DamagedFileError(f"{source} is not a timeline: {error}") from error
    return Lanes(
        texts=stored.texts,
        low=stored.low,
        high=stored.high,
        window=stored.window,
        lanes=lanes,
        left_out=stored.left_out,
    )


def _unpack(lane: _StoredLane, whole: _StoredLanes) -> Lane:
    """Unpack a lane without copying; ValueError if a time or an index is out of range."""
    times = np.frombuffer(lane.times, dtype=np.int64).reshape(len(TIMES), -1)
    indices = np.frombuffer(lane.indices, dtype=np.int32).reshape(len(INDICES), -1)
    (start, end), count = times, times.shape[1]
    if indices.shape[1] != count or not count:
        raise ValueError(f"lane {lane.name!r} has columns of different lengths, or none")
    if start[0] < whole.low or end.max() > whole.high or (end < start).any():
        raise ValueError(f"lane {lane.name!r} has times outside the timeline")
    if (np.diff(start) < 0).any():
        raise ValueError(f"lane {lane.name!r} is not in order")
    if indices.min() < NONE or indices.max() >= len(whole.texts) or indices[:2].min() < 0:
        raise ValueError(f"lane {lane.name!r} has a text that is not there")
    columns = dict(zip((*TIMES, *INDICES), (*times, *indices), strict=True))
    return Lane(name=lane.name, group=lane.group, kind=lane.kind, events=LaneEvents(**columns))
