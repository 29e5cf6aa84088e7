"""Interval of the change of the step time from A to B, by kind of evidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import msgspec

from sysbench.core.compare.bounds import (
    FALSE_RATE,
    MAX_BLOCKS,
    MAX_DUET_PAIRS,
    block_bound,
    pair_bound,
    rank_bound,
    signed_rank_bound,
)
from sysbench.core.formatting import counted

Basis = Literal[
    "duet pairs",
    "interleaved rounds",
    "paired rounds",
    "separate rounds",
    "known spread",
    "none",
]
"""Evidence of a verdict: pairs of processes that took turns, rounds in ABBA blocks, rounds in the
same passes over a study's grid, rounds of two runs, spread of earlier runs."""

IN_TURN = ("duet pairs", "interleaved rounds")
"""Kinds of evidence that an experiment measured in turn."""
LARGEST_ARTEFACT = 3.0
"""Factor by which two processes of one spec, measured together, are assumed never to differ. It
decides differences of many times before the rank tests have enough rounds to look."""
MIN_FAR = 2
"""Rounds of each side that must all show such a difference."""

MIN_KNOWN = 5
"""Minimum number of processes of one spec to know their spread."""


class RoundBlock(msgspec.Struct, frozen=True):
    """Step medians of the two rounds of either side in one ABBA block, milliseconds."""

    a: tuple[float, float]
    b: tuple[float, float]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """B's step time over A's, minus one.

    Attributes:
        change: Hodges-Lehmann estimate on the logarithms; of two single runs their quotient.
        low, high: Ends of the interval that misses the true change in at most 5 % of comparisons;
            null if the rounds are too few for one.
        rounds_a, rounds_b: Processes of each side that count.
        spread: Standard deviation between processes as a share; null if unknown.
        source: Clause that names the evidence.
    """

    change: float
    low: float | None = None
    high: float | None = None
    basis: Basis
    rounds_a: int = 1
    rounds_b: int = 1
    spread: float | None = None
    source: str


def interleaved(blocks: Sequence[RoundBlock]) -> Interval:
    """Interval of the change from ABBA blocks, valid at every look.

    Its ends are order statistics of the within-block log differences, four a block: the changes
    that the sequential rank test of `bounds` does not reject. Looks after more than `MAX_BLOCKS`
    blocks use the first ones. Raises ValueError without a block, or for a time that is not above
    zero.
    """
    first = blocks[:MAX_BLOCKS]
    differences = sorted(math.log(b / a) for block in first for a in block.a for b in block.b)
    if not differences:
        raise ValueError("no blocks to judge")
    bound, rounds = block_bound(len(first)), 2 * len(first)
    source = f"{rounds} interleaved runs each"
    if bound is not None:
        ends: Ends = differences[rounds - bound], differences[rounds + bound - 1]
    elif (ends := _far_ends(differences)) is not None:
        source = f"{source}, {_FAR_WORDS}"
    return _interval(
        statistics.median(differences),
        ends,
        basis="interleaved rounds",
        rounds_a=rounds,
        rounds_b=rounds,
        spread=_within_blocks(first),
        source=source,
    )


Ends = tuple[float, float] | None
"""Ends of an interval in logarithms; None without one."""


def _interval(change: float, ends: Ends, **facts: Any) -> Interval:
    low, high = map(math.expm1, ends) if ends else (None, None)
    return Interval(change=math.expm1(change), low=low, high=high, **facts)


_FAR_WORDS = (
    f"beyond the factor of {LARGEST_ARTEFACT:g} that runs of one spec are assumed to stay within"
)


def _far_ends(differences: Sequence[float]) -> Ends:
    """Ends of the interval if even the smallest difference is beyond `LARGEST_ARTEFACT`."""
    reach = math.log(LARGEST_ARTEFACT)
    low, high = min(differences) - reach, max(differences) + reach
    return (low, high) if low > 0 or high < 0 else None


def duet(differences: Sequence[float]) -> Interval:
    """Interval of the change from pairs of fresh processes that took turns, valid at every look.

    Its ends are Walsh averages, as those of `paired`: the changes that the sequential signed-rank
    test of `bounds` does not reject. Which process of a pair begins is random, so either sign of a
    difference is equally likely if the sides are the same, whatever the noise is. Looks after more
    than `MAX_DUET_PAIRS` pairs use the first ones. Differences are logarithms of B's step time over
    A's in each pair, in the order of measuring. Raises ValueError without one.
    """
    first = differences[:MAX_DUET_PAIRS]
    interval = _signed_ranks(first, pair_bound(len(first)))
    source = f"{counted(len(first), 'pair')} of runs that took turns"
    ends = _far_ends(first) if len(first) >= MIN_FAR and interval.low is None else None
    if ends is not None:
        source = f"{source}, {_FAR_WORDS}"
        low, high = map(math.expm1, ends)
        interval = msgspec.structs.replace(interval, low=low, high=high)
    return msgspec.structs.replace(interval, basis="duet pairs", source=source)


def residuals(blocks: Sequence[RoundBlock]) -> list[float]:
    """Log deviations of the rounds from their side, in the order of measuring.

    Blocks do not record which side came first; assuming A does not change the power.
    """
    logs = [(_logs(block.a), _logs(block.b)) for block in blocks]
    effect = _mean_effect(logs)
    return [
        deviation for (a1, a2), (b1, b2) in logs for deviation in (a1, b1 - effect, b2 - effect, a2)
    ]


