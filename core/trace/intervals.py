"""Times of a trace as exact integer nanoseconds, and half-open intervals [start, end) of them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


def sums_by(index: NDArray[np.int64], values: Times, count: int) -> Times:
    """Return the sum of the values of each index from 0 to ``count - 1``."""
    # ``add.at`` and not ``+=``, which counts an index once. bincount would sum in floats.
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, index, values)
    return sums


def open_at(start: Times, end: Times, times: Times) -> NDArray[np.int64]:
    """Return the last interval that begins at or before each time, if it is open then, else -1."""
    if not len(start):
        return np.full(len(times), -1)
    at = np.searchsorted(start, times, side="right") - 1  # index -1 reads the last end
    return np.where((at >= 0) & (times < end[at]), at, -1)


class Cover:
    """The union of a set of intervals, and its overlap with other intervals.

    Attributes:
        start, end: The union as disjoint, ascending, non-empty intervals.
    """

    def __init__(self, start: Times, end: Times) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        reached = np.maximum.accumulate(end)
        opens = np.ones(len(start), dtype=bool)
        opens[1:] = start[1:] > reached[:-1]  # touching intervals become one
        first = np.flatnonzero(opens)
        start = start[first]
        # A run of intervals ends at the furthest end before the next run's first, the last run
        # at the furthest of all.
        end = reached[np.r_[first[1:] - 1, -1]] if len(first) else end
        self.start, self.end = start[end > start], end[end > start]
        self._before = np.r_[0, np.cumsum(self.end - self.start)]  # one more than intervals

    @property
    def total(self) -> int:
        return int(self._before[-1])

    def clipped(self, low: int, high: int) -> Cover:
        return Cover(np.clip(self.start, low, high), np.clip(self.end, low, high))

    def before(self, time: Times) -> Times:
        # Intervals begun until then; one that begins at the instant counts, with no length.
        index = np.searchsorted(self.start, time, side="right")
        if not len(self.start):
            return np.zeros(len(time), dtype=np.int64)
        last = np.maximum(index - 1, 0)
        into = np.minimum(time - self.start[last], self.end[last] - self.start[last])
        covered: Times = np.where(index > 0, self._before[last] + into, 0)
        return covered

    def within(self, start: Times, end: Times) -> Times:
        return self.before(end) - self.before(start)

    def length(self, low: int, high: int) -> int:
        return int(self.within(np.array([low]), np.array([high]))[0])

    def shared(self, other: Cover) -> Cover:
        """Return the intersection of both covers."""
        # Each of these intervals meets a run of the other's, since both are in order.
        first = np.searchsorted(other.end, self.start, side="right")
        counts = np.maximum(np.searchsorted(other.start, self.end, side="left") - first, 0)
        mine = np.repeat(np.arange(len(self.start)), counts)
        before = np.cumsum(counts) - counts
        theirs = np.arange(len(mine)) - np.repeat(before - first, counts)
        return Cover(
            np.maximum(self.start[mine], other.start[theirs]),
            np.minimum(self.end[mine], other.end[theirs]),
        )

    def without(self, other: Cover) -> Cover:
        """Return this cover minus the other."""
        if not len(self.start):
            return self
        return self.shared(Cover(*other.gaps(int(self.start[0]), int(self.end[-1]))))

    def gaps(self, low: int, high: int) -> tuple[Times, Times]:
        """Return the parts of [low, high) that are not covered, ascending and non-empty."""
        # A gap lies from each end to the next start; clipping empties those outside.
        start = np.r_[low, np.clip(self.end, low, high)]
        end = np.r_[np.clip(self.start, low, high), high]
        empty = end <= start
        return start[~empty], end[~empty]


def exclusive(start: Times, end: Times, rank: NDArray[np.integer]) -> Times:
    """Return the length of each interval that counts for it alone; they add up to the union.

    An instant counts for the lowest rank that covers it, and within the rank for the interval that
    started first (for equal starts, the first in the arrays).
    """
    result = np.zeros(len(start), dtype=np.int64)
    taken = Cover(start[:0], end[:0])
    for level in np.unique(rank):
        member = np.flatnonzero(rank == level)
        member = member[np.argsort(start[member], kind="stable")]  # stable: ties by position
        begins, ends = start[member], end[member]
        # Within a rank an interval begins where all earlier ones have ended, which makes them
        # disjoint; one that lies inside an earlier one becomes empty.
        reached = np.maximum.accumulate(ends)
        begins[1:] = np.maximum(begins[1:], reached[:-1])
        begins = np.minimum(begins, ends)
        result[member] = ends - begins - taken.within(begins, ends)  # less lower ranks
        taken = Cover(np.r_[taken.start, begins], np.r_[taken.end, ends])
    return result


# 31 years before the Unix epoch to 126 after it: differences in nanoseconds fit 63 bits.
MIN_TIME_US = -(10**15)
MAX_TIME_US = 4 * 10**15
MAX_DECIMALS = 3
MAX_WHOLE_DIGITS = 16
DIGIT_0, POINT, COMMA = b"0.,"


class NotATimeError(ValueError):
    """The value is not a finite number."""


def nanoseconds(values: Sequence[object]) -> NDArray[np.int64]:
    """Convert integers (µs) and decimal texts (µs) to ns, truncated.

    ValueError if one is not a number, or a Unix time before 1939 or after 2096.
    """
    if not values:
        return np.zeros(0, dtype=np.int64)
    try:
        joined = ",".join(values)  # type: ignore[arg-type]
    except TypeError:  # whole microseconds are decoded as integers
        joined = ",".join(map(str, values))
    text, count = joined.encode(), len(values)
    parsed = _parse_plain(text, count)
    if parsed is None:
        parsed = np.fromiter(map(_parse_number, map(str, values)), dtype=np.int64, count=count)
    return parsed


def _parse_plain(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """Parse all numbers at once if each has digits and at most three decimals, else None."""
    characters = np.frombuffer(joined, dtype=np.uint8)
    points = np.flatnonzero(characters == POINT)
    ends = np.append(np.flatnonzero(characters == COMMA), len(joined))
    is_digit = (characters - DIGIT_0) <= 9  # unsigned: a character below "0" wraps around
    # Digits, points and commas make up the whole text: no sign, exponent or space is left.
    if len(ends) != count or np.count_nonzero(is_digit) + len(points) + count - 1 != len(joined):
        return None
    points_before = np.searchsorted(points, ends)
    point_count = np.diff(points_before, prepend=0)
    decimals = np.zeros(count, dtype=np.int64)
    with_point = point_count == 1
    # The last point before a number's end is its own: `points_before - 1`, counted from 0.
    decimals[with_point] = ends[with_point] - points[points_before[with_point] - 1] - 1
    # As if a comma stood at -1: a number lies strictly between the commas around it.
    whole_digits = np.diff(ends, prepend=-1) - 1 - point_count - decimals
    if (
        point_count.max() > 1
        or decimals.max() > MAX_DECIMALS
        or whole_digits.min() < 1
        or whole_digits.max() > MAX_WHOLE_DIGITS
    ):
        return None
    # Without its point a number counts units of 10**-decimals µs: integers, so nothing is rounded.
    digits = np.fromstring(joined.replace(b".", b""), dtype=np.int64, sep=",")
    scale = 10 ** (3 - decimals)
    if (digits > MAX_TIME_US * 1000 // scale).any():  # before the product, which must fit 63 bits
        return None
    result: NDArray[np.int64] = digits * scale
    return result


def _parse_number(text: str) -> int:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise NotATimeError(f"{text[:40]!r} is not a time") from None
    if not value.is_finite():
        raise NotATimeError(f"{text[:40]!r} is not a time")
    if not MIN_TIME_US <= value <= MAX_TIME_US:
        raise ValueError(f"{text[:40]} µs is out of range")
    return int(value * 1000)


MAX_DURATION_US = 1e12
NEGATIVE, ABSENT, TOO_LONG = "negative", "missing", "longer than eleven days"


def durations(values: Sequence[float | None]) -> tuple[Times, dict[str, NDArray[np.int64]]]:
    """Convert microseconds to nanoseconds; float64 is exact enough below the limit.

    Values that are none last 0, and their indices are returned by what is wrong: a profiler that
    was stopped inside an event may have written a negative duration.
    """
    microseconds = np.array(values, dtype=np.float64)
    is_good = (microseconds >= 0) & (microseconds <= MAX_DURATION_US)
    if is_good.all():
        return np.asarray(np.rint(microseconds * 1000), dtype=np.int64), {}
    wrong = {
        NEGATIVE: microseconds < 0,
        ABSENT: np.isnan(microseconds),
        TOO_LONG: microseconds > MAX_DURATION_US,
    }
    lengths = np.rint(np.where(is_good, microseconds, 0) * 1000)
    indices = {what: np.flatnonzero(mask) for what, mask in wrong.items() if mask.any()}
    return np.asarray(lengths, dtype=np.int64), indices


def is_time(value: object) -> bool:
    """Return whether a value is a finite number, or the text of one."""
    try:
        return Decimal(str(value)).is_finite()
    except InvalidOperation:
        return False


def integers(values: list[Any]) -> NDArray[np.int64]:
    """Return integers unchanged, any other value of an imported trace as -1."""
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        checked = (
            value if isinstance(value, int) and abs(value) < 2**63 else -1 for value in values
        )
        return np.fromiter(checked, dtype=np.int64, count=len(values))
