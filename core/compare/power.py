"""Power of the sequential tests on interleaved rounds and on pairs.

The chance to decide follows exactly from the distribution of one block's statistic, assuming
independent blocks. That distribution is counted over every four successive measured rounds, which
include drift and other processes as they came, or over normal noise of a known spread.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from sysbench.core.compare.bounds import (
    FALSE_RATE,
    MAX_BLOCKS,
    MAX_DUET_PAIRS,
    block_bound,
    least_pairs,
    pair_bound,
    signed_rank_bound,
    walk_on,
)
from sysbench.core.compare.interval import RoundBlock

WANTED_POWER = 0.8
"""Chance to find a difference that makes a number of rounds sufficient."""
_NORMAL = statistics.NormalDist()
QUANTILES = _NORMAL.inv_cdf(1 - FALSE_RATE / 2) + _NORMAL.inv_cdf(WANTED_POWER)
"""Normal quantiles of the test and of its power, in Noether's formula."""
MAX_PAIRS = 10_000
"""Pairs beyond which no number is reported."""
_DRAWS = 500
Powers = Callable[[Sequence[float], float, int], list[float]]
"""Chances to find a true change after 1, 2 … looks, as `power_after` returns them."""
_DUET_DRAWS = 250  # each may have many looks
_LARGE_EFFECT = 10.0  # in standard deviations: the first look finds it
_MANY_PAIRS = 40  # beyond them Noether's formula is right within a few points of power


def pairs_needed(spread: float, difference: float) -> int:
    """Pairs of rounds that decide a true change with `WANTED_POWER`, under normal noise.

    The signed-rank test's power is simulated for few pairs; for more it follows Noether (J. Am.
    Statist. Assoc. 82, 1987). Returns at most `MAX_PAIRS`. ``spread`` is the standard deviation
    between rounds of one side; both are shares.
    """
    noise = max(math.log1p(spread), 1e-12)
    # A spread is never known to more than two digits, and rounding makes cache hits likely.
    return _pairs_for(float(f"{abs(math.log1p(difference)) / noise:.2g}"))


def decided_by(pairs: int, spread: float) -> float:
    """Difference that a number of pairs decides with `WANTED_POWER`, as a share.

    By Noether's formula, which does not hold for a few pairs. ``spread`` is the standard deviation
    between rounds of one side, as a share.
    """
    above = math.sqrt(QUANTILES**2 / (3 * pairs))
    return math.expm1(_NORMAL.inv_cdf(0.5 + above) * math.log1p(spread))


@cache
def _pairs_for(effect: float) -> int:
    """Pairs for an effect in standard deviations of one round."""
    least = least_pairs()
    # The sum of two differences of two rounds each has twice the deviation of one round.
    above = _NORMAL.cdf(effect) - 0.5
    if above <= 0:
        return MAX_PAIRS
    enough = math.ceil(QUANTILES**2 / (3 * above**2))
    enough = min(MAX_PAIRS, max(least, enough))
    if enough > _MANY_PAIRS:
        return enough
    while least < enough:
        middle = (least + enough) // 2
        if _power(effect, middle) >= WANTED_POWER:
            enough = middle
        else:
            least = middle + 1
    return enough


def _power(effect: float, pairs: int) -> float:
    bound = signed_rank_bound(pairs)
    if bound is None:
        return 0.0
    draw, rejections = random.Random(0).gauss, 0
    for _ in range(_DRAWS):
        differences = sorted((effect + draw(0, math.sqrt(2)) for _ in range(pairs)), key=abs)
        against = sum(rank for rank, value in enumerate(differences, 1) if value < 0)
        rejections += against <= bound
    return rejections / _DRAWS


def duet_power_after(residuals: Sequence[float], difference: float, pairs: int) -> list[float]:
    """Chance that a true change has been found after 1, 2 … pairs of processes that took turns.

    Simulated with a fixed seed, as `power_after` from deviations of pairs' log ratios; at most
    `MAX_DUET_PAIRS`.
    """
    values, effect = _with_a_shape(residuals), abs(math.log1p(difference))
    draw, decided = random.Random(0), [0] * (pairs + 1)
    for _ in range(_DUET_DRAWS):
        sizes: list[float] = []
        signs: list[int] = []
        against = 0
        for count in range(1, pairs + 1):
            value = effect + draw.choice(values) * draw.choice((-1, 1))
            rank = bisect.bisect(sizes, abs(value))
            sizes.insert(rank, abs(value))
            signs.insert(rank, int(value < 0))
            # Its own rank, and one more for each larger difference of the minority.
            against += (rank + 1) * signs[rank] + sum(signs[rank + 1 :])
            bound = pair_bound(count)
            if bound is not None and against <= bound:
                decided[count] += 1
                break
    return [total / _DUET_DRAWS for total in itertools.accumulate(decided[1:])]


def duet_pairs_needed(spread: float, difference: float) -> int | None:
    """Pairs of processes that took turns that decide a true change with `WANTED_POWER`.

    None if not even `MAX_DUET_PAIRS` would. ``spread`` is of one process of a pair; both are
    shares.
    """
    noise = max(math.log1p(spread), 1e-12)
    effect = min(_LARGE_EFFECT, abs(math.log1p(difference)) / noise)
    return _duet_pairs_for(float(f"{effect:.2g}"))


