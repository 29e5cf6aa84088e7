"""Exact critical values of the rank tests on rounds.

Interleaved rounds come in blocks of four, two a side. A block's statistic is the Mann-Whitney count
of its four pairs, minus the two expected; the test adds the blocks up (van Elteren, Bull. Inst.
Int. Statist. 37, 1960). If both sides are the same, every order of a block's four times is equally
likely, so the sum is a random walk with known steps, whatever the noise is. The walk is checked
after every block. Its bounds spend the false rate as Lan and DeMets (Biometrika 70, 1983) propose,
and follow from the exact recursion of Armitage, McPherson and Rowe (J. R. Statist. Soc. A 132,
1969).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

FALSE_RATE = 0.05
"""Share of comparisons of a spec with itself that may end in a difference, over all looks."""
FIRST_LOOK = 3
"""Blocks before which no order of the times is rare enough to be significant."""
MAX_BLOCKS = 256
_NULL_STEP = {-2: 1 / 6, -1: 1 / 6, 0: 2 / 6, 1: 1 / 6, 2: 1 / 6}
_UNSPENT = 2.4  # leaves enough for the rarest order at the first look, 1/108, and little more
_ROUNDING = 1e-12

Walk = Mapping[int, float]
"""Sum of the blocks' statistics to its probability."""


def spent_until(blocks: int) -> float:
    """False rate spent by the look after this number of blocks; rises to the whole."""
    return FALSE_RATE * max(0.0, 1 - _UNSPENT / blocks) if blocks >= FIRST_LOOK else 0.0


def walk_on(walk: Walk, step: Walk) -> dict[int, float]:
    later: dict[int, float] = {}
    for total, probability in walk.items():
        for change, share in step.items():
            later[total + change] = later.get(total + change, 0.0) + probability * share
    return later


@cache
def _bounds() -> tuple[int, ...]:
    walk: dict[int, float] = {0: 1.0}
    spent, bounds = 0.0, []
    for blocks in range(1, MAX_BLOCKS + 1):
        walk = walk_on(walk, _NULL_STEP)
        bound, crossed = 2 * blocks + 1, 0.0
        while bound > 1:
            outer = walk.get(bound - 1, 0.0) + walk.get(1 - bound, 0.0)
            if spent + crossed + outer > spent_until(blocks) + _ROUNDING:
                break
            crossed, bound = crossed + outer, bound - 1
        spent += crossed
        bounds.append(bound)
        # A walk that has crossed is decided, and takes no part in later looks.
        walk = {total: share for total, share in walk.items() if abs(total) < bound}
    return tuple(bounds)


def block_bound(blocks: int) -> int | None:
    """Smallest absolute sum that decides after this number of blocks, or None.

    Raises:
        ValueError: More than `MAX_BLOCKS`.
    """
    if blocks > MAX_BLOCKS:
        raise ValueError(f"{blocks} blocks: bounds are known up to {MAX_BLOCKS}")
    if blocks < FIRST_LOOK:
        return None
    bound = _bounds()[blocks - 1]
    return bound if bound <= 2 * blocks else None


@cache
def rank_bound(a: int, b: int, false_rate: float = FALSE_RATE) -> int | None:
    """Largest number of the ``a * b`` pairs against the median that still rejects, two-sided.

    From the exact distribution of the Mann-Whitney count of separate rounds, by its recursion (Ann.
    Math. Statist. 18, 1947). None if even the rarest order of so few rounds is too common.
    """
    orders = math.comb(a + b, a)
    rejected, bound = 0, -1
    for pairs, count in enumerate(_orders_by_count(a, b)):
        rejected += count
        if 2 * rejected > false_rate * orders:
            break
        bound = pairs
    return bound if bound >= 0 else None


@cache
def signed_rank_bound(pairs: int, false_rate: float = FALSE_RATE) -> int | None:
    """Largest sum of the minority's ranks that still rejects, for rounds in pairs, two-sided.

    From the exact distribution of Wilcoxon's signed-rank sum (Biometrics Bulletin 1, 1945): every
    rank from 1 to ``pairs`` is in it or not, with equal chances. None if even all pairs of one sign
    are too common.
    """
    counts = [1]
    for rank in range(1, pairs + 1):
        without = counts + [0] * rank
        within = [0] * rank + counts
        counts = [n + m for n, m in zip(without, within, strict=True)]
    rejected, bound = 0, -1
    for total, count in enumerate(counts):
        rejected += count
        if 2 * rejected > false_rate * 2**pairs:
            break
        bound = total
    return bound if bound >= 0 else None


def least_pairs(false_rate: float = FALSE_RATE) -> int:
    """Smallest number of pairs of rounds that can reject: 6 at 5 %."""
    return math.ceil(math.log2(2 / false_rate) - _ROUNDING)


def _orders_by_count(a: int, b: int) -> list[int]:
    """Number of orders of the rounds for each Mann-Whitney count from 0 to ``a * b``.

    The Gaussian binomial's coefficients: a product of (1 - x^(b+i)) / (1 - x^i).
    """
    size = a * b + 1
    counts = [1] + [0] * (size - 1)
    for i in range(1, a + 1):
        for n in range(size - 1, b + i - 1, -1):
            counts[n] -= counts[n - b - i]
        for n in range(i, size):
            counts[n] += counts[n - i]
    return counts
