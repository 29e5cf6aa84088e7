"""The timing block of several rounds, against its definition."""

from __future__ import annotations

import statistics
from itertools import count
from math import comb

from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.rounds import combined, counting, inside, middle, with_times
from sysbench.core.compare.statistics import spread
from sysbench.core.record.events import Outcome
from sysbench.core.record.timing import Round, Timing
from tests import factories

OUTCOMES: tuple[Outcome, ...] = ("finished", "finished", "killed")
TIMES = st.floats(0.1, 1e4)
SAMPLES = st.lists(TIMES, min_size=1, max_size=12)


def process(samples: list[float]) -> Timing:
    step = spread(samples)
    return factories.timing(
        step, samples_ms=samples, tokens_per_second=1e3 / step.median_ms, tflops=2 / step.median_ms
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Round], dict[int, Timing]]:
    """Rounds with the blocks of those that have one: finished, disturbed, killed before or after
    the result."""
    rounds, timings, numbers = [], {}, count(1)
    for samples in draw(st.lists(st.none() | SAMPLES, min_size=1, max_size=10)):
        index = next(numbers)
        outcome: Outcome = draw(st.sampled_from(OUTCOMES))
        disturbed = draw(st.sampled_from(("", "", "a neighbour")))
        bare = Round(index=index, started_ns=index, outcome=outcome, disturbed=disturbed)
        if samples is not None:
            timings[index] = process(samples)
        rounds.append(with_times(bare, timings.get(index)))
    return rounds, timings


@given(runs())
def test_the_step_is_the_spread_of_the_counting_rounds_medians(
    run: tuple[list[Round], dict[int, Timing]],
) -> None:
    rounds, timings = run
    block = combined(rounds, timings)
    able = [one for one in rounds if one.outcome == "finished" and not one.disturbed]
    medians: list[float] = [statistics.median(one.samples_ms) for one in able if one.samples_ms]
    if block is None:
        assert not timings
        return
    assert block.rounds == rounds
    assert [one.median_ms for one in counting(rounds)] == medians
    if len(medians) < 2:
        assert (block.interval_of, block.steps) == ("steps", None)
        assert block.step.median_ms in (medians or [own.step.median_ms for own in timings.values()])
        return
    assert (block.interval_of, block.step) == ("rounds", spread(medians))
    assert block.phases == {"forward": spread(medians)}
    assert block.steps is not None
    assert block.steps.n == sum(len(one.samples_ms) for one in counting(rounds))
    if len(medians) < 6:
        assert (block.step.ci_low_ms, block.step.ci_high_ms) == (min(medians), max(medians))


@given(runs())
def test_all_else_is_of_the_middle_round_and_rates_follow_the_new_median(
    run: tuple[list[Round], dict[int, Timing]],
) -> None:
    rounds, timings = run
    block, standing = combined(rounds, timings), middle(rounds)
    if block is None or standing is None:
        assert (block, standing) == (None, None)
        return
    own = timings[standing.index]
    assert block.samples_ms == own.samples_ms
    assert inside(block) == own.step
    if standing.counts:
        below = [one for one in counting(rounds) if one.median_ms < standing.median_ms]  # type: ignore[operator]
        above = [one for one in counting(rounds) if one.median_ms > standing.median_ms]  # type: ignore[operator]
        assert len(below) <= (len(counting(rounds)) - 1) / 2
        assert len(above) <= len(counting(rounds)) / 2
    assert block.tokens_per_second is not None
    assert abs(block.tokens_per_second * block.step.median_ms / 1e3 - 1) < 1e-9
    assert block.tflops is not None
    assert abs(block.tflops * block.step.median_ms / 2 - 1) < 1e-9


@given(st.lists(TIMES, min_size=2, max_size=60, unique=True))
def test_from_six_rounds_on_the_interval_covers_the_median_with_95_percent(
    medians: list[float],
) -> None:
    rounds = [
        with_times(Round(index=index, started_ns=0, outcome="finished"), process([median]))
        for index, median in enumerate(medians, 1)
    ]
    block = combined(rounds, {one.index: process(one.samples_ms) for one in rounds})
    assert block is not None
    below = sum(median < block.step.ci_low_ms for median in medians)
    assert below == sum(median > block.step.ci_high_ms for median in medians)
    outside = sum(comb(len(medians), k) for k in range(below + 1)) / 2 ** len(medians)
    assert (1 - 2 * outside >= 0.95) == (len(medians) >= 6)
