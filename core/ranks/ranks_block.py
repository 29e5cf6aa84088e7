"""Build the tables of a folder's ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import fsum

import msgspec
import numpy as np

from sysbench.core.formatting import counted, percent
from sysbench.core.ranks.clock_alignment import RankClock, RankClocks, align_clocks
from sysbench.core.ranks.matching import SEND_RECEIVE, Match, match_collectives
from sysbench.core.ranks.rank_rows import FileRankRow, MatchedCollective, Ranks, RankStepRow
from sysbench.core.ranks.straggler import (
    MIN_SHARE,
    Arrivals,
    SpanSplit,
    arrivals,
    describe_waiting,
    find_straggler,
    last_arrivals,
    late_by_rank,
    late_causes,
    window_begins,
)
from sysbench.core.record.record import Finding
from sysbench.core.trace.collective_kernels import bus_factor
from sysbench.core.trace.intervals import Cover
from sysbench.core.trace.rank_summary import RankTrace
from sysbench.core.trace.trace_events import NONE

MAX_CONFLICT_NS = 1_000_000
"""Clocks of one machine agree to microseconds; a larger conflict means wrong matches."""


def ranks_block(
    folder: str,
    files: Mapping[int, str],
    ranks: Mapping[int, RankTrace],
    *,
    one_clock: bool = False,
) -> Ranks:
    """Return rows, steps, collectives and findings of at least two ranks, whose ``files`` are
    named."""
    matches = match_collectives(ranks, one_clock=one_clock)
    clocks = (
        RankClocks(min(ranks), {rank: RankClock(0, 0, 0) for rank in ranks}, 0)
        if one_clock
        else align_clocks(sorted(ranks), matches)
    )
    arrived = arrivals(matches, clocks)
    splits = {
        rank: SpanSplit(trace, last_arrivals(rank, arrived, clocks))
        for rank, trace in ranks.items()
    }
    rows = _rows(files, ranks, matches, clocks, arrived, splits)
    first = next((each for each in arrived if not each.match.is_pair), None)
    steps = _steps(ranks, splits)
    first_late = {first.last: first.late_ns} if first else {}
    worst = find_straggler(rows, first_late, _late_a_step(arrived, steps))
    bubble = _pipeline_bubble(rows, arrived, ranks, clocks, splits)
    findings = [*_conflict(clocks), *filter(None, (worst, bubble))]
    if not findings and (waiting := describe_waiting(rows, steps)):
        findings.append(waiting)
    unmatched = sum(row.collectives - row.matched for row in rows)
    missing = {}
    if unmatched:
        missing["matched"] = (
            f"{unmatched} of {counted(sum(row.collectives for row in rows), 'collective')} could "
            f"not be matched: {_why_unmatched(ranks, matches)}; waiting and transfer are not "
            "separated in them"
        )
    if alone := [rank for rank in sorted(ranks) if rank not in clocks.by_rank]:
        names = ", ".join(map(str, alone))
        missing["clock_ahead_ns"] = (
            f"clocks of ranks {clocks.reference} and {names} could not be aligned"
        )
    if not one_clock and (
        several := [rank for rank, trace in sorted(ranks.items()) if trace.other_devices]
    ):
        names = ", ".join(map(str, several))
        missing["device"] = (
            f"several devices in the file of rank {names}: only the busiest is shown"
        )
    return Ranks(
        folder=folder,
        reference=clocks.reference,
        clock_conflict_ns=clocks.conflict_ns,
        rows=rows,
        steps=steps,
        collectives=_collectives(arrived, clocks),
        findings=findings,
        missing=missing,
        one_clock=one_clock,
    )


def _why_unmatched(ranks: Mapping[int, RankTrace], matches: Sequence[Match]) -> str:
    """Count the unmatched calls by what they lack."""
    matched = {id(call) for match in matches for call in match.calls.values()}
    calls = [
        (rank, call)
        for rank, trace in ranks.items()
        for call in trace.calls
        if id(call) not in matched
    ]
    keys = {
        (other, call.group, call.kind) for other, trace in ranks.items() for call in trace.calls
    }
    reasons: Counter[str] = Counter()
    for rank, call in calls:
        if call.kind == SEND_RECEIVE and call.source == NONE:
            reasons["are transfers without the numbers of their two ranks"] += 1
        elif call.kind == SEND_RECEIVE:
            reasons["are transfers whose other side is in no file"] += 1
        elif any((other, call.group, call.kind) in keys for other in ranks if other != rank):
            reasons["are more, or of another size, than those of the other ranks"] += 1
        else:
            reasons["are of a kind or process group that no other rank has"] += 1
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())


def _rows(
    files: Mapping[int, str],
    ranks: Mapping[int, RankTrace],
    matches: Sequence[Match],
    clocks: RankClocks,
    arrived: Sequence[Arrivals],
    splits: Mapping[int, SpanSplit],
) -> list[FileRankRow]:
    late, before = late_by_rank(arrived), window_begins(ranks, arrived)
    rows = []
    for rank, trace in sorted(ranks.items()):
        late_to = late.get(rank, [])
        clock = clocks.by_rank.get(rank)
        rows.append(
            FileRankRow(
                rank=rank,
                file=files[rank],
                source=trace.source,
                device=trace.device,
                **msgspec.structs.asdict(splits[rank].whole()),
                collectives=len(trace.calls),
                matched=sum(rank in match.calls for match in matches),
                last=len(late_to),
                late_ns=_late_ns(late_to),
                bounded_ns=_late_ns([each for each in late_to if each.is_bounded]),
                late_causes=late_causes(rank, late_to, splits, before) if late_to else {},
                clock_ahead_ns=clock.ahead_ns if clock else None,
                clock_error_ns=clock.error_ns if clock else None,
                clock_spread_ns=clock.spread_ns if clock else None,
            )
        )
    return rows


def _late_ns(late: Sequence[Arrivals]) -> int:
    """Return the time in which any collective waited only for this rank."""
    end = np.array([each.last_ns for each in late], dtype=np.int64)
    return Cover(end - np.array([each.late_ns for each in late], dtype=np.int64), end).total


def _late_a_step(arrived: Sequence[Arrivals], steps: Sequence[RankStepRow]) -> dict[int, float]:
    """Return the mean lateness of each rank in a marked step; empty without steps."""
    count = len({step.step for step in steps})
    late = late_by_rank(each for each in arrived if each.match.calls[each.last].step != NONE)
    ranks = {step.rank for step in steps}
    return {rank: _late_ns(late.get(rank, [])) / count for rank in ranks}


def _steps(ranks: Mapping[int, RankTrace], splits: Mapping[int, SpanSplit]) -> list[RankStepRow]:
    rows = []
    for rank, trace in ranks.items():
        for step in trace.steps:
            parts = splits[rank].within(step.start_ns, step.end_ns)
            rows.append(
                RankStepRow(
                    step=step.number,
                    rank=rank,
                    ns=parts.span_ns,
                    exposed_ns=parts.exposed_ns,
                    waiting_ns=parts.waiting_ns,
                    transfer_ns=parts.transfer_ns,
                )
            )
    return sorted(rows, key=lambda row: (row.step, row.rank))


def _collectives(arrived: Sequence[Arrivals], clocks: RankClocks) -> list[MatchedCollective]:
    groups: defaultdict[tuple[object, ...], list[Arrivals]] = defaultdict(list)
    for each in arrived:
        match = each.match
        ends = tuple(match.calls) if match.is_pair else ()
        key = (match.group, match.kind, match.bytes, len(each.arrived), match.sender, ends)
        groups[key].append(each)
    rows = [_collective(members, clocks) for members in groups.values()]
    return sorted(rows, key=lambda row: -row.calls * (row.waiting_ns + row.transfer_ns))


def _collective(members: Sequence[Arrivals], clocks: RankClocks) -> MatchedCollective:
    waiting, transfer = [], []
    for each in members:
        for rank, came_ns in each.arrived.items():
            end_ns = each.match.calls[rank].end_ns - clocks.by_rank[rank].ahead_ns
            last_ns = each.waits_until(rank, end_ns)
            waiting.append(min(last_ns, max(end_ns, came_ns)) - came_ns)
            transfer.append(max(0, end_ns - last_ns))
    match = members[0].match
    purposes = {call.purpose for each in members for call in each.match.calls.values()}
    transfer_ns = fsum(transfer) / len(transfer)
    error_ns = max(clocks.by_rank[rank].error_ns for each in members for rank in each.arrived)
    factor = bus_factor(match.kind, match.group_size) if match.group_size else None
    is_resolved = match.bytes is not None and transfer_ns > 2 * error_ns
    rate = match.bytes / transfer_ns if is_resolved and match.bytes else None
    return MatchedCollective(
        kind=match.kind,
        bytes=match.bytes,
        group=match.group or None,
        ranks=len(members[0].arrived),
        calls=len(members),
        waiting_ns=fsum(waiting) / len(waiting),
        most_waiting_ns=max(waiting),
        transfer_ns=transfer_ns,
        algorithm_gbs=rate,
        bus_gbs=None if rate is None or factor is None else rate * factor,
        purpose=purposes.pop() or None if len(purposes) == 1 else None,
        source=match.sender,
        target=next((rank for rank in match.calls if rank != match.sender), None)
        if match.sender is not None
        else None,
    )


def _pipeline_bubble(
    rows: Sequence[FileRankRow],
    arrived: Sequence[Arrivals],
    ranks: Mapping[int, RankTrace],
    clocks: RankClocks,
    splits: Mapping[int, SpanSplit],
) -> Finding | None:
    """Name the rank that waits most for data of other ranks of a pipeline."""
    pairs = [each for each in arrived if each.match.is_pair]
    waiting = {}
    for rank, trace in ranks.items():
        ahead_ns = clocks.by_rank[rank].ahead_ns if rank in clocks.by_rank else 0
        waits = [
            (call.start_ns, min(call.end_ns, max(call.start_ns, each.last_ns + ahead_ns)))
            for each in pairs
            if (call := each.match.calls.get(rank)) is not None and each.match.sender != rank
        ]
        if waits:
            waiting[rank] = trace.cover(waits).shared(splits[rank].waiting).total
    spans = {row.rank: row.span_ns for row in rows}
    worst = max(waiting, key=lambda rank: waiting[rank] / (spans[rank] or 1), default=0)
    if not waiting or waiting[worst] < MIN_SHARE * spans[worst] or not waiting[worst]:
        return None
    by_rank = ", ".join(f"rank {rank} {ns / 1e6:.4g} ms" for rank, ns in sorted(waiting.items()))
    return Finding(
        rule="ranks-pipeline-bubble",
        severity="note",
        verdict=f"Rank {worst} waits {waiting[worst] / 1e6:.4g} ms, "
        f"{percent(waiting[worst] / spans[worst], 0)} of its span, for data that another rank "
        "sends.",
        why=f"Time in receives before the sender reached its send: {by_rank}. In a pipeline this "
        "is the bubble.",
        next="More micro-batches or an interleaved schedule shorten it; stages should take the "
        "same time.",
        numbers={"rank": worst, "waiting_ns": waiting[worst]},
    )


def _conflict(clocks: RankClocks) -> list[Finding]:
    if clocks.conflict_ns <= MAX_CONFLICT_NS:
        return []
    return [
        Finding(
            rule="ranks-clock-conflict",
            severity="problem",
            verdict="The collectives of these files contradict each other: waiting and transfer "
            "are unreliable.",
            why=f"With any clock offsets, some end up to {clocks.conflict_ns / 1e6:.4g} ms before "
            "another rank reached them: the files have different steps, clocks drift, or process "
            "groups without a name were mixed up.",
            next="Record the same steps on all ranks, with a profiler that names process groups "
            "(torch 2.5 or later).",
            numbers={"conflict_ns": clocks.conflict_ns},
        )
    ]
