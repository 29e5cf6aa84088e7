"""Collectives of one file: kind, bytes, group and bandwidth, from the arguments of their kernels.

A rank waits for another one inside its kernel, so the time in one file is transfer plus waiting,
and bandwidths are lower bounds. Bandwidths are those of nccl-tests (doc/PERFORMANCE.md): algorithm
bandwidth is bytes over time; bus bandwidth multiplies it by a factor of the kind, which makes it
comparable with the link for any number of ranks.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from sysbench.core.record.distributed import Kind
from sysbench.core.record.steps import TracedCollective
from sysbench.core.trace.classify import is_communication
from sysbench.core.trace.intervals import Cover, Times
from sysbench.core.trace.time_ledger import TimeLedger
from sysbench.core.trace.trace_events import NONE, CollectiveCall, Trace, names_fit

KINDS = (
    ("all-reduce", r"all_?reduce|cross_device_reduce|(one|two)_?shot"),
    ("reduce-scatter", r"reduce_?scatter"),
    ("all-gather", r"all_?gather"),
    ("all-to-all", r"all_?to_?all|(?<![a-z])a2a(?![a-z])"),
    ("broadcast", r"broad_?cast"),
    ("send-receive", r"send_?recv|(?<![a-z])i?(send|recv)(?![a-z])|p2p"),
    ("barrier", r"barrier"),
    ("reduce", r"(?<!all)(?<!all_)reduce(?!_?scatter)"),
)
_KINDS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in KINDS]
DTYPE_WIDTHS = {
    **dict.fromkeys(("Bool", "Byte", "Char"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}
"""By torch's type names; Float8 names are prefixes."""


class _Key(NamedTuple):
    kind: str
    bytes: int | None
    dtype: str
    group_size: int | None
    group: str
    ranks: str
    name: str
    purpose: str = ""


def kind_of(name: str) -> str:
    """Return the kind of collective from the name of the call or kernel; ``other`` if unknown."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def kind_of_call(call: CollectiveCall | None, kernel: str) -> str:
    """Return the kind from the arguments of the kernel, else from its name."""
    kind = kind_of(call.name) if call else "other"
    return kind_of(kernel) if kind == "other" else kind


def collective_bytes(kind: str, call: CollectiveCall) -> int | None:
    """Return the bytes of a collective as nccl-tests counts them: of all ranks if their parts
    differ."""
    width = 1 if call.dtype.startswith("Float8") else DTYPE_WIDTHS.get(call.dtype)
    if width is None or call.in_elements < 0 or call.out_elements < 0:
        return None
    ranks = max(call.group_size, 1)
    elements = {
        "all-gather": max(call.in_elements * ranks, call.out_elements),
        "reduce-scatter": max(call.in_elements, call.out_elements * ranks),
    }.get(kind, max(call.in_elements, call.out_elements))
    return elements * width


def bus_factor(kind: str, ranks: int) -> float | None:
    """Return bus bandwidth / algorithm bandwidth; None for a kind without one."""
    if ranks < 1:
        return None
    if kind == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all-gather", "reduce-scatter", "all-to-all"):
        return (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "reduce", "send-receive") else None


def with_purposes(trace: Trace, purposes: Mapping[str, str]) -> Trace:
    """Return the trace with the names of process groups that its kernels do not contain."""
    calls = [
        call._replace(purpose=call.purpose or purposes.get(call.group, ""))
        for call in trace.collectives
    ]
    return replace(trace, collectives=calls)


def collective_rows(ledger: TimeLedger, calls: list[CollectiveCall]) -> list[TracedCollective]:
    """Sum the device's collectives by kind, bytes and group, longest first."""
    if ledger.source != "kernels":
        return []
    work = ledger.work
    communicates = names_fit(ledger.names, work.name, is_communication)
    pieces = np.flatnonzero(communicates | (work.collective != NONE))
    groups: defaultdict[_Key, list[int]] = defaultdict(list)
    for piece, name, call in zip(
        pieces.tolist(), work.name[pieces].tolist(), work.collective[pieces].tolist(), strict=True
    ):
        groups[_key(ledger.names[name], calls[call] if call != NONE else None)].append(piece)
    rows = [_row(ledger, key, np.array(members)) for key, members in groups.items()]
    return sorted(rows, key=lambda row: -row.total_ns)


def _key(name: str, call: CollectiveCall | None) -> _Key:
    kind = kind_of_call(call, name)
    if call is None:
        return _Key(kind, None, "", None, "", "", name)
    size = call.group_size if call.group_size > 0 else None
    bytes_ = collective_bytes(kind, call)
    return _Key(kind, bytes_, call.dtype, size, call.group, call.ranks, name, call.purpose)


def _row(ledger: TimeLedger, key: _Key, pieces: np.ndarray) -> TracedCollective:
    durations = ledger.work.end[pieces] - ledger.work.start[pieces]
    total_ns, shortest_ns = int(durations.sum()), int(durations.min())
    mean_ns = total_ns / len(pieces)
    factor = None if key.group_size is None else bus_factor(key.kind, key.group_size)

    def rate(ns: float, times: float | None) -> float | None:
        if key.bytes is None or times is None or not ns:
            return None
        return key.bytes / ns * times

    return TracedCollective(
        kind=key.kind,
        bytes=key.bytes,
        dtype=key.dtype or None,
        group_size=key.group_size,
        group=key.group or None,
        ranks=key.ranks or None,
        name=key.name,
        calls=len(pieces),
        total_ns=total_ns,
        exposed_ns=int(ledger.exclusive[pieces].sum()),
        mean_ns=mean_ns,
        min_ns=shortest_ns,
        max_ns=int(durations.max()),
        algorithm_gbs=rate(mean_ns, 1.0),
        bus_gbs=rate(mean_ns, factor),
        best_bus_gbs=rate(shortest_ns, factor),
        purpose=key.purpose or None,
    )


