"""Exact critical values of the rank tests on rounds.

Interleaved rounds come in blocks of four, two a side. A block's statistic is the Mann-Whitney count
of its four pairs, minus the two expected; the test adds the blocks up (van Elteren, Bull. Inst.
Int. Statist. 37, 1960). If both sides are the same, every order of a block's four times is equally
likely, so the sum is a random walk with known steps, whatever the noise is. The walk is checked
after every block. Its bounds spend the false rate as Lan and DeMets (Biometrika 70, 1983) propose,
and follow from the exact recursion of Armitage, McPherson and Rowe (J. R. Statist. Soc. A 132,
1969).

Pairs of processes that took turns are judged by Wilcoxon's signed-rank test, checked after every
pair. If both sides are the same, signs are fair coins and the rank of a new difference among the
earlier ones is uniform, so the joint distribution of all looks is known, whatever the noise is.
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

    Raises ValueError above `MAX_BLOCKS`.
    """
    if blocks > MAX_BLOCKS:
        raise ValueError(f"{blocks} blocks: bounds are known up to {MAX_BLOCKS}")
    if blocks < FIRST_LOOK:
        return None
    bound = _bounds()[blocks - 1]
    return bound if bound <= 2 * blocks else None


FIRST_PAIR_LOOK = 7
"""Pairs before which no order of the differences is rare enough to be significant."""
# fmt: off
_PAIR_BOUNDS = (
    0, 0, 2, 3, 5, 7, 9, 11, 14, 17, 20, 24, 28, 32, 36, 41, 46, 52, 58, 64, 70, 77, 85, 92, 99,
    108, 116, 126, 135, 144, 154, 164, 175, 187, 198, 209, 221, 233, 248, 261, 275, 288, 303,
    315, 331, 346, 363, 378, 396, 411, 429, 449, 468, 487, 504, 523, 544, 563, 583, 602, 626,
    647, 667, 691, 715, 736, 758, 782, 809, 833, 861, 887, 915, 938, 964, 994, 1020, 1053, 1080,
    1109, 1135, 1161, 1195, 1227, 1254, 1292, 1316, 1350, 1385, 1415, 1446, 1477, 1520, 1549,
    1584, 1617, 1653, 1691, 1727, 1757, 1797, 1844, 1884, 1919, 1958, 2000, 2036, 2079, 2116,
    2160, 2201, 2246, 2284, 2326, 2371, 2414, 2461, 2510, 2547, 2595, 2639, 2681, 2725, 2780,
    2836, 2874, 2930, 2971, 3025, 3072, 3120, 3168, 3218, 3256, 3315, 3375, 3422, 3475, 3517,
    3577, 3622, 3690, 3752, 3821, 3872, 3921, 3975, 4032, 4083, 4149, 4198, 4258, 4319, 4370,
    4431, 4495, 4557, 4605, 4673, 4742, 4795, 4870, 4935, 4980, 5047, 5117, 5177, 5249, 5322,
    5382, 5443, 5515, 5578, 5660, 5720, 5786, 5844, 5916, 5980, 6049, 6134, 6227, 6297, 6374,
    6451, 6528, 6582, 6648, 6717, 6779, 6878, 6955, 7047, 7119, 7204, 7285, 7388, 7449, 7518,
    7587, 7660, 7735, 7839, 7915, 7976, 8066, 8154, 8234, 8294, 8408, 8498, 8567, 8668, 8743,
    8851, 8932, 9032, 9103, 9197, 9263, 9351, 9438, 9528, 9622, 9705, 9792, 9879, 10013, 10078,
    10145, 10212, 10337, 10424, 10522, 10605, 10672, 10780, 10897, 10975, 11090, 11185, 11321,
    11401, 11475, 11625, 11693, 11763, 11843, 11963, 12048,
)
# fmt: on
MAX_DUET_PAIRS = FIRST_PAIR_LOOK + len(_PAIR_BOUNDS) - 1


def pair_bound(pairs: int) -> int | None:
    """Largest sum of the minority's ranks that rejects after this number of pairs, or None.

    The test looks after every pair from `FIRST_PAIR_LOOK` on, and spends the false rate over all
    looks. ``python -m tests.validation.pair_bounds`` computes the table. Raises ValueError above
    `MAX_DUET_PAIRS`.
    """
    if pairs > MAX_DUET_PAIRS:
        raise ValueError(f"{pairs} pairs: bounds are known up to {MAX_DUET_PAIRS}")
    return _PAIR_BOUNDS[pairs - FIRST_PAIR_LOOK] if pairs >= FIRST_PAIR_LOOK else None


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
    most = pairs * (pairs + 1) // 2
    size = pairs // 8 + 1  # bytes of a count in one large integer: none is above 2**pairs
    packed = 1
    for rank in range(1, pairs + 1):
        packed += packed << 8 * size * rank
    counts = packed.to_bytes(size * (most + 1), "little")
    rejected, bound = 0, -1
    for total in range(most + 1):
        rejected += int.from_bytes(counts[size * total : size * (total + 1)], "little")
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
