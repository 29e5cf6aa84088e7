"""Patterns in the numbers of successive steps: a period, and growth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

MAX_PERIOD = 32
EXPLAINED = 0.25
"""What a period may leave of the deviations from the median, at most."""
MIN_SPREAD = 0.05
"""Smallest difference of two positions of a period, as a share of the median."""


def period_of(values: Sequence[float]) -> int | None:
    """The smallest number of steps after which values repeat, at least twice; None without one.

    Equal values have no period. Noise is allowed: what differs from the median of the steps at the
    same position is a quarter or less of what differs from the median of all.
    """
    if len(values) < 4:
        return None
    middle = median(values)
    total = sum(abs(value - middle) for value in values)
    for period in range(2, min(MAX_PERIOD, len(values) // 2) + 1):
        positions = [values[start::period] for start in range(period)]
        medians = [median(position) for position in positions]
        left = sum(
            abs(value - typical)
            for position, typical in zip(positions, medians, strict=True)
            for value in position
        )
        is_wide = max(medians) - min(medians) > MIN_SPREAD * middle
        # A position of two values has its median between them: it always explains something.
        if is_wide and left <= EXPLAINED * total:
            return period
    return None


def growth_of(ends: Sequence[int]) -> int:
    """Median growth a step of what is alive at the end of each, if every step adds; else 0."""
    changes = [after - before for before, after in pairwise(ends)]
    if len(changes) < 2 or min(changes) <= 0:
        return 0
    return int(median(changes))
