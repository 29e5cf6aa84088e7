"""Numbers of a trace's JSON as integers, times as exact nanoseconds.

A float64 near 1.7e15 µs (today in Unix time) has steps of 0.25 µs, so numbers with a fraction
arrive as JSON text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.intervals import Times

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

    Raises:
        ValueError: Not a number, or a Unix time before 1939 or after 2096.
    """
    if not values:
        return np.zeros(0, dtype=np.int64)
    try:
        joined = ",".join(values)  # type: ignore[arg-type]
    except TypeError:  # whole microseconds are decoded as integers
        joined = ",".join(map(str, values))
    text, count = joined.encode(), len(values)
    parsed = _parse_aligned(text, count)
    if parsed is None:
        parsed = _parse_plain(text, count)
    if parsed is None:
        texts = map(str, values)
        parsed = np.fromiter(map(_parse_number, texts), dtype=np.int64, count=len(values))
    return parsed


def _parse_aligned(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """Parse all numbers at once if all have the same width and three decimals, else None.

    Kineto prints times like this: a table of characters whose columns are powers of ten.
    """
    width = (len(joined) + 1) // count
    point = width - MAX_DECIMALS - 2  # before the decimals and the comma
    if len(joined) + 1 != count * width or not 0 < point <= MAX_WHOLE_DIGITS:
        return None
    characters = np.frombuffer(joined + b",", dtype=np.uint8).reshape(count, width)
    if (characters[:, -1] != COMMA).any() or (characters[:, point] != POINT).any():
        return None
    digits = np.delete(characters, (point, width - 1), axis=1) - DIGIT_0
    if digits.max() > 9:  # unsigned: a character below "0" wraps around
        return None
    # At most 19 digits: without overflow up to 9.2e18, and the latest time is 4e18.
    if point == MAX_WHOLE_DIGITS and digits[:, 0].max() >= MAX_TIME_US // 10 ** (
        MAX_WHOLE_DIGITS - 1
    ):
        return None
    powers = 10 ** np.arange(digits.shape[1] - 1, -1, -1, dtype=np.int64)
    result: NDArray[np.int64] = digits @ powers
    return result


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

    Returns:
        Durations, 0 for values that are none, and the indices of these by what is wrong. A profiler
        that was stopped inside an event may have written a negative duration.
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
