"""Offsets between clocks: of ranks from collectives alone, of hosts by exchanging messages.

A rank cannot end a synchronizing collective before all have come. So with clocks ``a`` and ``b``
ahead of true time, ``a - b <= end on a - start on b`` for every such collective, and vice versa:
each collective bounds the offset from both sides, as a round trip does in NTP (RFC 5905, section
8). A receive bounds it from one side, and also from the other if the sender waits. Bounds add up
along any path of ranks. Within them the offset is the median difference of the ends, which are
close together.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.core.ranks.matching import Match
from sysbench.core.trace.collective_kernels import RankStep

NO_BOUND_NS = 2**60
"""No bound, in nanoseconds; sums of two fit 63 bits."""
MIN_COLLECTIVES = 3
"""Minimum number of collectives for a spread of their ends."""
MAX_DISTANCE_NS = 2**52
"""Nanoseconds: files 52 days apart are not of one job; keeps sums over ranks exact."""


@dataclass(frozen=True, slots=True)
class RankClock:
    """Offset ``ahead_ns`` from the reference rank's clock, with its error bound.

    ``spread_ns`` is the distance from the median within which nine of ten ends lie, summed along
    the path to the reference: the error if collectives end on all ranks together. It is at most the
    error, and equals it if there are few collectives.
    """

    ahead_ns: int
    error_ns: int
    spread_ns: int


@dataclass(frozen=True, slots=True)
class RankClocks:
    """Clocks by rank, without ranks that no path of collectives connects to the reference.

    ``conflict_ns`` must be added to every bound for all of them to hold, because stamps are inexact
    or clocks drift. It is part of every error.
    """

    reference: int
    by_rank: dict[int, RankClock]
    conflict_ns: int


def align_clocks(ranks: Sequence[int], matches: Iterable[Match]) -> RankClocks:
    order = sorted(ranks)
    place = {rank: index for index, rank in enumerate(order)}
    bound = np.full((len(order), len(order)), NO_BOUND_NS, dtype=np.int64)
    np.fill_diagonal(bound, 0)
    assumed = bound.copy()
    ends: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    ends_of_sends: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for match in matches:
        if not match.is_synchronising:
            continue
        calls = [(place[rank], call) for rank, call in match.calls.items()]
        for a, first in calls:
            for b, second in calls:
                if a == b or abs(first.end_ns - second.start_ns) > MAX_DISTANCE_NS:
                    continue
                # a cannot end before b has started: offset of a against b <= end - start
                can_end_early = match.sender is not None and place[match.sender] == a
                bounds = assumed if can_end_early else bound
                bounds[a, b] = min(bounds[a, b], first.end_ns - second.start_ns)
                if a < b:
                    kept = ends_of_sends if match.is_pair else ends
                    kept[a, b].append(first.end_ns - second.end_ns)
    conflict_ns, bound = _resolve_conflicts(bound)
    # A sender may end before its receiver comes, if the data fit into buffers. Usually it does not,
    # and it is assumed not to where that contradicts no other bound.
    assumed = np.where(assumed + bound.T >= 0, assumed + conflict_ns, NO_BOUND_NS)
    if (np.diag(both := _shortest(np.minimum(bound, assumed))) >= 0).all():
        bound = both
    # A send may end before its receive: other collectives are the better estimate.
    estimate = _estimates(bound, ends_of_sends | ends)
    by_rank = {}
    for index, (value, spread_ns) in estimate.items():
        high, low = int(bound[index, 0]), -int(bound[0, index])
        ahead = min(max(value, low), high)  # the estimate, moved into its bounds
        slack_ns = conflict_ns if index else 0  # the reference has no error
        error_ns = max(high - ahead, ahead - low) + slack_ns
        moved_ns = abs(ahead - value)
        by_rank[order[index]] = RankClock(ahead, error_ns, min(error_ns, spread_ns + moved_ns))
    return RankClocks(order[0], by_rank, conflict_ns)


def _resolve_conflicts(bound: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Return the slack that makes all bounds consistent, within a factor of two, and the shortest
    bounds."""
    is_bounded = bound < NO_BOUND_NS
    np.fill_diagonal(is_bounded, val=False)
    # A negative width is a contradiction of two ranks; longer paths may need more slack.
    widths = bound + bound.T
    slack = max(0, -int(widths[is_bounded].min(initial=0)) // 2)
    while True:
        shortest = _shortest(bound + slack * is_bounded)
        if (np.diag(shortest) >= 0).all():
            return slack, shortest
        slack = 2 * slack + 1


def _shortest(bound: NDArray[np.int64]) -> NDArray[np.int64]:
    """Floyd-Warshall shortest paths; a negative diagonal means a contradiction."""
    result: NDArray[np.int64] = bound.copy()
    for middle in range(len(result)):
        through = np.minimum(result[:, middle, None] + result[None, middle, :], NO_BOUND_NS)
        result = np.minimum(result, through)
        if (np.diag(result) < 0).any():
            return result
    return result


def _estimates(
    bound: NDArray[np.int64], ends: dict[tuple[int, int], list[int]]
) -> dict[int, tuple[int, int]]:
    """Return offset and spread of each clock along the best-known pairs (Prim's tree)."""
    medians = {pair: round(statistics.median(values)) for pair, values in ends.items()}
    offsets = {0: (0, 0)}
    while True:
        # Pairs with exactly one known clock; the tightest bounds come first.
        open_pairs = [
            (int(bound[a, b] + bound[b, a]), a, b)
            for a, b in medians
            if (a in offsets) != (b in offsets) and max(bound[a, b], bound[b, a]) < NO_BOUND_NS
        ]
        if not open_pairs:
            return offsets
        _, a, b = min(open_pairs)
        spread = _spread(ends[a, b], medians[a, b])
        known, new, sign = (a, b, -1) if a in offsets else (b, a, 1)
        ahead, so_far = offsets[known]
        offsets[new] = (ahead + sign * medians[a, b], min(NO_BOUND_NS, so_far + spread))


def _spread(values: Sequence[int], median: int) -> int:
    """Return the distance from the median within which nine of ten values lie."""
    if len(values) < MIN_COLLECTIVES:
        return NO_BOUND_NS
    off = sorted(abs(value - median) for value in values)
    return off[-1 - len(off) // 10]


MAX_TRIPS = 5
"""Number of round trips to use: slower ones are less exact and older, and clocks may drift."""


class RoundTrip(msgspec.Struct, frozen=True):
    """A message to the reference and its answer, in ns; answered by the reference's clock."""

    sent_ns: int
    answered_ns: int
    received_ns: int


class ClockReading(msgspec.Struct, frozen=True):
    """Offset of a clock from the reference, with its maximum error.

    ``at_ns`` is the time of the reading on that clock.
    """

    at_ns: int
    ahead_ns: int
    error_ns: int


def reading(trips: Sequence[RoundTrip]) -> ClockReading:
    """Return the offset allowed by the fastest round trips: the middle of their common bounds.

    If bounds contradict each other because clocks drift, the range between the farthest two is
    used. ValueError without a round trip, or for one received before it was sent.
    """
    if not trips or any(trip.received_ns < trip.sent_ns for trip in trips):
        raise ValueError("round trips must end after they begin")
    fastest = sorted(trips, key=lambda trip: trip.received_ns - trip.sent_ns)[:MAX_TRIPS]
    lows = [trip.sent_ns - trip.answered_ns for trip in fastest]
    highs = [trip.received_ns - trip.answered_ns for trip in fastest]
    low, high = max(lows), min(highs)
    if low > high:
        low, high = min(lows), max(highs)
    ahead_ns = (low + high) // 2
    best = fastest[0]
    return ClockReading((best.sent_ns + best.received_ns) // 2, ahead_ns, high - ahead_ns)


def ahead_at(before: ClockReading, after: ClockReading, ns: int) -> int:
    """Return the offset in ns at ``ns`` of the clock, interpolated; constant outside the
    readings."""
    passed = after.at_ns - before.at_ns
    since = min(max(ns - before.at_ns, 0), passed)
    # Integers: times of a clock have more digits than a float.
    drift_ns = after.ahead_ns - before.ahead_ns
    return before.ahead_ns + (drift_ns * since // passed if passed > 0 else 0)


def on_reference(step: RankStep, host: int, before: ClockReading, after: ClockReading) -> RankStep:
    """Return a step of another host with times on the reference clock, and the conversion's error.

    The host's clock was read before and after the step.
    """

    def convert(ns: int) -> int:
        return ns - ahead_at(before, after, ns)

    return msgspec.structs.replace(
        step,
        collectives=[
            msgspec.structs.replace(
                each, arrived_ns=convert(each.arrived_ns), done_ns=convert(each.done_ns)
            )
            for each in step.collectives
        ],
        blocked=step.blocked and [(convert(begin), convert(end)) for begin, end in step.blocked],
        host=host,
        host_ahead_ns=after.ahead_ns,
        host_error_ns=max(before.error_ns, after.error_ns),
    )
