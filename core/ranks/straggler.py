"""Split each rank's span, and find the rank that the others wait for, and why."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from sysbench.core.formatting import counted, percent
from sysbench.core.ranks.clock_alignment import RankClocks
from sysbench.core.ranks.matching import Match
from sysbench.core.ranks.rank_rows import Cause, FileRankRow, RankStepRow
from sysbench.core.record.record import Finding
from sysbench.core.trace.intervals import Cover
from sysbench.core.trace.module_tree import group_by
from sysbench.core.trace.rank_summary import RankTrace


class SpanParts(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds that add up to a window; see `FileRankRow`."""

    span_ns: int
    compute_ns: int
    exposed_ns: int
    waiting_ns: int
    transfer_ns: int
    undivided_ns: int
    idle_ns: int


class SpanSplit:
    """Activity of a rank; ``waiting`` is the exposed time until the last reached a collective."""

    def __init__(self, trace: RankTrace, last: Mapping[int, int]) -> None:
        # `last`: arrival of the last rank by the identity of the call, see `last_arrivals`.
        calls = [(call, last[id(call)]) for call in trace.calls if id(call) in last]
        # With inexact clocks a call may end before the last arrival: then it has no transfer.
        moving = trace.cover(
            [(max(call.start_ns, come), call.end_ns) for call, come in calls if come < call.end_ns]
        )
        waiting = trace.cover([(call.start_ns, min(come, call.end_ns)) for call, come in calls])
        self.work = trace.work
        self.exposed = trace.communication.without(trace.compute)
        self._transfer = moving.shared(self.exposed)
        divided = _union(moving, waiting).shared(self.exposed)
        self.waiting = divided.without(self._transfer)
        self._undivided = self.exposed.without(divided)
        self._busy = _union(self.work, self.exposed)
        self.low_ns, self.high_ns = trace.low_ns, trace.high_ns

    def whole(self) -> SpanParts:
        return self.within(self.low_ns, self.high_ns)

    def within(self, low_ns: int, high_ns: int) -> SpanParts:
        parts = (self.waiting, self._transfer, self._undivided, self._busy)
        waiting, transfer, undivided, busy = (part.length(low_ns, high_ns) for part in parts)
        return SpanParts(
            span_ns=high_ns - low_ns,
            compute_ns=busy - waiting - transfer - undivided,
            exposed_ns=waiting + transfer + undivided,
            waiting_ns=waiting,
            transfer_ns=transfer,
            undivided_ns=undivided,
            idle_ns=high_ns - low_ns - busy,
        )


def _union(a: Cover, b: Cover) -> Cover:
    return Cover(np.r_[a.start, b.start], np.r_[a.end, b.end])


