"""Patterns in the numbers of successive steps: a period, and growth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

MAX_PERIOD = 32
MIN_SPREAD = 0.1
"""Smallest difference between two positions of a period, as a share of the median."""
MIN_SCORE = 3.7
"""Standard scores by which positions differ: one chance in 10,000."""


def period_of(values: Sequence[int]) -> int | None:
    """The smallest number of steps after which values repeat exactly, at least twice in all.

    Equal values have no period.
    """
    if len(set(values)) < 2:
        return None
    for period in range(2, len(values) // 2 + 1):
        if all(a == b for a, b in zip(values, values[period:], strict=False)):
            return period
    return None


def noisy_period_of(values: Sequence[float]) -> int | None:
    """The number of steps after which times repeat, at least three times in all.

    By the test of Kruskal and Wallis: the ranks of the values at one position of the period differ
    from those at the others.
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = {index: rank for rank, index in enumerate(order, 1)}
    scores: dict[int, float] = {}
    for period in range(2, min(MAX_PERIOD, len(values) // 3) + 1):
        positions = [range(start, len(values), period) for start in range(period)]
        medians = [median(values[index] for index in position) for position in positions]
        if max(medians) - min(medians) <= MIN_SPREAD * median(values):
            continue
        middle = (len(values) + 1) / 2
        apart = sum(
            (sum(ranks[index] for index in position) / len(position) - middle) ** 2 * len(position)
            for position in positions
        )
        statistic = 12 * apart / (len(values) * (len(values) + 1))
        scores[period] = _score(statistic, period - 1)
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] > MIN_SCORE else None


def _score(chi_square: float, freedom: int) -> float:
    """Standard score of a chi-square statistic, by Wilson and Hilferty."""
    variance = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - variance)) / variance**0.5)


def growth_of(ends: Sequence[int]) -> int:
    """Median growth a step of what is alive at the end of each, if every step adds; else 0."""
    changes = [after - before for before, after in pairwise(ends)]
    if len(changes) < 2 or min(changes) <= 0:
        return 0
    return int(median(changes))