def _within_blocks(blocks: Sequence[RoundBlock]) -> float | None:
    """Standard deviation of rounds from their block's level and their side; None for one block."""
    logs = [(_logs(block.a), _logs(block.b)) for block in blocks]
    freedom = 3 * len(logs) - 1
    if len(logs) < 2:
        return None
    effect, squares = _mean_effect(logs), 0.0
    for a, b in logs:
        values = [*a, *(value - effect for value in b)]
        level = statistics.fmean(values)
        squares += sum((value - level) ** 2 for value in values)
    return math.sqrt(squares / freedom)


def _logs(pair: tuple[float, float]) -> tuple[float, float]:
    return math.log(pair[0]), math.log(pair[1])


def _mean_effect(logs: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> float:
    return statistics.fmean(sum(b) - sum(a) for a, b in logs) / 2 if logs else 0.0


def paired(a: Sequence[float], b: Sequence[float], *, false_rate: float = FALSE_RATE) -> Interval:
    """Interval of the change from passes that measured both sides once, in random order.

    Its ends are order statistics of the means of two log differences (Walsh averages; Hodges and
    Lehmann, Ann. Math. Statist. 34, 1963): the changes that Wilcoxon's signed-rank test does not
    reject. Random order makes either sign of a difference equally likely if the sides are the same,
    whatever the noise is, drift and bursts included. One pass in a fixed order leaves that exact:
    reversing all signs turns a rejection into one. The number of passes must not depend on the
    outcome.

    Both sides have a figure above zero for each pass, in the same order; else ValueError is raised.
    """
    differences = [math.log(y / x) for x, y in zip(a, b, strict=True)]
    return _signed_ranks(differences, signed_rank_bound(len(differences), false_rate))


def _signed_ranks(differences: Sequence[float], bound: int | None) -> Interval:
    """The changes that Wilcoxon's signed-rank test with this bound does not reject."""
    if not differences:
        raise ValueError("no rounds to judge")
    means = sorted((x + y) / 2 for n, x in enumerate(differences) for y in differences[n:])
    rounds = len(differences)
    return _interval(
        statistics.median(means),
        None if bound is None else (means[bound], means[-1 - bound]),
        basis="paired rounds",
        rounds_a=rounds,
        rounds_b=rounds,
        # The difference of two rounds has twice the variance of one.
        spread=None if rounds < 2 else statistics.stdev(differences) / math.sqrt(2),
        source=f"{rounds} paired runs each",
    )


def separate(
    a: Sequence[float],
    b: Sequence[float],
    *,
    drift: float = 0.0,
    false_rate: float = FALSE_RATE,
) -> Interval:
    """Interval of the change from rounds that were not interleaved, by Mann and Whitney's test.

    The machine may have changed between the two sides: no test on these rounds can detect that. The
    known ``drift`` between batches of rounds, as a share, widens the interval. Raises ValueError
    for a side without rounds.
    """
    if not a or not b:
        raise ValueError("both sides need rounds")
    differences = sorted(math.log(y / x) for x in a for y in b)
    bound = rank_bound(len(a), len(b), false_rate)
    slack = math.log1p(drift)
    return _interval(
        statistics.median(differences),
        None if bound is None else (differences[bound] - slack, differences[-1 - bound] + slack),
        basis="separate rounds",
        rounds_a=len(a),
        rounds_b=len(b),
        spread=_pooled(a, b)[0],
        source=f"{len(a)} runs of A and {len(b)} of B, not interleaved",
    )


def from_known_spread(
    a_ms: float,
    b_ms: float,
    known_a: Sequence[float] = (),
    known_b: Sequence[float] = (),
    *,
    floor: float = 0.0,
    rounds: tuple[int, int] = (1, 1),
) -> Interval:
    """Interval of the change of one process a side, by the spread of earlier ones.

    Change ± q s, with s the pooled standard deviation of the logarithms and q Tukey's studentized
    range over all known processes, because a person picks the pair among them. Without `MIN_KNOWN`
    processes of a side it has no ends. The known medians include this process; ``floor`` is the
    smallest standard deviation between processes on this machine, as a share. ``rounds`` counts
    the processes of A and B; the interval is as wide as for one each.
    """
    change = b_ms / a_ms - 1
    counts = {"rounds_a": rounds[0], "rounds_b": rounds[1]}
    groups = [known for known in (known_a, known_b) if len(known) >= MIN_KNOWN]
    if not groups:
        return Interval(change=change, basis="none", source=runs_words(*rounds), **counts)
    deviation, freedom = _pooled(*groups)
    deviation = max(deviation, math.log1p(floor))
    count = sum(len(group) for group in groups) + (2 - len(groups))
    reach = _studentized_range(count, freedom) * deviation
    middle = math.log1p(change)
    earlier = sum(len(group) for group in groups)
    return Interval(
        change=change,
        low=math.expm1(middle - reach),
        high=math.expm1(middle + reach),
        basis="known spread",
        spread=deviation,
        source=f"{runs_words(*rounds)}; {earlier} runs of these specs vary by "
        f"±{100 * deviation:.2g} %",
        **counts,
    )


def runs_words(a: int, b: int) -> str:
    """``1 run each``, ``6 runs and 1``."""
    return f"{counted(a, 'run')} each" if a == b else f"{counted(a, 'run')} and {b}"


@cache
def _studentized_range(count: int, freedom: int) -> float:
    from scipy.stats import studentized_range  # lazy: scipy.stats takes 500 ms

    return float(studentized_range.ppf(1 - FALSE_RATE, count, freedom))


def _pooled(*groups: Sequence[float]) -> tuple[float, int]:
    """Pooled standard deviation of the logarithms, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in group]
        level = statistics.fmean(logs)
        squares += sum((value - level) ** 2 for value in logs)
        freedom += len(logs) - 1
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom
