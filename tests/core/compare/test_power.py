"""Power is what the sequential test really finds."""

from __future__ import annotations

import math
import random

import pytest

from sysbench.core.compare.interval import RoundBlock, interleaved
from sysbench.core.compare.power import (
    more_rounds,
    normal_residuals,
    power_after,
    smallest_difference,
)
from sysbench.core.compare.verdict import judge

NOISE = 0.01


def drawn(draw: random.Random, slowdown: float) -> RoundBlock:
    logs = [draw.gauss(0, NOISE) for _ in range(4)]
    a1, a2, b1, b2 = (100 * math.exp(value) for value in logs)
    return RoundBlock((a1, a2), ((1 + slowdown) * b1, (1 + slowdown) * b2))


@pytest.mark.parametrize("slowdown", [0.0075, 0.015, 0.03])
def test_promised_power_is_that_of_simulated_comparisons(slowdown: float) -> None:
    draw = random.Random(3)
    promised = power_after(normal_residuals(NOISE), slowdown, 8)[-1]
    found = 0
    for _ in range(400):
        blocks: list[RoundBlock] = []
        for _ in range(8):
            blocks.append(drawn(draw, slowdown))
            interval = interleaved(blocks)
            if interval.low is not None and interval.low > 0:
                found += 1
                break
    assert found / 400 == pytest.approx(promised, abs=0.07)


def test_smallest_difference_is_found_in_four_of_five() -> None:
    residuals = normal_residuals(NOISE)
    difference = smallest_difference(residuals, 10)
    assert difference is not None
    assert power_after(residuals, difference, 10)[-1] == pytest.approx(0.8, abs=0.02)
    fewer = smallest_difference(residuals, 5)
    assert fewer is not None and fewer > difference
    assert smallest_difference(residuals, 2) is None


def test_power_rises_with_the_blocks_and_with_the_difference() -> None:
    residuals = normal_residuals(NOISE)
    powers = power_after(residuals, 0.01, 30)
    assert powers == sorted(powers) and powers[:2] == [0, 0]
    by_difference = [power_after(residuals, d, 8)[-1] for d in (0.002, 0.005, 0.01, 0.02)]
    assert by_difference == sorted(by_difference)


def test_rounds_that_are_missing_shrink_as_evidence_gathers() -> None:
    residuals = normal_residuals(NOISE)
    none_yet = more_rounds([], residuals, 0.01)
    against_it = [RoundBlock((1.0, 2.0), (3.0, 4.0))] * 2  # two blocks wholly in favour of slower
    later = more_rounds(against_it, residuals, 0.01)
    assert none_yet is not None and later is not None
    assert none_yet % 4 == later % 4 == 0
    assert later < none_yet - 8


def test_noise_that_no_number_of_rounds_overcomes_is_reported() -> None:
    assert more_rounds([], normal_residuals(0.3), 0.01) is None


def test_a_verdict_without_power_names_the_rounds_that_would_decide() -> None:
    draw = random.Random(5)
    blocks = [drawn(draw, 0) for _ in range(4)]
    needed = more_rounds(blocks, normal_residuals(NOISE), 0.01)
    verdict = judge(interleaved(blocks), smallest=0.01, more_rounds=needed)
    assert verdict.verdict == "not decidable"
    assert verdict.next == f"{needed} more rounds would decide a 1.0 % difference"
