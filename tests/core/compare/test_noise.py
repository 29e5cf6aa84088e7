"""Noise by source: known figures are recovered, and absent sources are not found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sysbench.core.compare.noise_sources import (
    MIN_ROUNDS,
    Noise,
    NoiseSource,
    Observed,
    deviation_interval,
    noise_of,
)
from sysbench.core.record.timing import Round

SPREAD = 0.012
LEVEL_MS = 10.0
TICK_NS = 100.0


def observed(
    number: int,
    median_ms: float | None,
    *,
    load: float = 0.1,
    clock_mhz: float | None = None,
    tenants: tuple[str, ...] = (),
    disturbed: str = "",
    samples_ms: tuple[float, ...] = (),
) -> Observed:
    """Round number n of an experiment, from 0."""
    ms = median_ms or 0.0
    return Observed(
        round=Round(
            index=number + 1,
            started_ns=number,
            outcome="finished",
            median_ms=median_ms,
            ci_low_ms=0.99 * ms,
            ci_high_ms=1.01 * ms,
            first_step_ms=5 * ms,
            samples_ms=list(samples_ms),
            cpu_percent=50 + 100 * load,
            own_cpu_percent=50.0,
            tenants=list(tenants),
            disturbed=disturbed,
            block=number // 4,
            position=number % 4,
        ),
        clock_mhz=clock_mhz,
    )


def simulated(draw: random.Random, count: int, row: Callable[..., Observed] = observed) -> Noise:
    """The noise of rounds that differ by chance only."""
    noise = noise_of(
        [row(n, LEVEL_MS * math.exp(draw.gauss(0, SPREAD))) for n in range(count)], TICK_NS
    )
    assert noise is not None
    return noise


def source(noise: Noise | None, name: str) -> NoiseSource:
    assert noise is not None
    (found,) = (row for row in noise.sources if row.name == name)
    return found


def as_logs(draw: random.Random, kind: str, count: int) -> list[float]:
    """Noise of standard deviation `SPREAD`."""
    match kind:
        case "normal":
            return [draw.gauss(0, SPREAD) for _ in range(count)]
        case "two modes":
            return [
                SPREAD * (draw.choice((-1, 1)) + draw.gauss(0, 0.3)) / math.sqrt(1.09)
                for _ in range(count)
            ]
        case _:
            return [draw.expovariate(1) * SPREAD for _ in range(count)]


@pytest.mark.parametrize(
    ("kind", "least"), [("normal", 0.935), ("two modes", 0.935), ("skewed", 0.86)]
)
@pytest.mark.parametrize("count", [8, 12, 30])
def test_the_spread_between_processes_lies_in_its_interval(
    kind: str, least: float, count: int
) -> None:
    draw = random.Random(count)
    true = math.expm1(SPREAD)
    held = 0
    for _ in range(1000):
        _, low, high = deviation_interval(as_logs(draw, kind, count))
        held += low <= true <= high
    assert held >= 1000 * least


@given(st.lists(st.floats(-0.5, 0.5), min_size=5, max_size=40), st.floats(-3, 3))
@example(logs=[0.0, 0.0, 0.0, 0.0, 1.7e-303], level=0.0)
def test_a_spread_lies_in_its_interval_wherever_the_level_is(
    logs: list[float], level: float
) -> None:
    share, low, high = deviation_interval(logs)
    assert low <= high
    assert (share == 0) == (high == 0)
    moved = deviation_interval([value + level for value in logs])
    if share > 1e-6:
        assert moved == pytest.approx((share, low, high), rel=1e-3)


def test_rounds_that_differ_by_chance_show_no_source_in_more_than_5_percent() -> None:
    draw = random.Random(3)

    def with_conditions(number: int, median_ms: float) -> Observed:
        steps = [LEVEL_MS * math.exp(draw.gauss(0, SPREAD)) for _ in range(16)]
        return observed(
            number,
            median_ms,
            load=draw.random(),
            clock_mhz=draw.uniform(2000, 3000),
            samples_ms=tuple(steps),
        )

    false = 0
    for _ in range(400):
        noise = simulated(draw, 24, with_conditions)
        tests = [row.found for row in noise.sources if row.found is not None]
        assert len(tests) == 5
        false += any(tests)
    assert false <= 400 * 0.05


def test_a_drift_is_found_and_its_size_recovered() -> None:
    draw, held, found, count = random.Random(4), 0, 0, 32
    true = math.expm1(0.06)  # half of the slope from the first round to the last but one
    for _ in range(100):
        rows = [
            observed(n, LEVEL_MS * math.exp(draw.gauss(0, SPREAD) + 0.12 * n / count))
            for n in range(count)
        ]
        drift = source(noise_of(rows, TICK_NS), "drift")
        assert drift.low is not None and drift.high is not None
        held += drift.low <= true <= drift.high
        found += drift.found is True
    assert held >= 95
    assert found >= 95


def test_the_drift_of_a_floor_is_the_largest_that_is_not_excluded() -> None:
    noise = simulated(random.Random(5), 24)
    drift = source(noise, "drift")
    assert drift.low is not None and drift.high is not None
    assert noise.drift == max(-drift.low, drift.high)
    few = simulated(random.Random(5), MIN_ROUNDS)
    assert source(few, "drift").low is None
    assert source(few, "drift").found is None
    assert few.drift > abs(source(few, "drift").share or 0)


@pytest.mark.parametrize("name", ["clock", "neighbours"])
def test_a_condition_that_lengthens_rounds_is_found_with_its_size(name: str) -> None:
    draw = random.Random(6)
    rows = []
    for n in range(32):
        busy = draw.random() < 0.5
        ms = LEVEL_MS * math.exp(draw.gauss(0, SPREAD) + 0.08 * busy)
        if name == "clock":
            rows.append(observed(n, ms, clock_mhz=2000 + draw.random() if busy else 3000.0))
        else:
            rows.append(observed(n, ms, load=(0.8 if busy else 0.1) + 0.01 * draw.random()))
    found = source(noise_of(rows, TICK_NS), name)
    assert found.found is True
    assert found.share is not None
    assert abs(found.share) == pytest.approx(0.08, abs=0.02)
    assert (found.share < 0) == (name == "clock")


def test_conditions_that_do_not_vary_or_are_not_shown_have_no_figure_but_a_reason() -> None:
    noise = simulated(random.Random(7), 16)
    clock, neighbours = source(noise, "clock"), source(noise, "neighbours")
    assert (clock.share, neighbours.share) == (None, None)
    assert "shows no clock" in clock.how
    assert "did not vary: 10 % to 10 %" in neighbours.how


def test_tenants_of_the_device_count_as_other_processes_if_some_rounds_had_them() -> None:
    draw = random.Random(8)
    rows = [
        observed(
            n,
            LEVEL_MS * math.exp(draw.gauss(0, SPREAD) + 0.1 * (n % 2)),
            tenants=("other (7)",) if n % 2 else (),
        )
        for n in range(24)
    ]
    assert source(noise_of(rows, TICK_NS), "neighbours").found is True


def test_a_disturbed_round_counts_for_other_processes_only() -> None:
    rows = [observed(n, LEVEL_MS, load=0.1) for n in range(MIN_ROUNDS)]
    rows.append(observed(MIN_ROUNDS, 2 * LEVEL_MS, load=0.9, disturbed="someone came"))
    noise = noise_of(rows, TICK_NS)
    assert noise is not None
    assert (noise.rounds, noise.between) == (MIN_ROUNDS, 0)
    assert source(noise, "neighbours").share == pytest.approx(1)
    assert noise_of(rows[1:], TICK_NS) is None


def test_warm_up_that_is_not_over_is_found_in_the_first_steps() -> None:
    steps = tuple(12.0 if n < 10 else 10.0 for n in range(40))
    rows = [observed(n, LEVEL_MS, samples_ms=steps) for n in range(12)]
    touch = source(noise_of(rows, TICK_NS), "first touch")
    assert touch.share == pytest.approx(0.2)
    assert touch.found is True
    assert "5.0 times a steady one" in touch.how


def test_the_clock_that_times_steps_has_its_granularity() -> None:
    rows = [observed(n, LEVEL_MS) for n in range(MIN_ROUNDS)]
    assert source(noise_of(rows, TICK_NS), "clock granularity").share == pytest.approx(1e-5)
    events = source(noise_of(rows, None), "clock granularity")
    assert events.share == pytest.approx(5e-5)
    assert "CUDA" in events.how


@given(st.permutations(range(12)))
def test_the_residuals_stand_in_the_order_of_measuring(order: list[int]) -> None:
    rows = [observed(n, LEVEL_MS * (1 + 0.01 * place)) for n, place in enumerate(order)]
    noise = noise_of(rows, TICK_NS)
    assert noise is not None
    ranked = sorted(range(12), key=lambda n: noise.residuals[n])
    assert [order[n] for n in ranked] == list(range(12))
