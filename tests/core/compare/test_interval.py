"""Intervals hold the true change as often as they promise, whatever the noise is."""

from __future__ import annotations

import math
import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.interval import (
    RoundBlock,
    from_known_spread,
    interleaved,
    paired,
    residuals,
    separate,
)

Pair = tuple[float, float]
times = st.floats(0.1, 1e4)
pairs = st.tuples(times, times)
block_lists = st.lists(st.builds(RoundBlock, pairs, pairs), min_size=3, max_size=12)
rounds = st.lists(times, min_size=4, max_size=12)


@given(block_lists)
def test_swapping_the_sides_turns_the_interval_round(blocks: list[RoundBlock]) -> None:
    there = interleaved(blocks)
    back = interleaved([RoundBlock(block.b, block.a) for block in blocks])
    assert there.low is not None and there.high is not None
    assert back.low is not None and back.high is not None
    assert there.low <= there.change <= there.high
    assert (1 + back.low) * (1 + there.high) == pytest.approx(1)
    assert (1 + back.high) * (1 + there.low) == pytest.approx(1)


@given(block_lists, st.floats(0.5, 2), st.lists(st.floats(0.5, 2), min_size=12, max_size=12))
def test_a_slowdown_moves_the_interval_and_a_level_of_a_block_does_not(
    blocks: list[RoundBlock], factor: float, levels: list[float]
) -> None:
    plain = interleaved(blocks)
    moved = interleaved(
        [
            RoundBlock(
                (level * block.a[0], level * block.a[1]),
                (level * factor * block.b[0], level * factor * block.b[1]),
            )
            for block, level in zip(blocks, levels, strict=False)
        ]
    )
    for before, after in ((plain.low, moved.low), (plain.high, moved.high)):
        assert before is not None and after is not None
        assert 1 + after == pytest.approx(factor * (1 + before), rel=1e-9)


@given(rounds, rounds, st.floats(0, 0.2))
def test_drift_widens_the_interval_of_separate_rounds(
    a: list[float], b: list[float], drift: float
) -> None:
    plain, wide = separate(a, b), separate(a, b, drift=drift)
    assert plain.low is not None and wide.low is not None
    assert plain.high is not None and wide.high is not None
    assert 1 + wide.low == pytest.approx((1 + plain.low) / (1 + drift))
    assert 1 + wide.high == pytest.approx((1 + plain.high) * (1 + drift))


@given(st.lists(pairs, min_size=6, max_size=14))
def test_swapping_the_sides_turns_the_interval_of_pairs_round(found: list[Pair]) -> None:
    a, b = zip(*found, strict=True)
    there, back = paired(a, b), paired(b, a)
    assert there.low is not None and there.high is not None
    assert back.low is not None and back.high is not None
    assert there.low <= there.change <= there.high
    assert (1 + back.low) * (1 + there.high) == pytest.approx(1)
    assert (1 + back.high) * (1 + there.low) == pytest.approx(1)


@given(
    st.lists(pairs, min_size=6, max_size=14),
    st.floats(0.5, 2),
    st.lists(st.floats(0.5, 2), min_size=14, max_size=14),
)
def test_a_slowdown_moves_the_interval_of_pairs_and_the_level_of_a_pass_does_not(
    found: list[Pair], factor: float, levels: list[float]
) -> None:
    a, b = zip(*found, strict=True)
    plain = paired(a, b)
    moved = paired(
        [level * x for level, x in zip(levels, a, strict=False)],
        [level * factor * y for level, y in zip(levels, b, strict=False)],
    )
    for before, after in ((plain.low, moved.low), (plain.high, moved.high)):
        assert before is not None and after is not None
        assert 1 + after == pytest.approx(factor * (1 + before), rel=1e-9)


@given(st.lists(pairs, min_size=8, max_size=14))
def test_an_interval_for_several_comparisons_holds_that_for_one(found: list[Pair]) -> None:
    a, b = zip(*found, strict=True)
    for test in (paired, separate):
        one, several = test(a, b), test(a, b, false_rate=0.05 / 3)
        assert one.low is not None and several.low is not None
        assert one.high is not None and several.high is not None
        assert several.low <= one.low and one.high <= several.high


