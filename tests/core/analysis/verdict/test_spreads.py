"""The ratio of two spreads is claimed only where the rounds show it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.core.analysis.verdict.spreads import LEAST_ROUNDS, spread_change

times = st.lists(st.floats(1, 2), min_size=LEAST_ROUNDS, max_size=20)


def side(draw: random.Random, kind: str, count: int, spread: float) -> list[float]:
    match kind:
        case "normal":
            logs = [draw.gauss(0, 1) for _ in range(count)]
        case "bursts":
            logs = [draw.gauss(0, 1) + 3 * (draw.random() < 0.15) for _ in range(count)]
        case _:
            logs = [draw.choice((-1, 1)) + draw.gauss(0, 0.3) for _ in range(count)]
    return [10 * math.exp(spread * value) for value in logs]


@pytest.mark.parametrize("kind", ["normal", "bursts", "two modes"])
def test_equal_spreads_are_told_apart_in_at_most_5_percent(kind: str) -> None:
    draw = random.Random(1)
    false = sum(
        spread_change(side(draw, kind, 12, 0.01), side(draw, kind, 12, 0.01)).decided
        for _ in range(300)
    )
    assert false <= 300 * 0.06  # 5 %, and the error of 300 trials


def test_a_spread_that_was_quartered_is_found_with_its_ratio() -> None:
    draw = random.Random(2)
    changes = [
        spread_change(side(draw, "normal", 16, 0.02), side(draw, "normal", 16, 0.005))
        for _ in range(100)
    ]
    assert sum(row.decided for row in changes) >= 90
    held = sum(row.low <= 0.25 <= row.high for row in changes if row.low and row.high)
    assert held >= 90


@settings(deadline=None)  # the first example imports scipy
@given(times, times, st.floats(0.1, 10))
def test_the_ratio_lies_in_its_interval_and_turns_with_the_sides(
    a: list[float], b: list[float], factor: float
) -> None:
    there, back = spread_change(a, b), spread_change(b, a)
    if there.low is not None and there.high is not None and there.ratio is not None:
        assert there.low <= there.ratio * (1 + 1e-9) and there.ratio <= there.high * (1 + 1e-9)
        if back.low is not None:
            assert there.high * back.low == pytest.approx(1, rel=1e-6)
    moved = spread_change([factor * value for value in a], b)
    assert moved.before == pytest.approx(there.before, rel=1e-6, abs=1e-12)


def test_few_rounds_or_no_spread_decide_nothing() -> None:
    few = spread_change([1.0, 1.1] * 3, [1.0, 1.5] * 3)
    assert (few.low, few.high, few.decided, few.rounds) == (None, None, False, 6)
    still = spread_change([1.0] * 10, [1.0] * 10)
    assert (still.ratio, still.decided) == (None, False)
