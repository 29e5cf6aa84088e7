"""Events of a trace that take time, as columns of integer nanoseconds, and their nesting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.intervals import Times

MODULE_PREFIX = "nn.Module: "
PROCESS_SHIFT = 32

Index = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Kind(IntEnum):
    """Kinds from KERNEL on run on a device."""

    OPERATOR = 0
    ANNOTATION = 1
    MODULE = 2
    RUNTIME = 3
    KERNEL = 4
    COPY = 5
    FILL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumns:
    """Intervals as columns of equal length."""

    start: Times
    end: Times

    def __len__(self) -> int:
        return len(self.start)

    def take(self, index: NDArray[np.integer] | NDArray[np.bool_]) -> Self:
        names = [column.name for column in fields(self)]
        return type(self)(**{name: getattr(self, name)[index] for name in names})

    def since(self, base_ns: int) -> Self:
        return replace(self, start=self.start - base_ns, end=self.end - base_ns)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        names = [column.name for column in fields(cls)]
        return cls(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvents(EventColumns):
    """Operators, annotations, modules and runtime calls.

    ``name`` is an index of `Trace.names`; times are nanoseconds since `Trace.base_ns`.
    The bits of ``thread`` from `PROCESS_SHIFT` on number its process.
    ``correlation`` links a runtime call to the work it launched, ``sequence`` an autograd node to
    the operator that created it; -1 if none. ``operands`` is an index of `Trace.operands`, -1
    without shapes.
    """

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    thread: NDArray[np.int64]
    correlation: NDArray[np.int64]
    sequence: NDArray[np.int64]
    operands: NDArray[np.int64]


class CollectiveCall(NamedTuple):
    """Arguments that torch records with the kernel of a collective; -1 or empty if absent.

    ``source`` and ``target`` are ranks of the group. ``purpose`` is the description of the group,
    such as ``mesh_tp``.
    """

    name: str
    dtype: str
    in_elements: int
    out_elements: int
    group_size: int
    group: str
    ranks: str
    source: int
    target: int
    purpose: str


class NumberedCall(NamedTuple):
    """A collective's call on the host in nanoseconds, with its number in its process group, which
    is the same on all ranks."""

    start: int
    end: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvents(EventColumns):
    """Kernels, copies and fills; columns as in `HostEvents`. ``stream`` is -1 if unknown.
    ``collective`` is an index of `Trace.collectives`, or -1; ``bytes`` are those of a copy, -1 if
    unknown."""

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    collective: NDArray[np.int64]
    bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges(EventColumns):
    """Ranges that take no time from other events; columns as in `HostEvents`.

    On a device, ``thread`` is the device number.
    """

    name: NDArray[np.int64]
    thread: NDArray[np.int64]


def no_ranges() -> Ranges:
    empty = np.zeros(0, dtype=np.int64)
    return Ranges(name=empty, thread=empty, start=empty, end=empty)


class Numbers(dict[Any, int]):
    """Number values in order of appearance; ``characters`` is their total length."""

    characters = 0

    def __missing__(self, value: object) -> int:
        number = self[value] = len(self)
        self.characters += len(value) if isinstance(value, str | bytes) else 0
        return number

    def of(self, values: Sequence[Any]) -> NDArray[np.int64]:
        # Many chunks have one process, or one thread: comparing is quicker than looking up.
        if values and values.count(values[0]) == len(values):
            return np.full(len(values), self[values[0]])
        return np.fromiter(map(self.__getitem__, values), dtype=np.int64, count=len(values))


class Synchronization(NamedTuple):
    """A wait on a stream or an event; ``waits_for`` is the correlation of the call that recorded
    the event, -1 if unknown."""

    kind: str
    start: int
    device: int
    stream: int
    waits_for: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The events of a trace that take time.

    ``wrong_durations`` are indices of device events whose duration is none, by what is wrong with
    it, ``wrong_on_host`` the number of such host events; all these last 0. ``without_time`` counts
    events that were left out because their start is no number or they never end,
    ``early`` are ns from work to its call, by ``External id`` where nothing else links them,
    ``incomplete_calls`` calls of collectives that lack arguments.

    ``operands`` are the distinct inputs of operators, see `parse_operands`; ``devices`` are device
    names by number. ``unread`` counts timed device events of unknown form by category, ``repairs``
    what was repaired in the JSON; ``has_requests`` says whether there are memory requests.
    ``kernel_names`` are the kernels named by HIP launches, by correlation, as indices of ``names``.
    ``functions`` are calls of Python
    functions outside torch, ``projected`` user annotations projected onto devices by the profiler.
    """

    names: list[str]
    base_ns: int
    host: HostEvents
    device: DeviceEvents
    operands: list[bytes] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    repairs: dict[str, int] = field(default_factory=dict)
    wrong_durations: dict[str, Index] = field(default_factory=dict)
    wrong_on_host: dict[str, int] = field(default_factory=dict)
    without_time: int = 0
    early: list[int] = field(default_factory=list)
    waits: list[Synchronization] = field(default_factory=list)
    incomplete_calls: int = 0
    has_requests: bool = False
    collectives: list[CollectiveCall] = field(default_factory=list)
    kernel_names: dict[int, int] = field(default_factory=dict)
    functions: Ranges = field(default_factory=no_ranges)
    projected: Ranges = field(default_factory=no_ranges)
    numbered: list[NumberedCall] = field(default_factory=list)

    def since(self, base_ns: int) -> Trace:
        """Return the trace with times that count from ``base_ns`` of its own."""
        return replace(
            self,
            base_ns=self.base_ns + base_ns,
            host=self.host.since(base_ns),
            device=self.device.since(base_ns),
            functions=self.functions.since(base_ns),
            projected=self.projected.since(base_ns),
            numbered=[
                NumberedCall(call.start - base_ns, call.end - base_ns, call.position)
                for call in self.numbered
            ],
            waits=[wait._replace(start=wait.start - base_ns) for wait in self.waits],
        )


