"""A step of several ranks split into computing, waiting for the slowest rank, moving data.

Every rank records when it reached each collective and when that was done, by the monotonic clock of
the host, or of the first of several hosts. A collective can move data only after its last arrival,
on whatever rank. So on each rank the time from the last arrival to the end is transfer; time before
it, in which the rank stood still, is waiting for the slowest rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from sysbench.core.record.distributed import Kind
from sysbench.core.trace.intervals import Cover, Times


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
