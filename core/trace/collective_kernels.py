"""Collectives of one file: kind, bytes, group and bandwidth, from the arguments of their kernels.

A rank that waits for another one is inside its kernel, so the time of one file is transfer and
waiting together, and every bandwidth is at least what is told. Bandwidths are those of nccl-tests
(doc/PERFORMANCE.md): algorithm bandwidth is bytes over time, bus bandwidth that times a factor of
the kind, which makes it comparable with the link whatever the number of ranks.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from sysbench.core.record.distributed import Kind
from sysbench.core.record.steps import TracedCollective
from sysbench.core.trace.classify import classify
from sysbench.core.trace.intervals import Cover, Times
from sysbench.core.trace.time_ledger import TimeLedger
from sysbench.core.trace.trace_events import NONE, CollectiveCall, occurring

KINDS = (
    ("all-reduce", r"all_?reduce|cross_device_reduce|(one|two)_?shot"),
    ("reduce-scatter", r"reduce_?scatter"),
    ("all-gather", r"all_?gather"),
    ("all-to-all", r"all_?to_?all|(?<![a-z])a2a(?![a-z])"),
    ("broadcast", r"broad_?cast"),
    ("send-receive", r"send_?recv|^_?(send|recv)$|p2p"),
    ("barrier", r"barrier"),
    ("reduce", r"(?<!all)(?<!all_)reduce(?!_?scatter)"),
)
_KINDS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in KINDS]
DTYPE_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}
"""By torch's names of its types; those of Float8 begin with it."""


class _Key(NamedTuple):
    kind: str
    bytes: int | None
    dtype: str
    group_size: int | None
    group: str
    ranks: str
    name: str


def kind_of(name: str) -> str:
    """The kind of collective by its name, of the call or of the kernel; else ``other``."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def collective_bytes(kind: str, call: CollectiveCall) -> int | None:
    """Bytes of a collective as nccl-tests counts them: of all ranks' parts where these differ."""
    width = 1 if call.dtype.startswith("Float8") else DTYPE_BYTES.get(call.dtype)
    if width is None or call.in_elements < 0 or call.out_elements < 0:
        return None
    ranks = max(call.group_size, 1)
    elements = {
        "all-gather": max(call.in_elements * ranks, call.out_elements),
        "reduce-scatter": max(call.in_elements, call.out_elements * ranks),
    }.get(kind, max(call.in_elements, call.out_elements))
    return elements * width


def bus_factor(kind: str, ranks: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth; None for a kind without one."""
    if ranks < 1:
        return None
    if kind == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all-gather", "reduce-scatter", "all-to-all"):
        return (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "reduce", "send-receive") else None


def collective_rows(ledger: TimeLedger, calls: list[CollectiveCall]) -> list[TracedCollective]:
    """The device's collectives by kind, bytes and group, the longest first.

    Args:
        ledger: Of the device and the window; all times are sums over it.
        calls: The arguments that ``ledger.work.collective`` numbers.
    """
    if ledger.source != "kernels":
        return []
    work = ledger.work
    used = occurring(work.name)
    of_kind = [name for name in used.tolist() if classify(ledger.names[name]) == "communication"]
    pieces = np.flatnonzero(np.isin(work.name, of_kind) | (work.collective != NONE))
    groups: defaultdict[_Key, list[int]] = defaultdict(list)
    for piece, name, call in zip(
        pieces.tolist(), work.name[pieces].tolist(), work.collective[pieces].tolist(), strict=True
    ):
        groups[_key(ledger.names[name], calls[call] if call != NONE else None)].append(piece)
    rows = [_row(ledger, key, np.array(members)) for key, members in groups.items()]
    return sorted(rows, key=lambda row: -row.total_ns)


def _key(name: str, call: CollectiveCall | None) -> _Key:
    if call is None:
        return _Key(kind_of(name), None, "", None, "", "", name)
    kind = kind_of(call.name)
    size = call.group_size if call.group_size > 0 else None
    return _Key(kind, collective_bytes(kind, call), call.dtype, size, call.group, call.ranks, name)


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
    )


class Collective(msgspec.Struct, frozen=True):
    """One collective as one rank saw it; nanoseconds of the shared clock."""

    kind: Kind
    bytes: int
    arrived_ns: int
    done_ns: int


class RankStep(msgspec.Struct, frozen=True):
    """One step of one rank.

    Attributes:
        step_ns: From its first phase to the end of its last.
        collectives: In the order of their launch, which all ranks share.
        blocked: Intervals (begin, end) in which computing stood still for communication;
            None where they cannot be observed.
        error_ns: The most by which this rank's times can be off its host's clock; ``step_ns`` is
            not affected.
        host: Number of its host.
        host_ahead_ns: How far that host's clock was ahead of the shared one; taken off already.
        host_error_ns: The most by which that can be wrong; 0 on the host that has the shared clock.
    """

    step_ns: int
    collectives: list[Collective]
    blocked: list[tuple[int, int]] | None
    error_ns: int = 0
    host: int = 0
    host_ahead_ns: int = 0
    host_error_ns: int = 0


class Split(msgspec.Struct, frozen=True):
    """One step of one rank, in nanoseconds: step = compute + waiting + transfer.

    ``communication_ns`` is all the time in which the rank's collectives could move data,
    overlapped with computing or not. The three parts are None where ``blocked`` was.
    """

    step_ns: int
    compute_ns: int | None
    waiting_ns: int | None
    transfer_ns: int | None
    communication_ns: int

    @property
    def exposed_ns(self) -> int | None:
        """Nanoseconds in which computing stood still."""
        return None if self.compute_ns is None else self.step_ns - self.compute_ns


def split_step(ranks: Sequence[RankStep]) -> list[Split]:
    """The same step on every rank, split.

    Raises:
        ValueError: The ranks do not agree on their collectives.
    """
    arrived = _arrivals(ranks)
    last = arrived.max(axis=0)
    return [_split(rank, last) for rank in ranks]


SHORT_NS = 500_000
"""A shorter transfer is not taken from arrivals where clocks have an error: anchors of a device are
off by 5 to 20 µs, and an all-reduce of 1 MiB over NVLink takes 20 to 40 µs."""


def transfer_times(
    steps: Sequence[Sequence[RankStep]],
) -> tuple[list[float], Literal["arrivals", "events"]]:
    """The time of the one collective of each step in milliseconds, and what it was taken from.

    From arrivals: the last arrival to the end, mean over ranks. A short one between devices, or one
    of less than ten times the error between hosts, is the shortest rank's own step instead, by its
    events: the rank that came last did not wait, and no two clocks are compared.

    Args:
        steps: A list a step with an entry a rank; steps of nothing else than the collective.
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
    """The number of the step's collectives that each rank was the last to reach.

    Between ranks of two hosts nobody is last unless by more than the error of both clocks.
    """
    arrived = _arrivals(ranks)
    counts = [0] * len(ranks)
    for column in arrived.T:
        last = int(column.argmax())
        if all(
            column[last] - column[other] > _error_between(ranks[last], ranks[other])
            for other in range(len(ranks))
            if ranks[other].host != ranks[last].host
        ):
            counts[last] += 1
    return counts


def _error_between(one: RankStep, other: RankStep) -> int:
    return 0 if one.host == other.host else one.host_error_ns + other.host_error_ns


def disorder_ns(ranks: Sequence[RankStep]) -> int:
    """The most by which an all-reduce ended before its last arrival: the error of the clocks."""
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
    """Nanoseconds of arrival: a row per rank, a column per collective."""
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