@cache
def _duet_pairs_for(effect: float) -> int | None:
    """Pairs for an effect in standard deviations of one process."""
    above = _NORMAL.cdf(effect) - 0.5
    if 3 * MAX_DUET_PAIRS * above**2 < QUANTILES**2:  # too few even for a single look
        return None
    residuals = normal_residuals(math.expm1(math.sqrt(2)))
    powers = duet_power_after(residuals, math.expm1(effect), MAX_DUET_PAIRS)
    return next((n for n, power in enumerate(powers, 1) if power >= WANTED_POWER), None)


ROUNDS_A_BLOCK = 4
ROUNDS_A_PAIR = 2
_RESIDUALS = 1999
_MIN_RESIDUALS = 16  # fewer residuals say little about the shape of their distribution


def normal_residuals(spread: float) -> list[float]:
    """Log residuals of a normal distribution, evenly spaced in probability, in random order."""
    normal = statistics.NormalDist(0, max(math.log1p(spread), 1e-12))
    residuals = [normal.inv_cdf((n + 0.5) / _RESIDUALS) for n in range(_RESIDUALS)]
    random.Random(0).shuffle(residuals)
    return residuals


def power_after(residuals: Sequence[float], difference: float, blocks: int) -> list[float]:
    """Chance that a true change has been found after 1, 2 … ``blocks`` blocks, at most
    `MAX_BLOCKS`.

    The residuals are log deviations of rounds in the order of measuring; fewer than 16 are replaced
    by a normal distribution of their spread. The sign of the difference has no effect on the power.
    """
    return _powers(_block_step(residuals, abs(math.log1p(difference))), 0, 0, blocks)


def smallest_difference(
    residuals: Sequence[float], count: int, powers: Powers = power_after
) -> float | None:
    """Smallest slowdown that is detected with `WANTED_POWER`, as a share, after ``count`` looks of
    ``powers``.

    None if the evidence is too little to find any.
    """
    low, high = 0.0, max(1e-6, statistics.pstdev(residuals) / 16 if residuals else 0.0)
    while powers(residuals, high, count)[-1] < WANTED_POWER:
        low, high = high, 2 * high
        if high > 1e3:
            return None
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        enough = powers(residuals, middle, count)[-1] >= WANTED_POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def more_rounds(
    blocks: Sequence[RoundBlock], residuals: Sequence[float], difference: float
) -> int | None:
    """Rounds, of both sides together, after which a true change of this size is decided.

    With `WANTED_POWER`, continuing from the present blocks, the change having the sign that they
    show. None if not even `MAX_BLOCKS` blocks are enough.
    """
    total = round(sum(_statistic(block) for block in blocks))
    step = _block_step(residuals, abs(math.log1p(difference)))
    remaining = MAX_BLOCKS - len(blocks)
    powers = _powers(step, abs(total), len(blocks), remaining)
    enough = next((n for n, power in enumerate(powers, 1) if power >= WANTED_POWER), None)
    return None if enough is None else ROUNDS_A_BLOCK * enough


def _statistic(block: RoundBlock) -> float:
    """Pairs of the block in which B is longer, minus the two expected; a tie counts half."""
    return sum((b > a) + (b == a) / 2 for a in block.a for b in block.b) - 2


def _powers(step: dict[int, float], start: int, done: int, more: int) -> list[float]:
    walk: dict[int, float] = {start: 1.0}
    chances, decided = [], 0.0
    for blocks in range(done + 1, done + more + 1):
        walk = walk_on(walk, step)
        bound = block_bound(blocks)
        if bound is not None:
            # Only decisions in the right direction count.
            decided += sum(share for total, share in walk.items() if total >= bound)
            walk = {total: share for total, share in walk.items() if abs(total) < bound}
        chances.append(decided)
    return chances


def _block_step(residuals: Sequence[float], effect: float) -> dict[int, float]:
    """Distribution of one block's statistic if B's logarithms are higher by ``effect``."""
    values = _with_a_shape(residuals)
    counts: Counter[int] = Counter()
    for first in range(len(values) - ROUNDS_A_BLOCK + 1):
        outer1, inner1, inner2, outer2 = values[first : first + ROUNDS_A_BLOCK]
        # ABBA has A outside, BAAB has B there.
        for shift in (effect, -effect):
            counts[_longer((outer1, outer2), (inner1 + shift, inner2 + shift), shift)] += 1
    total = counts.total()
    return {statistic: count / total for statistic, count in counts.items()}


def _with_a_shape(residuals: Sequence[float]) -> list[float]:
    """The residuals, or a normal distribution of their spread if they are few."""
    values = list(residuals)
    if len(values) >= _MIN_RESIDUALS:
        return values
    level = statistics.fmean(values) if values else 0.0
    squares = sum((value - level) ** 2 for value in values)
    spread = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return normal_residuals(math.expm1(spread))


def _longer(outer: tuple[float, float], inner: tuple[float, float], shift: float) -> int:
    """Pairs in which B is longer, minus the two expected; a negative ``shift`` has B outside."""
    inside_longer = sum(i > o for i in inner for o in outer) - 2
    return inside_longer if shift >= 0 else -inside_longer
