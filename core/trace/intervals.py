"""Exact arithmetic on half-open intervals [start, end) of integer nanoseconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


def sums_by(index: NDArray[np.int64], values: Times, count: int) -> Times:
    """Return the sum of the values of each index from 0 to ``count - 1``."""
    # ``add.at`` and not ``+=``, which counts an index once. bincount would sum in floats.
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, index, values)
    return sums


def open_at(start: Times, end: Times, times: Times) -> NDArray[np.int64]:
    """Return the last interval that begins at or before each time, if it is open then, else -1."""
    if not len(start):
        return np.full(len(times), -1)
    at = np.searchsorted(start, times, side="right") - 1  # index -1 reads the last end
    return np.where((at >= 0) & (times < end[at]), at, -1)


class Cover:
    """The union of a set of intervals, and its overlap with other intervals.

    Attributes:
        start, end: The union as disjoint, ascending, non-empty intervals.
    """

    def __init__(self, start: Times, end: Times) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        reached = np.maximum.accumulate(end)
        opens = np.ones(len(start), dtype=bool)
        opens[1:] = start[1:] > reached[:-1]  # touching intervals become one
        first = np.flatnonzero(opens)
        start = start[first]
        # A run of intervals ends at the furthest end before the next run's first, the last run
        # at the furthest of all.
        end = reached[np.r_[first[1:] - 1, -1]] if len(first) else end
        self.start, self.end = start[end > start], end[end > start]
        self._before = np.r_[0, np.cumsum(self.end - self.start)]  # one more than intervals

    @property
    def total(self) -> int:
        return int(self._before[-1])

    def clipped(self, low: int, high: int) -> Cover:
        return Cover(np.clip(self.start, low, high), np.clip(self.end, low, high))

    def before(self, time: Times) -> Times:
        # Intervals begun until then; one that begins at the instant counts, with no length.
        index = np.searchsorted(self.start, time, side="right")
        if not len(self.start):
            return np.zeros(len(time), dtype=np.int64)
        last = np.maximum(index - 1, 0)
        into = np.minimum(time - self.start[last], self.end[last] - self.start[last])
        covered: Times = np.where(index > 0, self._before[last] + into, 0)
        return covered

    def within(self, start: Times, end: Times) -> Times:
        return self.before(end) - self.before(start)

    def length(self, low: int, high: int) -> int:
        return int(self.within(np.array([low]), np.array([high]))[0])

    def shared(self, other: Cover) -> Cover:
        """Return the intersection of both covers."""
        # Each of these intervals meets a run of the other's, since both are in order.
        first = np.searchsorted(other.end, self.start, side="right")
        counts = np.maximum(np.searchsorted(other.start, self.end, side="left") - first, 0)
        mine = np.repeat(np.arange(len(self.start)), counts)
        before = np.cumsum(counts) - counts
        theirs = np.arange(len(mine)) - np.repeat(before - first, counts)
        return Cover(
            np.maximum(self.start[mine], other.start[theirs]),
            np.minimum(self.end[mine], other.end[theirs]),
        )

    def without(self, other: Cover) -> Cover:
        """Return this cover minus the other."""
        if not len(self.start):
            return self
        return self.shared(Cover(*other.gaps(int(self.start[0]), int(self.end[-1]))))

    def gaps(self, low: int, high: int) -> tuple[Times, Times]:
        """Return the parts of [low, high) that are not covered, ascending and non-empty."""
        # A gap lies from each end to the next start; clipping empties those outside.
        start = np.r_[low, np.clip(self.end, low, high)]
        end = np.r_[np.clip(self.start, low, high), high]
        empty = end <= start
        return start[~empty], end[~empty]


def exclusive(start: Times, end: Times, rank: NDArray[np.integer]) -> Times:
    """Return the length of each interval that counts for it alone; they add up to the union.

    An instant counts for the lowest rank that covers it, and within the rank for the interval that
    started first (for equal starts, the first in the arrays).
    """
    result = np.zeros(len(start), dtype=np.int64)
    taken = Cover(start[:0], end[:0])
    for level in np.unique(rank):
        member = np.flatnonzero(rank == level)
        member = member[np.argsort(start[member], kind="stable")]  # stable: ties by position
        begins, ends = start[member], end[member]
        # Within a rank an interval begins where all earlier ones have ended, which makes them
        # disjoint; one that lies inside an earlier one becomes empty.
        reached = np.maximum.accumulate(ends)
        begins[1:] = np.maximum(begins[1:], reached[:-1])
        begins = np.minimum(begins, ends)
        result[member] = ends - begins - taken.within(begins, ends)  # less lower ranks
        taken = Cover(np.r_[taken.start, begins], np.r_[taken.end, ends])
    return result
