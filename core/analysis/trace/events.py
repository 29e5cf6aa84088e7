"""The events of a trace that take time, as columns of integer nanoseconds, and how they nest."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .intervals import Times

MODULE_PREFIX = "nn.Module: "
"""How torch.profiler begins the name of a module's range."""


class Kind(IntEnum):
    """What an event of a trace is. Kinds from KERNEL on run on a device."""

    OPERATOR = 0
    ANNOTATION = 1
    MODULE = 2
    RUNTIME = 3
    KERNEL = 4
    COPY = 5
    FILL = 6


class Columns:
    """Events as columns of equal length: what the dataclasses below have in common."""

    __slots__: tuple[str, ...] = ()
    kind: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, index: NDArray[np.integer] | NDArray[np.bool_]) -> Self:
        """Some of the events, in the order of the index."""
        return type(self)(**{name: getattr(self, name)[index] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvents(Columns):
    """Operators, annotations, modules and runtime calls.

    ``name`` is an index of `Trace.names`, threads are numbered as they appear, times are
    nanoseconds since `Trace.base_ns`. ``correlation`` is what a runtime call shares with
    the work that it launched, ``sequence`` the number of the autograd node that an operator
    makes, or that runs; -1 where there is none. ``operands`` is an index of
    `Trace.operands`, -1 where the profiler noted no shapes.
    """

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    thread: NDArray[np.int64]
    start: Times
    end: Times
    correlation: NDArray[np.int64]
    sequence: NDArray[np.int64]
    operands: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvents(Columns):
    """Kernels, copies and fills; columns as in `HostEvents`."""

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    device: NDArray[np.int64]
    start: Times
    end: Times
    correlation: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The timed events of a trace that say where time goes; the others are left out.

    ``operands`` are the different inputs that operators had, as `core.analysis.operands`
    reads them; ``devices`` are the devices' names by number, where the file has them.
    """

    names: list[str]
    base_ns: int
    host: HostEvents
    device: DeviceEvents
    operands: list[bytes] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)


Index = NDArray[np.int64]
NONE = -1
ROUNDS = 100
"""Each brings an event up one level, or past twice as many that are over."""


def by_thread(events: HostEvents) -> HostEvents:
    """Each thread's events by start, an event before what is inside of it."""
    return events.take(np.lexsort((-events.end, events.start, events.thread)))


def parents(events: HostEvents) -> Index:
    """For events in `by_thread` order the index of the innermost event around each, or -1.

    That is the last before it on its thread that ends after it began: ranges that overlap
    without nesting (a profiler's step may end inside another range) count as inside while
    they begin inside.
    """
    start, end = events.start, events.end
    around = np.arange(-1, len(events) - 1)
    around[_first_of_thread(events)] = NONE
    pending = np.arange(len(events))
    for _ in range(ROUNDS):  # all that lies between an event and its candidate is over
        candidate = around[pending]
        pending = pending[(candidate != NONE) & (end[candidate] <= start[pending])]
        if not len(pending):
            return around
        around[pending] = around[around[pending]]
    first = _first_of_thread(events)
    for index in pending.tolist():  # endlessly nested: one after the other takes linear time
        above = NONE if first[index] else index - 1
        while above != NONE and end[above] <= start[index]:
            above = int(around[above])
        around[index] = above
    return around


def _first_of_thread(events: HostEvents) -> NDArray[np.bool_]:
    first = np.ones(len(events), dtype=bool)
    first[1:] = events.thread[1:] != events.thread[:-1]
    return first


def nearest(wanted: NDArray[np.bool_], parent: Index) -> Index:
    """For each event itself if wanted, else its innermost wanted ancestor, else -1."""
    result = np.where(wanted, np.arange(len(parent)), parent)
    while True:
        open_ = np.flatnonzero(result >= 0)
        open_ = open_[~wanted[result[open_]]]
        if not len(open_):
            return result
        result[open_] = result[result[open_]]  # jumps double: ancestors jump too


def follow(index: Index, values: NDArray[np.int64], missing: int = NONE) -> NDArray[np.int64]:
    """``values[index]``, and ``missing`` where the index is -1."""
    if not len(values):
        return np.full(len(index), missing)
    return np.where(index >= 0, values[index], missing)


def self_times(events: HostEvents, parent: Index) -> tuple[Index, Times, Times]:
    """Cut each thread's time into pieces that belong to the innermost event.

    Returns:
        Owner (an index of events), start and end of each piece, none empty; the pieces of a
        thread are disjoint where its events nest.
    """
    begin, finish = events.start.tolist(), events.end.tolist()
    free_from = begin.copy()  # what lies before it is a child's, or already cut
    pieces: list[tuple[int, int, int]] = []
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