MIN_SHARE = 0.05
"""Minimum lateness to report, as a share of the span."""
MIN_RATIO = 2
"""Minimum lateness relative to the second latest rank."""
MAIN_SHARE = 0.5
"""Share of a rank's lateness above which one cause is named."""
CAUSES: tuple[Cause, ...] = ("idle", "compute", "communication")
ACTIVITY: dict[Cause, str] = {
    "idle": "it ran nothing",
    "compute": "it computed longer",
    "communication": "it waited in other collectives",
}
REMEDIES: dict[Cause, str] = {
    "idle": "Check its host: data loading, Python code, other processes. `inspect` its file, or "
    "its --device, to see the gaps.",
    "compute": "Compare its kernels with those of another rank: more work (uneven data, experts), "
    "or slower work (clocks, another process on the device).",
    "communication": "Check its other process groups.",
}


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One collective on the reference clock: when each aligned rank reached it, and who came last.

    ``late_ns`` is the delay of the last rank after the one before, 0 within the clock error. It is
    bounded if it exceeds the error bound, not only the spread of the ends.
    """

    match: Match
    arrived: dict[int, int]
    last: int
    last_ns: int
    late_ns: int
    is_bounded: bool

    def waits_until(self, rank: int, end_ns: int) -> int:
        """Return the end of a rank's wait: the last arrival, but its own for a sender that ended
        before, as the data fit into buffers."""
        has_not_waited = rank == self.match.sender and end_ns <= self.last_ns
        return self.arrived[rank] if has_not_waited else self.last_ns


def arrivals(matches: Iterable[Match], clocks: RankClocks) -> list[Arrivals]:
    """Return the synchronizing collectives of at least two aligned ranks, by last arrival.

    On one clock also others, such as broadcasts, that no rank ended before the last one came.
    """
    result = []
    for match in matches:
        arrived = {
            rank: call.start_ns - clocks.by_rank[rank].ahead_ns
            for rank, call in match.calls.items()
            if rank in clocks.by_rank
        }
        if len(arrived) < 2:
            continue
        is_exact = not any(clocks.by_rank[rank].error_ns for rank in arrived)
        ends = [match.calls[rank].end_ns - clocks.by_rank[rank].ahead_ns for rank in arrived]
        if not match.is_synchronising and not (is_exact and min(ends) >= max(arrived.values())):
            continue
        (second_ns, second), (last_ns, last) = sorted((ns, rank) for rank, ns in arrived.items())[
            -2:
        ]
        pair = clocks.by_rank[last], clocks.by_rank[second]
        late_ns = last_ns - second_ns
        if late_ns <= sum(clock.spread_ns for clock in pair):
            late_ns = 0
        is_bounded = late_ns > sum(clock.error_ns for clock in pair)
        result.append(Arrivals(match, arrived, last, last_ns, late_ns, is_bounded))
    return sorted(result, key=lambda each: each.last_ns)


def last_arrivals(rank: int, arrived: Iterable[Arrivals], clocks: RankClocks) -> dict[int, int]:
    """Return the end of each call's wait by its identity, on this rank's own clock."""
    ahead_ns = clocks.by_rank[rank].ahead_ns if rank in clocks.by_rank else 0
    return {
        id(call): each.waits_until(rank, call.end_ns - ahead_ns) + ahead_ns
        for each in arrived
        if rank in each.arrived and (call := each.match.calls[rank])
    }


def late_by_rank(arrived: Iterable[Arrivals]) -> dict[int, list[Arrivals]]:
    """Return by rank the collectives that waited only for this rank.

    A receive is not among them: stages of a pipeline wait for each other by design.
    """
    late = (each for each in arrived if each.late_ns and not each.match.is_pair)
    return group_by(late, lambda each: each.last)


def late_causes(
    rank: int, late: Sequence[Arrivals], splits: Mapping[int, SpanSplit], before: Mapping[int, int]
) -> dict[Cause, int]:
    """Return nanoseconds per cause that the rank spent beyond the median of the others.

    Sums over the windows that begin ``before`` the collectives that it was late to (see
    `window_begins`); empty without such a window.
    """
    totals: dict[Cause, int] = {}
    for each in late:
        calls = each.match.calls
        windows = {
            number: (before[id(calls[number])], calls[number].start_ns)
            for number in each.arrived
            if id(calls[number]) in before
        }
        if rank not in windows or len(windows) < 2:
            continue
        spent = {number: _spent(splits[number], *windows[number]) for number in windows}
        for cause in CAUSES:
            others = [spent[number][cause] for number in spent if number != rank]
            beyond = spent[rank][cause] - round(statistics.median(others))
            totals[cause] = totals.get(cause, 0) + beyond
    return totals


def _spent(split: SpanSplit, low_ns: int, high_ns: int) -> dict[Cause, int]:
    parts = split.within(low_ns, max(low_ns, high_ns))
    return {
        "idle": parts.idle_ns,
        "compute": parts.compute_ns,
        "communication": parts.exposed_ns,
    }


def window_begins(ranks: Mapping[int, RankTrace], arrived: Sequence[Arrivals]) -> dict[int, int]:
    """Return the begin of the window before each call by its identity: the end of the previous
    synchronizing call, or the begin of its step."""
    begins: dict[int, int] = {}
    for rank, trace in ranks.items():
        steps = {step.number: step.start_ns for step in trace.steps}
        calls = [each.match.calls[rank] for each in arrived if rank in each.arrived]
        calls.sort(key=lambda call: call.start_ns)
        if calls and calls[0].step in steps:
            begins[id(calls[0])] = steps[calls[0].step]
        begins |= {id(call): earlier.end_ns for earlier, call in pairwise(calls)}
    return begins


def find_straggler(
    rows: Sequence[FileRankRow],
    first_late: Mapping[int, int] | None = None,
    late_a_step: Mapping[int, float] | None = None,
) -> Finding | None:
    """Return a finding on the rank that the others wait for, or None; needs at least two rows.

    ``first_late`` is the lateness of ranks in the first collective of the files, ``late_a_step``
    the mean one in a marked step, in ns.
    """
    second, worst = sorted(rows, key=lambda row: row.late_ns)[-2:]
    least_ns = max(MIN_RATIO * second.late_ns, MIN_SHARE * worst.span_ns)
    if not worst.late_ns or worst.late_ns < least_ns:
        return None
    caused = sum(max(0, ns) for ns in worst.late_causes.values())
    cause = max(CAUSES, key=lambda name: worst.late_causes.get(name, 0))
    cause_ns = worst.late_causes.get(cause, 0)
    has_cause = bool(caused) and cause_ns >= MAIN_SHARE * caused
    is_bounded = worst.bounded_ns >= MAIN_SHARE * worst.late_ns
    before = f": before these, {ACTIVITY[cause]}" if has_cause else ""
    provided = "" if is_bounded else ", if collectives end on all ranks together"
    first_ns = (first_late or {}).get(worst.rank, 0)
    at_first = (
        f" {first_ns / 1e6:.4g} ms of it are in the first collective of these files: the rank "
        "began to record later, or warmed up longer."
        if first_ns >= MAIN_SHARE * worst.late_ns
        else ""
    )
    waiting = ", ".join(
        f"rank {row.rank} {row.waiting_ns / 1e6:.4g} ms" for row in rows if row is not worst
    )
    beyond = ", ".join(
        f"{name} {worst.late_causes[name] / 1e6:+.4g} ms"
        for name in CAUSES
        if name in worst.late_causes
    )
    spent = (
        f"Before them it spent, beyond the median of the others: {beyond}"
        if beyond
        else "What it did before them is unknown"
    )
    return Finding(
        rule="ranks-straggler",
        severity="warning" if is_bounded else "note",
        verdict=f"Rank {worst.rank} is a straggler: others wait {worst.late_ns / 1e6:.4g} ms, "
        f"{percent(worst.late_ns / worst.span_ns, 0)} of its span"
        f"{_a_step(late_a_step, worst.rank)}{provided}{before}.",
        why=f"It was last in {worst.last} of {counted(worst.matched, 'matched collective')}; "
        f"exposed waiting: {waiting}. {spent}.{at_first}"
        f"{'' if is_bounded else _clock_uncertainty(rows)}",
        next=REMEDIES[cause] if has_cause else "Compare its file with that of another rank.",
        numbers={
            "rank": worst.rank,
            "late_ns": worst.late_ns,
            "bounded_ns": worst.bounded_ns,
            "cause": cause if has_cause else "",
            "cause_ns": cause_ns,
        },
    )


def _a_step(ns: Mapping[int, float] | None, rank: int) -> str:
    return f", {ns[rank] / 1e6:.3g} ms a step" if ns and rank in ns else ""


def describe_waiting(rows: Sequence[FileRankRow], steps: Sequence[RankStepRow]) -> Finding | None:
    """Say how long ranks without a straggler wait; None if no collective is matched."""
    if not any(row.matched for row in rows):
        return None
    of_rank = group_by(steps, lambda step: step.rank)
    a_step = {
        rank: statistics.mean(step.waiting_ns for step in own) for rank, own in of_rank.items()
    }
    most = max(rows, key=lambda row: row.waiting_ns)
    waits = (
        f"rank {most.rank} waits most for the others, {most.waiting_ns / 1e6:.4g} ms, "
        f"{percent(most.waiting_ns / most.span_ns, 0)} of its span{_a_step(a_step, most.rank)}."
        if most.waiting_ns
        else "none waits for another."
    )
    waiting = ", ".join(f"rank {row.rank} {row.waiting_ns / 1e6:.4g} ms" for row in rows)
    last = ", ".join(f"rank {row.rank} of {row.last}" for row in rows)
    return Finding(
        rule="ranks-waiting",
        severity="note",
        verdict=f"No rank is a straggler: {waits}",
        why=f"Exposed waiting: {waiting}. Last to reach a collective: {last}.",
        next="",
        numbers={"rank": most.rank, "waiting_ns": most.waiting_ns},
    )


def _clock_uncertainty(rows: Sequence[FileRankRow]) -> str:
    error_ms = max(row.clock_error_ns or 0 for row in rows) / 1e6
    spread_ms = max(row.clock_spread_ns or 0 for row in rows) / 1e6
    return (
        f" Otherwise the clock error is up to {error_ms:.3g} ms, since one rank is late to nearly "
        f"all of them; their ends agree within {spread_ms:.3g} ms."
    )
