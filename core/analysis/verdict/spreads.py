"""Whether one side of an experiment spreads less than the other, and by what factor."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from .bounds import FALSE_RATE

LEAST_ROUNDS = 8
"""Rounds of a side below which no spread is compared."""
_TO_DEVIATION = math.sqrt(math.pi / 2)  # from a mean absolute deviation, for a normal distribution
_WIDEST = math.log(1e6)
_HALVINGS = 60


class SpreadChange(msgspec.Struct, frozen=True, kw_only=True):
    """B's spread between processes against A's.

    Attributes:
        before: Spread of A's rounds as a share: mean absolute deviation from their median, scaled
            to the standard deviation of a normal distribution.
        after: Of B's.
        ratio: ``after`` over ``before``; null where A did not spread.
        low: Lower end of its interval; null where the rounds give none.
        high: Upper end.
        rounds: Rounds of the side with fewer.
    """

    before: float
    after: float
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int

    @property
    def decided(self) -> bool:
        """Whether the interval excludes that both spread alike."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def spread_change(
    a_ms: Sequence[float], b_ms: Sequence[float], false_rate: float = FALSE_RATE
) -> SpreadChange:
    """Compare the spreads of two sides' rounds.

    The interval is the set of ratios that Brown and Forsythe's test (J. Am. Stat. Assoc. 69,
    1974) does not reject: Student's test on the absolute deviations from each side's median,
    which keeps its rate for skewed and heavy-tailed noise where the quotient of variances fails.

    Args:
        a_ms: Medians of A's rounds, milliseconds.
        b_ms: Of B's.
        false_rate: Of the interval; divided by the number of remedies that are tried together.
    """
    a, b = _deviations(a_ms), _deviations(b_ms)
    before, after = (_TO_DEVIATION * statistics.fmean(side) if side else 0.0 for side in (a, b))
    rounds = min(len(a), len(b))
    plain = SpreadChange(
        before=math.expm1(before),
        after=math.expm1(after),
        ratio=after / before if before else None,
        rounds=rounds,
    )
    if rounds < LEAST_ROUNDS or not before or not after:
        return plain
    from scipy.stats import t  # half a second, which only a trial needs

    most = float(t.ppf(1 - false_rate / 2, len(a) + len(b) - 2))
    middle = math.log(after / before)
    low, high = (_end(a, b, middle, middle + reach, most) for reach in (-_WIDEST, _WIDEST))
    return msgspec.structs.replace(plain, low=low, high=high)


def _deviations(values_ms: Sequence[float]) -> list[float]:
    logs = [math.log(value) for value in values_ms]
    middle = statistics.median(logs) if logs else 0.0
    return [abs(value - middle) for value in logs]


def _end(
    a: Sequence[float], b: Sequence[float], inside: float, outside: float, most: float
) -> float | None:
    """Ratio between two logarithms at which the test begins to reject; None if it never does."""
    if abs(_student(a, b, outside)) <= most:
        return None
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        rejected = abs(_student(a, b, middle)) > most
        inside, outside = (inside, middle) if rejected else (middle, outside)
    return math.exp(inside)


def _student(a: Sequence[float], b: Sequence[float], log_ratio: float) -> float:
    """Student's statistic of A's deviations against B's, those divided by a ratio."""
    scaled = [value / math.exp(log_ratio) for value in b]
    level_a, level_b = statistics.fmean(a), statistics.fmean(scaled)
    squares = sum((x - level_a) ** 2 for x in a) + sum((x - level_b) ** 2 for x in scaled)
    error = math.sqrt(squares / (len(a) + len(b) - 2) * (1 / len(a) + 1 / len(b)))
    gap = level_a - level_b
    return gap / error if error else math.copysign(math.inf, gap) if gap else 0.0
