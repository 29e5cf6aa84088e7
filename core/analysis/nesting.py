"""Which event of a thread is inside of which, from their times alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .trace.events import HostEvents
from .trace.intervals import Times

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
