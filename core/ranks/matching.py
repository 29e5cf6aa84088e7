"""Match calls of the same collective in the files of several ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.rank_summary import RankTrace, TracedCall
from sysbench.core.trace.trace_events import NONE, Index

SYNCHRONISING = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "barrier")
"""Kinds in which every rank needs data of every other: none can end before all have come."""
UNEVEN = ("all-to-all", "barrier")
SEND_RECEIVE = "send-receive"
MAX_SHIFTS = 12
SHIFT_COST, UNSHARED_COST = 1.5, 0.5
"""Cost of changing the shift within a file, as after a lost call, and of a call that the other file
does not have; a call in another step costs 1."""


class _Key(NamedTuple):
    group: str
    kind: str
    bytes: int | None
    position: int | None
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Match:
    """One collective with the calls of at least two ranks.

    ``sender`` is the rank that sends, if the call is a transfer from one rank to another.
    """

    kind: str
    bytes: int | None
    group: str
    group_size: int | None
    calls: Mapping[int, TracedCall]
    sender: int | None = None

    @property
    def is_synchronising(self) -> bool:
        return self.kind in SYNCHRONISING or self.is_pair

    @property
    def is_pair(self) -> bool:
        """Whether it is a transfer between two ranks."""
        return self.kind == SEND_RECEIVE


def match_collectives(ranks: Mapping[int, RankTrace], *, one_clock: bool = False) -> list[Match]:
    """Return the collectives found in at least two files, in the order of the lowest rank's clock.

    Calls of one group, kind and size are matched by their number in the group; without numbers, in
    order from the end of what the files share, where marked steps, or one clock, say where that
    is. A send is matched in the same way with the receive of the same source and target.
    """
    calls_of: defaultdict[_Key, dict[int, list[TracedCall]]] = defaultdict(dict)
    numbered = _numbered(ranks)
    for rank, trace in ranks.items():
        for call in trace.calls:  # in the order of their start
            key = _key(call, numbered=call.group in numbered)
            calls_of[key].setdefault(rank, []).append(call)
    matches = []
    for key, by_rank in calls_of.items():
        sender = None
        if key.kind == SEND_RECEIVE and key.source == NONE and not _is_pair(key, by_rank):
            continue  # which two ranks each transfer is of is not known
        if key.source != NONE:
            senders = [rank for rank, calls in by_rank.items() if calls[0].sends]
            if len(by_rank) != 2 or len(senders) != 1:
                continue  # ranks of several groups without a name
            (sender,) = senders
        for calls in _aligned(ranks, by_rank, one_clock=one_clock):
            sizes = {call.group_size for call in calls.values()}
            matches.append(
                Match(
                    kind=key.kind,
                    bytes=calls[sender].bytes if sender is not None else key.bytes,
                    group=key.group,
                    group_size=sizes.pop() if len(sizes) == 1 else None,
                    calls=calls,
                    sender=sender,
                )
            )
    return sorted(matches, key=lambda match: min(match.calls.items())[1].start_ns)


def _is_pair(key: _Key, by_rank: Mapping[int, list[TracedCall]]) -> bool:
    sizes = {call.group_size for calls in by_rank.values() for call in calls}
    return bool(key.group) and len(by_rank) == 2 and sizes == {2}


def _numbered(ranks: Mapping[int, RankTrace]) -> set[str]:
    calls = [call for trace in ranks.values() for call in trace.calls]
    return {call.group for call in calls} - {call.group for call in calls if call.position == NONE}


def _key(call: TracedCall, *, numbered: bool) -> _Key:
    is_sized = call.kind not in UNEVEN and call.source == NONE
    return _Key(
        group=call.group,
        kind=call.kind,
        bytes=call.bytes if is_sized else None,
        # Sends and receives of a pair have numbers of their own.
        position=call.position if numbered and call.kind != SEND_RECEIVE else None,
        source=call.source,
        target=call.target,
    )


def _aligned(
    ranks: Mapping[int, RankTrace], by_rank: Mapping[int, list[TracedCall]], *, one_clock: bool
) -> Iterator[dict[int, TracedCall]]:
    """Yield the calls of each collective that at least two ranks have, in order."""
    if len(by_rank) < 2:
        return
    longest = max(by_rank, key=lambda rank: (len(by_rank[rank]), -rank))
    shared = [{longest: call} for call in by_rank[longest]]
    steps = {rank: _steps(ranks[rank], calls) for rank, calls in by_rank.items()}
    for rank, calls in by_rank.items():
        if rank == longest:
            continue
        times = (by_rank[longest], calls) if one_clock else None
        for place, call in zip(_places(steps[longest], steps[rank], times), calls, strict=True):
            if place != NONE:
                shared[place][rank] = call
    yield from (dict(sorted(calls.items())) for calls in shared if len(calls) > 1)


def _steps(trace: RankTrace, calls: Sequence[TracedCall]) -> Index:
    """Return the step of each call; steps without a number of their own count from the last."""
    steps = np.array([call.step for call in calls], dtype=np.int64)
    if trace.has_step_numbers or not trace.steps:
        return steps
    last = max(part.number for part in trace.steps)
    return np.where(steps == NONE, NONE, steps - last - 2)


def _places(
    reference: Index, steps: Index, times: tuple[list[TracedCall], list[TracedCall]] | None
) -> list[int]:
    """Return for each call of a rank its place among those of the longest rank, or -1.

    A place is the call's own plus a shift. Usually one shift, from the end, suits all calls. Else
    the shifts of the least cost are found by dynamic programming (Viterbi), as a call may be lost.
    ``reference`` and ``steps`` are the marked steps of the calls of the longest rank and of this
    one; ``times`` the calls themselves, if their clocks are the same.
    """
    size, count = len(reference), len(steps)
    own = np.arange(count)
    if (reference == NONE).all() or (steps == NONE).all():
        reference, steps = np.full(size, NONE), np.full(count, NONE)
    overlaps = None if times is None else _Overlap(*times)
    from_end = size - count
    cost = _costs(reference, steps, own + from_end, overlaps)
    if not cost.any():
        return (own + from_end).tolist()
    shifts = _candidates(reference, steps, from_end)
    if overlaps is not None:
        shifts |= Counter(overlaps.shifts().tolist())
    tried = [from_end, *(shift for shift, _ in shifts.most_common(MAX_SHIFTS) if shift != from_end)]
    costs = np.stack([_costs(reference, steps, own + shift, overlaps) for shift in tried], axis=1)
    chosen = np.array(tried)[_cheapest(costs, np.abs(np.array(tried) - from_end))]
    return _ascending(own + chosen, size)


def _candidates(reference: Index, steps: Index, from_end: int) -> Counter[int]:
    """Count the shifts that would align the first or the last calls of a step."""
    shifts = Counter({from_end: 1})
    common = set(reference.tolist()) & set(steps.tolist()) - {NONE}
    for label in common:
        ours, theirs = np.flatnonzero(reference == label), np.flatnonzero(steps == label)
        shifts[int(ours[0] - theirs[0])] += 1
        shifts[int(ours[-1] - theirs[-1])] += 1
    return shifts


class _Overlap:
    """Whether calls on one clock overlap in time, as those of one collective do."""

    def __init__(self, reference: list[TracedCall], calls: list[TracedCall]) -> None:
        (self._start, self._end), (self._from, self._to) = (
            np.array([(call.start_ns, call.end_ns) for call in side], dtype=np.int64).T
            for side in (reference, calls)
        )

    def at(self, places: Index) -> NDArray[np.bool_]:
        return np.asarray((self._start[places] < self._to) & (self._from < self._end[places]))

    def shifts(self) -> Index:
        first: Index = np.searchsorted(self._end, self._from, side="right")
        return first - np.arange(len(self._from))


def _costs(
    reference: Index, steps: Index, places: Index, overlaps: _Overlap | None
) -> NDArray[np.float64]:
    inside = (places >= 0) & (places < len(reference))
    at = np.clip(places, 0, len(reference) - 1)
    differs = (reference[at] != steps).astype(np.float64)
    if overlaps is not None:
        differs += ~overlaps.at(at)
    return np.where(inside, differs, UNSHARED_COST)


def _cheapest(costs: NDArray[np.float64], distance: Index) -> Index:
    """Return the index of the shift of each call; of equals the nearest to the end's, for as long
    from the end as possible."""
    count, tried = costs.shape
    total = costs[0]
    stays = np.ones((count, tried), dtype=np.bool_)
    best = np.zeros(count, dtype=np.int64)
    for call in range(1, count):
        best[call] = total.argmin()
        changed = total[best[call]] + SHIFT_COST
        stays[call] = total <= changed
        total = np.minimum(total, changed) + costs[call]
    state = int((total + distance / (distance.max() + 1) / 2**20).argmin())
    chosen = np.zeros(count, dtype=np.int64)
    for call in range(count - 1, -1, -1):
        chosen[call] = state
        if not stays[call, state]:
            state = int(best[call])
    return chosen


def _ascending(places: Index, size: int) -> list[int]:
    """Return the places without those outside, and without those a later call has."""
    kept, limit = [], size
    for place in reversed(places.tolist()):
        is_free = 0 <= place < limit
        kept.append(place if is_free else NONE)
        limit = place if is_free else limit
    return kept[::-1]
