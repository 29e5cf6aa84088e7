"""Find the last rank to reach each collective, on one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sysbench.core.ranks.clock_alignment import RankClocks
from sysbench.core.ranks.matching import Match


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One collective on the reference clock.

    Attributes:
        arrived: Time at which each aligned rank reached it.
        last: Rank that came last.
        late_ns: Delay of the last rank after the one before; 0 within the clock error.
        is_bounded: Whether the delay exceeds the error bound, not only the spread of the ends.
    """

    match: Match
    arrived: dict[int, int]
    last: int
    last_ns: int
    late_ns: int
    is_bounded: bool


def arrivals(matches: Iterable[Match], clocks: RankClocks) -> list[Arrivals]:
    """Return the synchronizing collectives of at least two aligned ranks, by last arrival."""
    found = []
    for match in matches:
        arrived = {
            rank: call.start_ns - clocks.by_rank[rank].ahead_ns
            for rank, call in match.calls.items()
            if rank in clocks.by_rank
        }
        if not match.is_synchronising or len(arrived) < 2:
            continue
        (second_ns, second), (last_ns, last) = sorted((ns, rank) for rank, ns in arrived.items())[
            -2:
        ]
        pair = clocks.by_rank[last], clocks.by_rank[second]
        late_ns = last_ns - second_ns
        if late_ns <= sum(clock.spread_ns for clock in pair):
            late_ns = 0
        is_bounded = late_ns > sum(clock.error_ns for clock in pair)
        found.append(Arrivals(match, arrived, last, last_ns, late_ns, is_bounded))
    return sorted(found, key=lambda each: each.last_ns)


def last_arrivals(rank: int, found: Iterable[Arrivals], clocks: RankClocks) -> dict[int, int]:
    """Return the last arrival of each call by its identity, on this rank's own clock."""
    ahead_ns = clocks.by_rank[rank].ahead_ns if rank in clocks.by_rank else 0
    return {
        id(each.match.calls[rank]): each.last_ns + ahead_ns
        for each in found
        if rank in each.arrived
    }


def late_by_rank(found: Iterable[Arrivals]) -> dict[int, list[Arrivals]]:
    """Return by rank the collectives that waited only for this rank."""
    late: defaultdict[int, list[Arrivals]] = defaultdict(list)
    for each in found:
        if each.late_ns:
            late[each.last].append(each)
    return late