class Collective(msgspec.Struct, frozen=True):
    """One collective on one rank; nanoseconds of the shared clock."""

    kind: Kind
    bytes: int
    arrived_ns: int
    done_ns: int


class RankStep(msgspec.Struct, frozen=True):
    """One step of one rank, from the begin of its first phase to the end of its last.

    Collectives are in launch order, which all ranks share. ``blocked`` are intervals in which
    computation waited for communication, None if unknown. ``error_ns`` is the maximum error of
    times against the host's clock, not part of ``step_ns``; ``host_ahead_ns`` is already
    subtracted.
    """

    step_ns: int
    collectives: list[Collective]
    blocked: list[tuple[int, int]] | None
    error_ns: int = 0
    host: int = 0
    host_ahead_ns: int = 0
    host_error_ns: int = 0


class Split(msgspec.Struct, frozen=True):
    """One step of one rank in nanoseconds: step = compute + waiting + transfer.

    ``communication_ns`` is the time in which collectives could move data, overlapped or not. The
    three parts are None if ``blocked`` is.
    """

    step_ns: int
    compute_ns: int | None
    waiting_ns: int | None
    transfer_ns: int | None
    communication_ns: int

    @property
    def exposed_ns(self) -> int | None:
        return None if self.compute_ns is None else self.step_ns - self.compute_ns


def split_step(ranks: Sequence[RankStep]) -> list[Split]:
    arrived = _arrivals(ranks)
    last = arrived.max(axis=0)
    return [_split(rank, last) for rank in ranks]


SHORT_NS = 500_000
"""Arrivals do not give the time of shorter transfers if clocks have an error: device clocks are off
by 5 to 20 µs, and an all-reduce of 1 MiB over NVLink takes 20 to 40 µs."""


def transfer_times(
    steps: Sequence[Sequence[RankStep]],
) -> tuple[list[float], Literal["arrivals", "events"]]:
    """Return the transfer time of each step's only collective in ms, and its source.

    From arrivals: the last arrival to the end, mean over ranks. For a short transfer between
    devices, or one of less than ten times the error between hosts, the step of the fastest rank
    instead: the rank that came last did not wait, and no two clocks are compared.
    """
    splits = [split_step(step) for step in steps]
    ms = [sum(split.communication_ns for split in step) / len(step) / 1e6 for step in splits]
    ranks = [rank for step in steps for rank in step]
    has_error = any(rank.error_ns or rank.host_error_ns for rank in ranks)
    least_ns = max(SHORT_NS, 10 * max(rank.host_error_ns for rank in ranks))
    if not has_error or statistics.median(ms) * 1e6 >= least_ns:
        return ms, "arrivals"
    return [min(rank.step_ns for rank in step) / 1e6 for step in steps], "events"


def last_counts(ranks: Sequence[RankStep]) -> list[int]:
    """Count the collectives of the step that each rank reached last.

    Between ranks of two hosts a rank is last only by more than the error of both clocks.
    """
    arrived = _arrivals(ranks)
    counts = [0] * len(ranks)
    for column in arrived.T:
        last = int(column.argmax())
        if all(
            column[last] - column[other] > ranks[last].host_error_ns + ranks[other].host_error_ns
            for other in range(len(ranks))
            if ranks[other].host != ranks[last].host
        ):
            counts[last] += 1
    return counts


def disorder_ns(ranks: Sequence[RankStep]) -> int:
    """Return the maximum time by which an all-reduce ended before its last arrival: the clock
    error."""
    last = _arrivals(ranks).max(axis=0)
    return max(
        (
            int(arrival) - collective.done_ns
            for rank in ranks
            for collective, arrival in zip(rank.collectives, last, strict=True)
            if collective.kind == "all-reduce" and collective.done_ns < arrival
        ),
        default=0,
    )


def _arrivals(ranks: Sequence[RankStep]) -> Times:
    sequences = [
        [(collective.kind, collective.bytes) for collective in rank.collectives] for rank in ranks
    ]
    if any(sequence != sequences[0] for sequence in sequences):
        raise ValueError("the ranks do not agree on their collectives")
    return np.array(
        [[collective.arrived_ns for collective in rank.collectives] for rank in ranks],
        dtype=np.int64,
    )


def _split(rank: RankStep, last: Times) -> Split:
    done = np.array([collective.done_ns for collective in rank.collectives], dtype=np.int64)
    # The root of a broadcast may be done before the last arrival: it moves nothing after that.
    moving = Cover(last, np.maximum(done, last))
    if rank.blocked is None:
        return Split(rank.step_ns, None, None, None, moving.total)
    bounds = np.array(rank.blocked, dtype=np.int64).reshape(-1, 2)
    blocked = Cover(bounds[:, 0], np.maximum(bounds[:, 0], bounds[:, 1]))
    # Both covers are disjoint intervals, so no nanosecond counts twice and the parts add up.
    transfer = int(moving.within(blocked.start, blocked.end).sum())
    return Split(
        rank.step_ns,
        rank.step_ns - blocked.total,
        blocked.total - transfer,
        transfer,
        moving.total,
    )