def test_the_order_of_the_noise_is_drawn_so_bursts_and_drift_change_no_false_rate() -> None:
    draw = random.Random(4)
    cells, passes, wrong, trials = 12, 6, 0, 1500
    for _ in range(trials):
        level, noise = 0.0, []
        for n in range(cells * passes):
            level = 0.9 * level + draw.gauss(0, 0.01)  # other processes that stay for ten cells
            noise.append(math.exp(level + 0.001 * n))
        orders = [list(range(cells)), *(draw.sample(range(cells), cells) for _ in range(5))]
        a, b = (
            [noise[n * cells + order.index(cell)] for n, order in enumerate(orders)]
            for cell in (0, 11)
        )
        interval = paired(a, b)
        assert interval.low is not None and interval.high is not None
        wrong += interval.low > 0 or interval.high < 0
    assert wrong / trials <= 0.05


def test_five_pairs_have_no_interval_and_six_have() -> None:
    few, enough = paired([1.0] * 5, [2.0] * 5), paired([1.0] * 6, [2.0] * 6)
    assert few.low is None and few.change == pytest.approx(1)
    assert enough.low == pytest.approx(1) and enough.high == pytest.approx(1)
    with pytest.raises(ValueError, match="no rounds"):
        paired([], [])


def test_three_rounds_a_side_have_no_interval_and_four_have() -> None:
    few, enough = separate([1, 2, 3], [4, 5, 6]), separate([1, 2, 3, 4], [5, 6, 7, 8])
    assert few.low is None and few.change > 0
    assert enough.low is not None and enough.low > 0


def test_no_pair_of_eight_processes_of_one_spec_differs() -> None:
    # The widest possible range of eight values in units of their own deviation, and others.
    draw = random.Random(1)
    samples = [[1.0] * 4 + [1.05] * 4, [0.95, *[1.0] * 6, 1.05]]
    samples += [[math.exp(draw.gauss(0, 0.02)) for _ in range(8)] for _ in range(6)]
    for sample in samples:
        for a, b in permutations(sample, 2):
            interval = from_known_spread(a, b, sample, sample)
            assert interval.low is not None and interval.high is not None
            assert interval.low <= 0 <= interval.high


def test_one_process_a_side_alone_has_no_interval() -> None:
    interval = from_known_spread(100, 50, [100, 101, 99, 100])
    assert interval.change == -0.5
    assert interval.low is None and interval.high is None and interval.basis == "none"


def test_known_spread_decides_what_is_far_outside_of_it() -> None:
    sample = [100.0, 101, 99, 100.5, 99.5, 100.2, 99.8, 100.1]
    interval = from_known_spread(100, 50, sample)
    assert interval.high is not None and interval.high < -0.4
    assert interval.basis == "known spread" and "8 runs" in interval.source


def test_a_floor_is_the_least_spread() -> None:
    sample = [100.0] * 6
    tight, floored = (from_known_spread(100, 101, sample, floor=floor) for floor in (0, 0.02))
    assert tight.low == pytest.approx(0.01) and floored.low is not None and floored.low < 0


def test_residuals_have_the_spread_of_the_rounds() -> None:
    draw = random.Random(2)

    def noisy(level: float) -> float:
        return level * math.exp(draw.gauss(0, 0.03))

    blocks = []
    for n in range(200):
        level = 100 + 10 * n  # blocks drift, and B is 10 % slower
        a, b = (noisy(level), noisy(level)), (noisy(1.1 * level), noisy(1.1 * level))
        blocks.append(RoundBlock(a, b))
    spread = interleaved(blocks).spread
    assert spread == pytest.approx(0.03, rel=0.05)
    assert len(residuals(blocks)) == 800


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_times_must_be_above_zero(bad: float) -> None:
    with pytest.raises((ValueError, ZeroDivisionError)):
        interleaved([RoundBlock((bad, 1.0), (1.0, 1.0))])
