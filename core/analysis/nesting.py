"""Which event of a thread is inside of which, from their times alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .intervals import Times
from .trace_events import HostEvents

Index = NDArray[np.int64]
NONE = -1


def by_thread(events: HostEvents) -> HostEvents:
    """Each thread's events by start, an event before what is inside of it."""
    return events.take(np.lexsort((-events.end, events.start, events.thread)))


def parents(events: HostEvents) -> Index:
    """For events in `by_thread` order the index of the innermost event around each, or -1.

    Ranges that overlap without nesting (a profiler's step may end inside another range)
    count as inside while they begin inside.
    """
    encloses = np.zeros(len(events), dtype=bool)
    encloses[:-1] = events.start[1:] < events.end[:-1]  # the next begins inside
    columns = (events.thread, events.start, events.end, encloses)
    result: list[int] = []
    open_events, open_until = [NONE], [math.inf]
    current = NONE
    for index, (thread, start, end, has_inside) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if thread != current:
            current = thread
            del open_events[1:], open_until[1:]
        while open_until[-1] <= start:
            open_until.pop()
            open_events.pop()
        result.append(open_events[-1])
        if has_inside:
            open_events.append(index)
            open_until.append(end)
    return np.array(result, dtype=np.int64)


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
