"""Power of the signed-rank test: pairs of rounds that find a difference, and what they find."""

from __future__ import annotations

import math
import random
import statistics
from functools import cache

from sysbench.core.compare.bounds import FALSE_RATE, least_pairs, signed_rank_bound
from sysbench.core.compare.power import WANTED_POWER

MOST_PAIRS = 10_000
"""Pairs beyond which no number is told."""
_DRAWS = 500
_MANY_PAIRS = 40  # beyond them Noether's formula is right within a few points of power


def pairs_needed(spread: float, difference: float, false_rate: float = FALSE_RATE) -> int:
    """Pairs of rounds in which a true change is decided with `WANTED_POWER`, under normal noise.

    The signed-rank test's power is drawn where few pairs are enough; for more it follows Noether
    (J. Am. Statist. Assoc. 82, 1987). `MOST_PAIRS` is the most that is returned.

    Args:
        spread: Standard deviation between rounds of one side, as a share.
        difference: The true change, as a share.
        false_rate: Of the test.
    """
    noise = max(math.log1p(spread), 1e-12)
    # Two digits of the effect are as much as a spread is ever known to, and make the cache serve.
    return _pairs_for(float(f"{abs(math.log1p(difference)) / noise:.2g}"), false_rate)


def decided_by(pairs: int, spread: float, false_rate: float = FALSE_RATE) -> float:
    """Difference that many pairs decide with `WANTED_POWER`, as a share, by Noether.

    Args:
        pairs: More than a few, for which the formula holds.
        spread: Standard deviation between rounds of one side, as a share.
        false_rate: Of the test.
    """
    above = math.sqrt(_quantiles(false_rate) ** 2 / (3 * pairs))
    return math.expm1(statistics.NormalDist().inv_cdf(0.5 + above) * math.log1p(spread))


def _quantiles(false_rate: float) -> float:
    normal = statistics.NormalDist()
    return normal.inv_cdf(1 - false_rate / 2) + normal.inv_cdf(WANTED_POWER)


@cache
def _pairs_for(effect: float, false_rate: float) -> int:
    """The effect is in standard deviations of one round."""
    least = least_pairs(false_rate)
    # The sum of two differences of two rounds each has twice the deviation of one round.
    above = statistics.NormalDist().cdf(effect) - 0.5
    if above <= 0:
        return MOST_PAIRS
    enough = math.ceil(_quantiles(false_rate) ** 2 / (3 * above**2))
    enough = min(MOST_PAIRS, max(least, enough))
    if enough > _MANY_PAIRS:
        return enough
    while least < enough:
        middle = (least + enough) // 2
        if _power(effect, middle, false_rate) >= WANTED_POWER:
            enough = middle
        else:
            least = middle + 1
    return enough


def _power(effect: float, pairs: int, false_rate: float) -> float:
    """Chance that so many pairs find the effect, in the right direction."""
    bound = signed_rank_bound(pairs, false_rate)
    if bound is None:
        return 0.0
    draw, found = random.Random(0).gauss, 0
    for _ in range(_DRAWS):
        differences = sorted((effect + draw(0, math.sqrt(2)) for _ in range(pairs)), key=abs)
        against = sum(rank for rank, value in enumerate(differences, 1) if value < 0)
        found += against <= bound
    return found / _DRAWS
