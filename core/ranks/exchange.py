"""Offsets between the clocks of several hosts, read by exchanging messages.

Cristian 1989, "Probabilistic clock synchronization": an answer contains the other clock at some
moment between sending and receiving. So each round trip bounds the offset from both sides, the
faster the closer. Between readings before and after some steps the offset changes linearly.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sysbench.core.trace.collective_kernels import RankStep

MAX_TRIPS = 5
"""Number of round trips to use: slower ones are less exact and older, and clocks may drift."""


class RoundTrip(msgspec.Struct, frozen=True):
    """A message to the reference and its answer, in nanoseconds.

    ``sent_ns`` and ``received_ns`` are of the asking clock, ``answered_ns`` of the reference.
    """

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
    used.

    Raises:
        ValueError: No round trip, or one received before it was sent.
    """
    if not trips or any(trip.received_ns < trip.sent_ns for trip in trips):
        raise ValueError("a clock is read by round trips that end after they begin")
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
    # Whole numbers: moments of a clock have more digits than a float.
    drift_ns = after.ahead_ns - before.ahead_ns
    return before.ahead_ns + (drift_ns * since // passed if passed > 0 else 0)


def on_reference(step: RankStep, host: int, before: ClockReading, after: ClockReading) -> RankStep:
    """Return the step with times on the reference clock, and the error of the conversion.

    Args:
        step: Of a rank on another host, by its host's clock.
        before, after: Readings of its host's clock before and after the step.
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
