"""Bounds of the sequential test on pairs: the false rate by enumeration, and what they decide."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.bounds import (
    FALSE_RATE,
    FIRST_PAIR_LOOK,
    MAX_DUET_PAIRS,
    pair_bound,
    signed_rank_bound,
)
from sysbench.core.compare.interval import LARGEST_ARTEFACT, duet
from sysbench.core.compare.power import duet_pairs_needed, duet_power_after
from sysbench.core.compare.verdict import judge
from tests.validation.pair_bounds import drawn_sums, exact_false_rate

changes = st.floats(-0.5, 0.5).map(lambda value: round(value, 6))


def test_equal_sides_differ_in_at_most_five_of_a_hundred_by_enumeration() -> None:
    rates = [exact_false_rate([pair_bound(n) for n in range(1, most + 1)]) for most in (6, 7, 11)]
    assert rates[:2] == [0.0, pytest.approx(1 / 64)]
    assert rates[1] < rates[2] <= FALSE_RATE


def test_equal_sides_differ_in_at_most_five_of_a_hundred_at_all_looks() -> None:
    sequences, pairs = 20_000, 60
    undecided = sequences
    sums = drawn_sums(sequences, pairs, seed=7)
    import numpy as np  # lazy: only this test

    open_ = np.ones(sequences, bool)
    for count, minority in enumerate(sums, 1):
        if (bound := pair_bound(count)) is not None:
            open_ &= minority > bound
    undecided = int(open_.sum())
    rate = 1 - undecided / sequences
    assert 0.035 < rate < FALSE_RATE + 3 * math.sqrt(FALSE_RATE / sequences)


def test_every_look_asks_for_more_than_the_test_that_looks_once() -> None:
    assert pair_bound(FIRST_PAIR_LOOK - 1) is None
    bounds = [pair_bound(n) for n in range(FIRST_PAIR_LOOK, MAX_DUET_PAIRS + 1)]
    assert all(bound is not None for bound in bounds)
    assert bounds == sorted(bounds, key=lambda bound: bound or 0)
    for n, bound in enumerate(bounds, FIRST_PAIR_LOOK):
        once = signed_rank_bound(n)
        assert bound is not None and once is not None and bound <= once
    with pytest.raises(ValueError, match="pairs"):
        pair_bound(MAX_DUET_PAIRS + 1)


@given(st.lists(changes, min_size=FIRST_PAIR_LOOK, max_size=20), changes)
def test_the_interval_holds_exactly_what_the_test_does_not_reject(
    differences: list[float], change: float
) -> None:
    interval = duet(differences)
    assert interval.low is not None and interval.high is not None
    rest = [value - change for value in differences]
    ordered = sorted(rest, key=abs)
    if 0.0 in rest or len({round(abs(value), 5) for value in rest}) < len(rest):
        return  # ties have no ranks
    negative = sum(rank for rank, value in enumerate(ordered, 1) if value < 0)
    minority = min(negative, len(rest) * (len(rest) + 1) // 2 - negative)
    rejected = minority <= (pair_bound(len(rest)) or 0)
    low, high = math.log1p(interval.low), math.log1p(interval.high)
    if min(abs(change - low), abs(change - high)) > 1e-6:
        assert rejected == (not low <= change <= high)


def test_a_difference_of_ten_times_is_decided_by_two_pairs_and_no_smaller_one() -> None:
    assert judge(duet([math.log(10)])).verdict == "not decidable"
    verdict = judge(duet([math.log(10), math.log(9.5)]))
    assert verdict.verdict == "slower"
    assert "beyond the factor of 3" in verdict.why
    assert verdict.low is not None and verdict.low == pytest.approx(9.5 / LARGEST_ARTEFACT - 1)
    assert judge(duet([-math.log(10), -math.log(9.5)])).verdict == "faster"
    for differences in ([math.log(10), math.log(2.9)], [math.log(10), -math.log(10)]):
        assert judge(duet(differences)).verdict == "not decidable"


def test_pairs_that_agree_are_the_same_within_the_smallest_difference() -> None:
    draw = random.Random(1)
    assert judge(duet([draw.gauss(0, 0.003) for _ in range(9)])).verdict == "same"


@pytest.mark.parametrize("effect", [0.7, 1.25])
def test_the_power_that_is_forecast_is_that_of_the_test(effect: float) -> None:
    """Differences of normal noise, by the intervals of simulated experiments."""
    draw, found = random.Random(3), 0
    for _ in range(300):
        differences: list[float] = []
        while len(differences) < 12:
            differences.append(0.01 * (effect + draw.gauss(0, 1)))
            if (duet(differences).low or 0.0) > 0:
                found += 1
                break
    residuals = [0.01 * draw.gauss(0, 1) for _ in range(400)]
    forecast = duet_power_after(residuals, math.expm1(0.01 * effect), 12)[-1]
    assert forecast == pytest.approx(found / 300, abs=0.1)


def test_more_pairs_are_needed_for_smaller_differences() -> None:
    needed = [duet_pairs_needed(0.02, difference) for difference in (0.2, 0.05, 0.02)]
    assert needed[0] == FIRST_PAIR_LOOK
    assert None not in needed and needed == sorted(needed, key=lambda count: count or 0)
    assert duet_pairs_needed(0.05, 0.001) is None
