"""Power of pairs of rounds is what the signed-rank test really finds."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest

from sysbench.core.compare.interval import paired
from sysbench.core.compare.power import decided_by, pairs_needed


@pytest.mark.parametrize(
    ("spread", "difference"), [(0.02, 0.02), (0.03, 0.05), (0.05, 0.1), (0.02, 0.013)]
)
def test_the_needed_pairs_find_the_difference_in_four_of_five(
    spread: float, difference: float
) -> None:
    draw = random.Random(5)
    count = pairs_needed(spread, difference)
    found = 0
    for _ in range(300):
        a = [math.exp(draw.gauss(0, spread)) for _ in range(count)]
        b = [(1 + difference) * math.exp(draw.gauss(0, spread)) for _ in range(count)]
        interval = paired(a, b)
        found += interval.low is not None and interval.low > 0
    assert found / 300 == pytest.approx(0.8, abs=0.1)


def test_the_documented_rounds_are_those() -> None:
    text = (Path(__file__).parents[3] / "docs" / "studies.md").read_text()
    head, _, *rows = text[text.index("| spread | 1 %") :].split("\n\n")[0].splitlines()
    differences = [float(cell) / 100 for cell in re.findall(r"([\d.]+) %", head)]
    for row in rows:
        spread, *counts = re.findall(r"[\d.]+", row)
        needed = [pairs_needed(float(spread) / 100, difference) for difference in differences]
        assert [int(count) for count in counts] == needed


def test_decided_by_and_pairs_needed_are_inverse() -> None:
    for spread in (0.03, 0.2):
        difference = decided_by(100, spread)
        assert pairs_needed(spread, difference) == pytest.approx(100, rel=0.1)
    assert decided_by(100, 0.03) > decided_by(200, 0.03)


def test_more_pairs_for_less() -> None:
    assert pairs_needed(0.03, 0.01) > pairs_needed(0.03, 0.02) > pairs_needed(0.03, 0.1) == 6
    assert pairs_needed(0.03, 0.0) > 1000
