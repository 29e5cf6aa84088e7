"""How far the ranks' clocks are apart, from collectives alone.

No rank can end a collective in which each needs every other before all have come. So with clocks
``a`` and ``b`` ahead of the true time, ``a - b <= end on a - start on b`` for every such
collective, and the same the other way round: every collective bounds the difference from both
sides, the way a round trip bounds it in NTP (RFC 5905, section 8). Bounds along any path of ranks
add up. Within them the difference is taken from the ends, which lie close together: the median.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sysbench.core.ranks.matching import Match

FAR = 2**60
"""Nanoseconds that stand for no bound; sums of two fit 63 bits."""
FEW = 3
"""Collectives from which the spread of their ends says something."""
FARTHEST = 2**52
"""Nanoseconds: files that are 52 days apart are not of one job, and sums over ranks stay exact."""


@dataclass(frozen=True, slots=True)
class RankClock:
    """``ahead_ns`` of the reference's clock, wrong by ``error_ns`` at most.

    ``spread_ns`` is by how much nine of ten ends lie off the median that ``ahead_ns`` was taken
    from, along the path to the reference: what the error is if collectives end on all ranks
    together. It is never more than the error, and as much where there are few collectives.
    """

    ahead_ns: int
    error_ns: int
    spread_ns: int


@dataclass(frozen=True, slots=True)
class RankClocks:
    """Clocks by rank; ranks without a path of collectives to the reference are absent.

    ``conflict_ns`` is what must be added to every bound for all of them to hold: the stamps or the
    steadiness of the clocks are no better than that. It is part of every error.
    """

    reference: int
    by_rank: dict[int, RankClock]
    conflict_ns: int


def aligned(ranks: Sequence[int], matches: Iterable[Match]) -> RankClocks:
    """The clocks of the ranks against the lowest rank's."""
    order = sorted(ranks)
    place = {rank: index for index, rank in enumerate(order)}
    bound = np.full((len(order), len(order)), FAR, dtype=np.int64)
    np.fill_diagonal(bound, 0)
    ends: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for match in matches:
        if not match.is_synchronising:
            continue
        calls = [(place[rank], call) for rank, call in match.calls.items()]
        for a, first in calls:
            for b, second in calls:
                if a == b or abs(first.end_ns - second.start_ns) > FARTHEST:
                    continue
                bound[a, b] = min(bound[a, b], first.end_ns - second.start_ns)
                if a < b:
                    ends[a, b].append(first.end_ns - second.end_ns)
    conflict_ns, bound = _without_conflict(bound)
    estimate = _estimates(bound, ends)
    by_rank = {}
    for index, (value, spread_ns) in estimate.items():
        high, low = int(bound[index, 0]), -int(bound[0, index])
        ahead = min(max(value, low), high)
        doubt_ns = conflict_ns if index else 0
        error_ns = max(high - ahead, ahead - low) + doubt_ns
        moved_ns = abs(ahead - value)
        by_rank[order[index]] = RankClock(ahead, error_ns, min(error_ns, spread_ns + moved_ns))
    return RankClocks(order[0], by_rank, conflict_ns)


def _without_conflict(bound: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """The least that makes all bounds hold together, to a factor of two, and the bounds with it,
    each the shortest along any path."""
    told = bound < FAR
    np.fill_diagonal(told, val=False)
    widths = bound + bound.T
    slack = max(0, -int(widths[told].min(initial=0)) // 2)
    while True:
        shortest = _shortest(bound + slack * told)
        if (np.diag(shortest) >= 0).all():
            return slack, shortest
        slack = 2 * slack + 1


def _shortest(bound: NDArray[np.int64]) -> NDArray[np.int64]:
    """Floyd and Warshall's shortest paths; a negative diagonal tells a contradiction."""
    result: NDArray[np.int64] = bound.copy()
    for middle in range(len(result)):
        through = np.minimum(result[:, middle, None] + result[None, middle, :], FAR)
        result = np.minimum(result, through)
        if (np.diag(result) < 0).any():
            return result
    return result


def _estimates(
    bound: NDArray[np.int64], ends: dict[tuple[int, int], list[int]]
) -> dict[int, tuple[int, int]]:
    """How far each rank's clock is ahead of the first one's by the ends of collectives, and their
    spread, along the pairs that are known best (Prim's tree)."""
    medians = {pair: round(statistics.median(values)) for pair, values in ends.items()}
    found = {0: (0, 0)}
    while True:
        open_pairs = [
            (int(bound[a, b] + bound[b, a]), a, b)
            for a, b in medians
            if (a in found) != (b in found)
        ]
        if not open_pairs:
            return found
        _, a, b = min(open_pairs)
        spread = _spread(ends[a, b], medians[a, b])
        known, new, sign = (a, b, -1) if a in found else (b, a, 1)
        ahead, so_far = found[known]
        found[new] = (ahead + sign * medians[a, b], min(FAR, so_far + spread))


def _spread(values: Sequence[int], median: int) -> int:
    """The distance from the median within which nine of ten values lie; `FAR` for a few."""
    if len(values) < FEW:
        return FAR
    off = sorted(abs(value - median) for value in values)
    return off[-1 - len(off) // 10]
