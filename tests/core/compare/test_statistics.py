"""Medians, their intervals and the stop rule."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.statistics import (
    half_width,
    interval_rank,
    median_interval,
    settled,
    spread,
    stop_reason,
    stop_words,
)

times = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=300)


def no_stop(samples: list[float], seconds: float = 5.0, steps: int = 0) -> str | None:
    return stop_reason(samples, seconds, steps=steps, until=0.005, max_steps=200, max_seconds=20.0)


@pytest.mark.parametrize(
    ("count", "rank"),
    # From the binomial table: the largest r with P(X <= r - 1) <= 0.025 for n tosses.
    [(5, 0), (6, 0), (9, 1), (10, 1), (15, 3), (20, 5), (30, 9), (100, 39)],
)
def test_interval_rank_agrees_with_the_binomial_table(count: int, rank: int) -> None:
    assert interval_rank(count) == rank
    tail = sum(math.comb(count, below) for below in range(rank + 1)) / 2**count
    assert count < 6 or tail <= 0.025
    assert tail + math.comb(count, rank + 1) / 2**count > 0.025


def test_the_interval_holds_the_true_median_95_times_in_100() -> None:
    chance = random.Random(7)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([chance.lognormvariate(0, 1) for _ in range(25)])
        hits += low <= 1.0 <= high
    assert 0.94 <= hits / 2000 <= 0.985


@given(times)
def test_the_parts_of_a_spread_are_in_order(samples: list[float]) -> None:
    found = spread(samples)
    assert found.min_ms <= found.ci_low_ms <= found.median_ms <= found.ci_high_ms <= found.max_ms
    assert found.min_ms <= found.p10_ms <= found.p90_ms <= found.max_ms
    assert found.median_ms == statistics.median(samples)
    assert found.n == len(samples)
    assert found.mad_ms >= 0
    assert found.iqr_ms >= 0


@given(times, st.floats(0.5, 1000))
def test_a_spread_scales_with_its_samples(samples: list[float], factor: float) -> None:
    one, other = spread(samples), spread([sample * factor for sample in samples])
    assert other.median_ms == pytest.approx(one.median_ms * factor)
    # Rounding is relative to the largest sample, whatever the spread.
    assert other.std_ms == pytest.approx(
        one.std_ms * factor, rel=1e-6, abs=1e-9 * one.max_ms * factor
    )
    assert other.drift == pytest.approx(one.drift, rel=1e-6, abs=1e-9)


def test_outliers_are_named_not_dropped() -> None:
    samples = [10.0, 10.1, 9.9, 10.2, 9.8, 10.0, 40.0, 10.1]
    found = spread(samples)
    assert found.outliers == [6]
    assert found.max_ms == 40.0
    assert found.n == 8


def test_drift_is_the_second_half_against_the_first() -> None:
    assert spread([10.0] * 10 + [11.0] * 10).drift == pytest.approx(0.1)
    assert spread([10.0, 20.0]).drift == 0.0


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        spread([])


def test_half_width_is_unknown_below_six_samples() -> None:
    assert half_width([1.0] * 5) == math.inf
    assert half_width([1.0] * 6) == 0.0


def test_warm_up_settles_when_the_last_three_agree() -> None:
    assert not settled([10.0, 10.0])
    assert settled([99.0, 10.0, 10.4, 10.2])
    assert not settled([99.0, 10.0, 10.6, 10.2])


def test_stopping_needs_ten_steps_and_a_second() -> None:
    assert no_stop([1.0] * 9) is None
    assert no_stop([1.0] * 10, seconds=0.9) is None
    assert "±0.5 %" in (no_stop([1.0] * 10) or "")


def test_stopping_at_limits_says_which() -> None:
    noisy = [1.0, 2.0] * 50
    assert no_stop(noisy) is None
    assert "20 s" in (no_stop(noisy, seconds=20.0) or "")
    assert "200 steps" in (no_stop(noisy * 2) or "")


def test_a_fixed_number_of_steps_rules_alone() -> None:
    assert no_stop([1.0] * 11, seconds=99.0, steps=12) is None
    assert "12 steps" in (no_stop([1.0] * 12, steps=12) or "")


def test_each_reason_to_stop_has_few_words() -> None:
    asked = no_stop([1.0] * 7, steps=7)
    most = stop_reason([1.0, 9.0], 5.0, steps=0, until=1e-9, max_steps=2, max_seconds=20.0)
    late = stop_reason([1.0, 9.0], 15.0, steps=0, until=1e-9, max_steps=200, max_seconds=15.0)
    reached = stop_reason([1.0] * 20, 15.0, steps=0, until=0.05, max_steps=200, max_seconds=20.0)
    reasons = [asked, most, late, reached, "stopped on request after 20 of its steps"]
    assert [stop_words(reason or "") for reason in reasons] == [
        "all 7 steps asked for",
        "stopped at 2 steps",
        "stopped at 15 s",
        "",
        "stopped on request",
    ]
    assert stop_words("another reason") == "another reason"
