"""Computes the table of `pair_bound`: the bounds of the sequential test on pairs.

``python -m tests.validation.pair_bounds`` prints the table. If both sides are the same, the sign of
each pair's difference is a fair coin, and the rank of its size among those before it is uniform.
Up to `EXACT_PAIRS` pairs every arrangement is enumerated; beyond, a million sequences are drawn
from that distribution with a fixed seed, and the table spends 4.95 % so that the error of the
drawing (standard error 0.02 %) does not exceed 5 %. Takes two minutes and 2 GB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

FIRST_PAIRS = 7
"""Pairs before the first look: all of one sign happens by chance in 1 of 64."""
MOST_PAIRS = 256
EXACT_PAIRS = 14
SPENT = 0.0495
SEQUENCES = 1_000_000


def spent_until(pairs: int) -> float:
    """False rate spent by the look after this number of pairs."""
    return SPENT * (1 - 4.79 / pairs) if pairs >= FIRST_PAIRS else 0.0


def arrangements(bounds: Sequence[int | None]) -> Iterator[dict[int, float]]:
    """Probabilities of the sign patterns that no earlier look decided, after 1, 2 … pairs.

    Bit r of a pattern is set if the difference of rank r + 1 by size is positive. The consumer may
    append to ``bounds`` before it asks for the next.
    """
    patterns = {0: 1.0}
    pairs = 0
    while True:
        grown: dict[int, float] = {}
        for pattern, probability in patterns.items():
            for place in range(pairs + 1):
                below = pattern & ((1 << place) - 1)
                above = (pattern >> place) << (place + 1)
                for sign in (0, 1):
                    new = above | sign << place | below
                    grown[new] = grown.get(new, 0.0) + probability / (2 * (pairs + 1))
        pairs += 1
        yield grown
        bound = bounds[pairs - 1]
        patterns = {
            pattern: share
            for pattern, share in grown.items()
            if bound is None or minority(pattern, pairs) > bound
        }


def minority(pattern: int, pairs: int) -> int:
    """The smaller of the two sums of ranks."""
    positive = sum(rank + 1 for rank in range(pairs) if pattern >> rank & 1)
    return min(positive, pairs * (pairs + 1) // 2 - positive)


def exact_false_rate(bounds: Sequence[int | None]) -> float:
    """Chance that any of the looks with these bounds rejects equal sides."""
    rejected = 0.0
    for pairs, patterns in zip(range(1, len(bounds) + 1), arrangements(bounds), strict=False):
        bound = bounds[pairs - 1]
        if bound is not None:
            rejected += sum(
                share for pattern, share in patterns.items() if minority(pattern, pairs) <= bound
            )
    return rejected


def drawn_sums(sequences: int, pairs: int, seed: int) -> Iterator[np.ndarray]:
    """The smaller rank sum of each drawn sequence after 1, 2 … pairs."""
    draw = np.random.default_rng(seed)
    sizes = np.empty((pairs, sequences), np.float32)
    signs = np.empty((pairs, sequences), bool)
    positive = np.zeros(sequences, np.int32)
    for n in range(pairs):
        sizes[n] = draw.random(sequences, dtype=np.float32)
        signs[n] = draw.random(sequences, dtype=np.float32) < 0.5
        rank = np.ones(sequences, np.int32)
        for before in range(n):  # row by row: whole arrays would not fit the cache
            larger = sizes[before] > sizes[n]
            rank += ~larger
            positive += larger & signs[before]
        positive += np.where(signs[n], rank, 0)
        yield np.minimum(positive, (n + 1) * (n + 2) // 2 - positive)


def largest_bound(shares: np.ndarray, available: float) -> int | None:
    """Largest minority sum that spends no more than is available."""
    within = np.nonzero(np.cumsum(shares) <= available + 1e-12)[0]
    return int(within[-1]) if len(within) else None


def table() -> list[int | None]:
    """The bound after 1, 2 … pairs."""
    bounds: list[int | None] = []
    spent = 0.0
    for pairs, patterns in zip(range(1, EXACT_PAIRS + 1), arrangements(bounds), strict=False):
        shares = np.zeros(pairs * (pairs + 1) // 4 + 1)
        for pattern, share in patterns.items():
            shares[minority(pattern, pairs)] += share
        bounds.append(largest_bound(shares, spent_until(pairs) - spent))
        if bounds[-1] is not None:
            spent += float(shares[: bounds[-1] + 1].sum())
    undecided = np.ones(SEQUENCES, bool)
    for pairs, sums in enumerate(drawn_sums(SEQUENCES, MOST_PAIRS, seed=2026), 1):
        if pairs > EXACT_PAIRS:
            counts = np.bincount(sums[undecided], minlength=pairs * (pairs + 1) // 4 + 1)
            bounds.append(largest_bound(counts / SEQUENCES, spent_until(pairs) - spent))
            if bounds[-1] is not None:
                spent += float(counts[: bounds[-1] + 1].sum()) / SEQUENCES
        bound = bounds[pairs - 1]
        if bound is not None:
            undecided &= sums > bound
    return bounds


if __name__ == "__main__":
    print(table())
