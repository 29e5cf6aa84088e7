"""Clocks of several hosts, read by exchanging messages, and stamps put on one of them.

Cristian 1989, "Probabilistic clock synchronization": an answer to a message tells the other clock
at some moment between sending and receiving. So each round trip bounds the difference of two clocks
from both sides, and the faster it is, the closer. A difference that is read before and after some
steps is taken as changing evenly between the two readings.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sysbench.core.trace.collective_kernels import RankStep

FASTEST = 5
"""Round trips that count: one that took longer than these says less, and was taken at another
moment of clocks that may drift."""


class RoundTrip(msgspec.Struct, frozen=True):
    """A message to the reference and its answer, in nanoseconds.

    ``sent_ns`` and ``received_ns`` are of the asking clock, ``answered_ns`` is of the reference's.
    """

    sent_ns: int
    answered_ns: int
    received_ns: int


class ClockReading(msgspec.Struct, frozen=True):
    """How far a clock was ahead of the reference's, by ``error_ns`` at most wrong.

    ``at_ns`` is the moment on that clock; it and its round trips lie close together.
    """

    at_ns: int
    ahead_ns: int
    error_ns: int


def reading(trips: Sequence[RoundTrip]) -> ClockReading:
    """The difference that the fastest round trips allow: the middle of what is in all their bounds.

    Bounds that contradict each other, of clocks that drift by more than a trip takes, count with
    everything between the farthest two.

    Raises:
        ValueError: No round trip, or one that was received before it was sent.
    """
    if not trips or any(trip.received_ns < trip.sent_ns for trip in trips):
        raise ValueError("a clock is read by round trips that end after they begin")
    fastest = sorted(trips, key=lambda trip: trip.received_ns - trip.sent_ns)[:FASTEST]
    lows = [trip.sent_ns - trip.answered_ns for trip in fastest]
    highs = [trip.received_ns - trip.answered_ns for trip in fastest]
    low, high = max(lows), min(highs)
    if low > high:
        low, high = min(lows), max(highs)
    ahead_ns = (low + high) // 2
    best = fastest[0]
    return ClockReading((best.sent_ns + best.received_ns) // 2, ahead_ns, high - ahead_ns)


def ahead_at(before: ClockReading, after: ClockReading, ns: int) -> int:
    """Nanoseconds by which the clock is ahead at ``ns`` of its own, between two readings.

    Outside of them the nearer one holds.
    """
    passed = after.at_ns - before.at_ns
    since = min(max(ns - before.at_ns, 0), passed)
    # Whole numbers: moments of a clock have more digits than a float.
    drift_ns = after.ahead_ns - before.ahead_ns
    return before.ahead_ns + (drift_ns * since // passed if passed > 0 else 0)


def on_reference(step: RankStep, host: int, before: ClockReading, after: ClockReading) -> RankStep:
    """The step with its moments on the reference's clock, and the error that this brings.

    Args:
        step: Of a rank on another host than the reference's, by its host's clock.
        host: Number of its host.
        before: Reading of its host's clock before the step.
        after: Reading after it.
    """

    def moved(ns: int) -> int:
        return ns - ahead_at(before, after, ns)

    return msgspec.structs.replace(
        step,
        collectives=[
            msgspec.structs.replace(
                one, arrived_ns=moved(one.arrived_ns), done_ns=moved(one.done_ns)
            )
            for one in step.collectives
        ],
        blocked=step.blocked and [(moved(begin), moved(end)) for begin, end in step.blocked],
        host=host,
        host_ahead_ns=after.ahead_ns,
        host_error_ns=max(before.error_ns, after.error_ns),
    )
