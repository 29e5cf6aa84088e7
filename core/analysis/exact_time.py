"""Microseconds as traces write them, to integer nanoseconds without rounding through floats.

A float64 near 1.7e15 µs (the Unix epoch) steps by 0.25 µs, so numbers with a fraction come
here as their JSON text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
from numpy.typing import NDArray

# 31 years before the Unix epoch to 126 after it: differences in nanoseconds fit 63 bits.
EARLIEST_US = -(10**15)
LATEST_US = 4 * 10**15
LONGEST_FRACTION = 3
LONGEST_WHOLE = 16
DIGIT_0, POINT, COMMA = b"0.,"


def nanoseconds(values: Sequence[object]) -> NDArray[np.int64]:
    """Integers (µs) and decimal texts (µs) to ns; digits beyond the nanosecond are cut.

    Raises:
        ValueError: Not a number, or before 1939 or after 2096 as a Unix time.
    """
    if not values:
        return np.zeros(0, dtype=np.int64)
    try:
        joined = ",".join(values)  # type: ignore[arg-type]
    except TypeError:
        joined = ",".join(map(str, values))
    parsed = _parse_plain(joined.encode(), len(values))
    if parsed is None:
        parsed = np.fromiter(map(_parse_one, map(str, values)), dtype=np.int64, count=len(values))
    return parsed


def _parse_plain(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """All numbers at once, if each is digits with at most three decimals; else None."""
    characters = np.frombuffer(joined, dtype=np.uint8)
    points = np.flatnonzero(characters == POINT)
    ends = np.append(np.flatnonzero(characters == COMMA), len(joined))
    is_digit = (characters - DIGIT_0) <= 9  # unsigned: what is below "0" wraps around
    if len(ends) != count or np.count_nonzero(is_digit) + len(points) + count - 1 != len(joined):
        return None
    points_before = np.searchsorted(points, ends)
    has_point = np.diff(points_before, prepend=0)
    decimals = np.zeros(count, dtype=np.int64)
    inside = has_point == 1
    decimals[inside] = ends[inside] - points[points_before[inside] - 1] - 1
    whole = np.diff(ends, prepend=-1) - 1 - has_point - decimals
    if (
        has_point.max() > 1
        or decimals.max() > LONGEST_FRACTION
        or whole.min() < 1
        or whole.max() > LONGEST_WHOLE
    ):
        return None
    digits = np.fromstring(joined.replace(b".", b""), dtype=np.int64, sep=",")
    scale = 10 ** (3 - decimals)
    if (digits > LATEST_US * 1000 // scale).any():
        return None
    result: NDArray[np.int64] = digits * scale
    return result


def _parse_one(text: str) -> int:
    """Any JSON number, like -1.5 or 1e-05."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is not a time") from None
    if not value.is_finite() or not EARLIEST_US <= value <= LATEST_US:
        raise ValueError(f"{text[:40]} µs is out of range")
    return int(value * 1000)
