"""Patterns in the numbers of successive steps."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.step_patterns import growth_of, noisy_period_of, period_of

PATTERNS = st.lists(st.integers(1, 9), min_size=2, max_size=9).filter(
    lambda pattern: len(set(pattern)) > 1
)


@given(PATTERNS, st.integers(2, 4), st.integers(0, 8))
def test_a_repeated_pattern_is_found_with_its_shortest_period(
    pattern: list[int], times: int, more: int
) -> None:
    values = (pattern * (times + 1))[: len(pattern) * times + more]
    found = period_of(values)
    assert found is not None and found <= len(pattern)
    assert values[found:] == values[:-found]


def test_equal_values_and_one_that_differs_have_no_period() -> None:
    assert period_of([5] * 12) is None
    assert period_of([5] * 6 + [9] + [5] * 5) is None


def test_times_repeat_in_spite_of_noise_and_noise_alone_does_not() -> None:
    drawn = random.Random(7)
    for period in (3, 4, 7):
        times = [
            (60 if index % period == 1 else 10) * drawn.lognormvariate(0, 0.2)
            for index in range(90)
        ]
        assert noisy_period_of(times) == period
    for _ in range(50):
        noise = [drawn.gauss(10, 1) * drawn.choice([1, 1, 1, 1, 1, 3]) for _ in range(60)]
        assert noisy_period_of(noise) is None


@given(st.integers(0, 10**9), st.lists(st.integers(1, 10**6), min_size=2, max_size=20))
def test_growth_is_of_every_step(start: int, changes: list[int]) -> None:
    ends = [start]
    for change in changes:
        ends.append(ends[-1] + change)
    assert min(changes) <= growth_of(ends) <= max(changes)
    assert growth_of([*ends, ends[-1]]) == 0
