"""What a cell of a timeline shows, and what is under a cursor, without a walk over the events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.intervals import Cover, Times
from sysbench.core.trace.lanes import HOST, Lane, LaneEvents, Lanes
from sysbench.core.trace.trace_events import NONE, Index

MAX_OVERLAPPING = 2**14
"""Events of a thread within one gap that are looked at."""


class Cells(NamedTuple):
    """One lane in cells of equal length.

    ``category`` is an index of `Lanes.texts`, -1 in a cell without events; ``share`` is the covered
    part of a cell, from 0 to 1.
    """

    category: Index
    share: NDArray[np.float64]


class DrawnLane:
    """A lane with the sums that make its cells cheap: a search per edge of a cell and category."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.events = lane.events

    @cached_property
    def covers(self) -> dict[int, Cover]:
        category = self.events.category
        used = np.flatnonzero(np.bincount(category)).tolist()
        if len(used) == 1:
            return {used[0]: Cover(self.events.start, self.events.end)}
        return {
            number: Cover(self.events.start[chosen], self.events.end[chosen])
            for number in used
            for chosen in [np.flatnonzero(category == number)]
        }

    @cached_property
    def reached(self) -> Times:
        """Latest end of each event and those before it."""
        reached: Times = np.maximum.accumulate(self.events.end)
        return reached

    def cells(self, low: int, high: int, width: int) -> Cells:
        """Return for each of ``width`` cells of [low, high) the category with the most time."""
        edges = cell_edges(low, high, width)
        numbers = np.array([*self.covers], dtype=np.int64)
        times = np.stack([np.diff(cover.before(edges)) for cover in self.covers.values()])
        total = times.sum(axis=0)
        # Work of two categories may overlap, for example on two streams of a CUDA graph.
        share = np.minimum(total / np.maximum(np.diff(edges), 1), 1.0)
        category = np.where(total > 0, numbers[times.argmax(axis=0)], NONE)
        return Cells(category, share)

    def between(self, low: int, high: int) -> tuple[int, int]:
        """Return the range of events that overlap [low, high), if the lane's events are disjoint.

        With overlapping events it may have some that ended before.
        """
        first = int(np.searchsorted(self.reached, low, side="right"))
        return first, max(first, int(np.searchsorted(self.events.start, high)))

    def event_at(self, low: int, high: int) -> int:
        """Return the event that is open at ``low``, else the first in [low, high), else -1.

        An event without length counts as open at its instant.
        """
        last = int(np.searchsorted(self.events.start, low, side="right")) - 1
        if last >= 0 and (self.events.end[last] > low or self.events.start[last] == low):
            return last
        first, end = self.between(low, high)
        return first if first < end else NONE


def cell_edges(low: int, high: int, width: int) -> Times:
    """Return the ``width + 1`` edges of cells in nanoseconds."""
    return low + np.arange(width + 1, dtype=np.int64) * (high - low) // width


class IdlePiece(NamedTuple):
    """A part of a gap with one cause; times in nanoseconds."""

    cause: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Time in which nothing ran on a device, in pieces by cause, as the time ledger splits it.

    ``host`` has the operator and the call of a thread with the most time in the gap, by name, with
    that time; it is empty if none was recorded.
    """

    pieces: list[IdlePiece]
    host: dict[str, int]

    @property
    def ns(self) -> int:
        return self.pieces[-1].end - self.pieces[0].start


class DrawnLanes:
    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.rows = [DrawnLane(lane) for lane in lanes.lanes]

    def text(self, number: int) -> str:
        return self.lanes.texts[number] if number >= 0 else ""

    def gap_before(self, row: DrawnLane, time: int) -> Gap | None:
        """Return the gap of the row's device that ends at a time; None if there is none."""
        idle = self._idle(row)
        if idle is None:
            return None
        last = int(np.searchsorted(idle.events.end, time))
        if last == len(idle.events) or idle.events.end[last] != time:
            return None
        return self._gap_around(row, idle.events, last)

    def gap_at(self, row: DrawnLane, time: int) -> Gap | None:
        """Return the gap of the row's device around a time; None if something ran then."""
        idle = self._idle(row)
        if idle is None:
            return None
        piece = int(np.searchsorted(idle.events.start, time, side="right")) - 1
        if piece < 0 or idle.events.end[piece] <= time:
            return None
        return self._gap_around(row, idle.events, piece)

    def _idle(self, row: DrawnLane) -> DrawnLane | None:
        group = row.lane.group
        rows = (other for other in self.rows if other.lane.group == group)
        return next((other for other in rows if other.lane.kind == "idle"), None)

    def _gap_around(self, row: DrawnLane, idle: LaneEvents, piece: int) -> Gap:
        """Join the pieces that touch: a gap is one piece per cause."""
        first = last = piece
        while first > 0 and idle.end[first - 1] == idle.start[first]:
            first -= 1
        while last + 1 < len(idle) and idle.start[last + 1] == idle.end[last]:
            last += 1
        pieces = [
            IdlePiece(self.text(label), start, end)
            for label, start, end in zip(
                *(
                    column[first : last + 1].tolist()
                    for column in (idle.label, idle.start, idle.end)
                ),
                strict=True,
            )
        ]
        is_host = row.lane.group == HOST
        host = {} if is_host else self._host_during(pieces[0].start, pieces[-1].end)
        return Gap(pieces=pieces, host=host)

    def _host_during(self, low: int, high: int) -> dict[str, int]:
        longest: dict[str, tuple[int, str]] = {}
        for row in self.rows:
            kind, events = row.lane.kind, row.events
            if row.lane.group != HOST or kind not in ("work", "calls"):
                continue
            first, end = row.between(low, high)
            chosen = slice(first, min(end, first + MAX_OVERLAPPING))
            inside = np.minimum(events.end[chosen], high) - np.maximum(events.start[chosen], low)
            ns = int(inside.max(initial=0))
            if ns > longest.get(kind, (0, ""))[0]:
                longest[kind] = ns, self.text(int(events.label[first + int(inside.argmax())]))
        return {name: ns for ns, name in longest.values()}