NONE = -1
ROUNDS = 100
"""Each round lifts an event one level, or past twice as many finished events as before."""


def by_thread(events: HostEvents) -> HostEvents:
    """Sort events by thread and start; enclosing events come first."""
    # lexsort's last key comes first. Of equal starts the longest encloses the others; of equal
    # events the order of the file stays, as lexsort is stable.
    return events.take(np.lexsort((-events.end, events.start, events.thread)))


def parents(events: HostEvents) -> Index:
    """Return the index of the innermost event around each event, or -1; `by_thread` order.

    That is the last event before it on its thread that ends after it began. Ranges that overlap
    without nesting (a profiler step may end inside another range) are inside if they begin inside.
    """
    start, end = events.start, events.end
    around = np.arange(-1, len(events) - 1)
    first = np.r_[True, events.thread[1:] != events.thread[:-1]][: len(events)]
    around[first] = NONE
    # At least half of all events lie in the one before them: comparing adjacent events is cheap.
    pending = np.flatnonzero(~first[1:] & (end[:-1] <= start[1:])) + 1
    around[pending] = around[pending - 1]
    # Pointer jumping. Every event between an event and its candidate has ended before it began,
    # so a candidate that has ended, too, can be replaced by that candidate's own.
    for _ in range(ROUNDS):
        candidate = around[pending]
        passed = np.flatnonzero((candidate != NONE) & (end[candidate] <= start[pending]))
        pending = pending[passed]
        if not len(pending):
            return around
        around[pending] = around[candidate[passed]]
    # A hostile trace nests without end: one event after the other takes linear time. Events
    # before `index` are final, as their parents precede them.
    for index in pending.tolist():
        above = NONE if first[index] else index - 1
        while above != NONE and end[above] <= start[index]:
            above = int(around[above])
        around[index] = above
    return around


def nearest(wanted: NDArray[np.bool_], parent: Index) -> Index:
    """Return the event itself if wanted, else its innermost wanted ancestor, else -1."""
    if not wanted.any():
        return np.full(len(parent), NONE)
    result = np.where(wanted, np.arange(len(parent)), parent)
    while True:
        open_ = np.flatnonzero(result >= 0)
        open_ = open_[~wanted[result[open_]]]
        if not len(open_):
            return result
        result[open_] = result[result[open_]]  # jumps double, as the ancestors jump too


def occurring(numbers: Index) -> Index:
    return np.flatnonzero(np.bincount(numbers))


def names_fit(names: Sequence[str], name: Index, fits: Callable[[str], object]) -> Flags:
    """Return whether the name of each event fits; each name that occurs is tested once."""
    used = occurring(name)
    flags = np.zeros(len(names), dtype=np.bool_)
    flags[used] = [bool(fits(names[index])) for index in used.tolist()]
    return flags[name]


def follow_flow(index: Index, values: NDArray[np.int64], missing: int = NONE) -> NDArray[np.int64]:
    """Return ``values[index]``, or ``missing`` for an index of -1."""
    if not len(values):
        return np.full(len(index), missing)
    return np.where(index >= 0, values[index], missing)


def self_times(events: HostEvents, parent: Index) -> tuple[Index, Times, Times]:
    """Cut each thread's time into non-empty pieces that belong to the innermost event.

    Returns owner (index of events), start and end; pieces of a thread are disjoint if its events
    nest.
    """
    begin, finish = events.start.tolist(), events.end.tolist()
    free_from = begin.copy()  # time before it belongs to a child, or is a piece already
    pieces: list[tuple[int, int, int]] = []
    # Children come by start, so an event's free time begins where the last child so far ended;
    # `max`, because an overlapping child may end before an earlier one.
    for child, mother in enumerate(parent.tolist()):
        if mother < 0:
            continue
        if begin[child] > free_from[mother]:
            pieces.append((mother, free_from[mother], begin[child]))
        free_from[mother] = max(free_from[mother], finish[child])
    pieces += (
        (index, free, end)
        for index, (free, end) in enumerate(zip(free_from, finish, strict=True))
        if end > free
    )
    owner, start, end = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return owner, start, end
