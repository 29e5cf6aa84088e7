"""The bounds hold by counting every order of the times."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from sysbench.core.compare.bounds import (
    FALSE_RATE,
    MAX_BLOCKS,
    block_bound,
    least_pairs,
    rank_bound,
    signed_rank_bound,
)

STATISTICS = [
    sum(b > a for a in {0, 1, 2, 3} - set(places) for b in places) - 2
    for places in combinations(range(4), 2)
]
"""Of the six orders of a block, by the places that B takes among the four times."""


def test_six_orders_of_every_block_cross_in_at_most_five_percent() -> None:
    crossed = 0
    for orders in product(STATISTICS, repeat=6):
        total = 0
        for blocks, statistic in enumerate(orders, 1):
            total += statistic
            bound = block_bound(blocks)
            if bound is not None and abs(total) >= bound:
                crossed += 1
                break
    assert 0.02 < crossed / 6**6 <= FALSE_RATE


def test_no_decision_before_three_blocks_and_always_a_possible_one_after() -> None:
    assert [block_bound(n) for n in (1, 2)] == [None, None]
    for blocks in range(3, MAX_BLOCKS + 1):
        bound = block_bound(blocks)
        assert bound is not None and 0 < bound <= 2 * blocks


def test_bounds_end_where_they_are_known() -> None:
    with pytest.raises(ValueError, match="257 blocks"):
        block_bound(MAX_BLOCKS + 1)


@pytest.mark.parametrize(("a", "b"), [(4, 4), (3, 5), (2, 8), (5, 6), (6, 6)])
def test_rank_bound_rejects_as_often_as_every_order_says(a: int, b: int) -> None:
    bound = rank_bound(a, b)
    assert bound is not None
    counts = []
    for places in combinations(range(a + b), b):
        others = set(range(a + b)) - set(places)
        counts.append(sum(y > x for x in others for y in places))

    def share(most: int) -> float:
        return sum(min(n, a * b - n) <= most for n in counts) / len(counts)

    assert share(bound) <= FALSE_RATE < share(bound + 1)


@pytest.mark.parametrize(("a", "b"), [(3, 3), (1, 38), (2, 7)])
def test_too_few_rounds_have_no_bound(a: int, b: int) -> None:
    assert rank_bound(a, b) is None


@pytest.mark.parametrize("false_rate", [FALSE_RATE, FALSE_RATE / 4])
@pytest.mark.parametrize("pairs", range(1, 13))
def test_signed_rank_bound_rejects_as_often_as_every_choice_of_signs_says(
    pairs: int, false_rate: float
) -> None:
    sums = [
        sum(rank * sign for rank, sign in enumerate(signs, 1))
        for signs in product((0, 1), repeat=pairs)
    ]
    whole = pairs * (pairs + 1) // 2

    def share(most: int) -> float:
        return sum(min(n, whole - n) <= most for n in sums) / len(sums)

    bound = signed_rank_bound(pairs, false_rate)
    assert (bound is None) == (pairs < least_pairs(false_rate))
    if bound is None:
        assert share(0) > false_rate
    else:
        assert share(bound) <= false_rate < share(bound + 1)


def test_one_pass_in_a_fixed_order_leaves_the_false_rate() -> None:
    # Turning all signs round turns a rejection into one, so that a given sign decides nothing.
    pairs = 8
    bound = signed_rank_bound(pairs)
    assert bound is not None
    whole = pairs * (pairs + 1) // 2
    shares = set()
    for fixed, sign in product(range(pairs), (0, 1)):
        rejected = 0
        for signs in product((0, 1), repeat=pairs - 1):
            drawn = [*signs[:fixed], sign, *signs[fixed:]]
            total = sum(rank * one for rank, one in enumerate(drawn, 1))
            rejected += min(total, whole - total) <= bound
        shares.add(rejected / 2 ** (pairs - 1))
    assert len(shares) == 1 and max(shares) <= FALSE_RATE
