"""The words follow the interval, and a gate follows its margin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.gate_rule import GATE_EXITS, gate
from sysbench.core.compare.interval import Interval
from sysbench.core.compare.verdict import judge


def interval(low: float | None, high: float | None) -> Interval:
    change = 0.5 if low is None or high is None else (low + high) / 2
    return Interval(
        change=change, low=low, high=high, basis="interleaved rounds", source="12 rounds a side"
    )


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.02, 0.05, "slower"),
        (-0.05, -0.02, "faster"),
        (-0.009, 0.01, "same"),
        (0.001, 0.004, "same"),  # there, and too small to matter
        (-0.03, 0.002, "not decidable"),
        (None, None, "not decidable"),
    ],
)
def test_word_follows_the_interval(low: float | None, high: float | None, word: str) -> None:
    verdict = judge(interval(low, high), smallest=0.01)
    assert verdict.verdict == word
    assert verdict.differs == (word in ("faster", "slower"))


@given(st.floats(-0.5, 0.5), st.floats(0, 0.5), st.floats(0.001, 0.2))
def test_faster_and_slower_never_hold_zero(low: float, width: float, smallest: float) -> None:
    verdict = judge(interval(low, low + width), smallest=smallest)
    if verdict.differs:
        assert (low > 0) != (low + width < 0)
        assert max(abs(low), abs(low + width)) > smallest


@pytest.mark.parametrize(
    ("low", "high", "result", "code"),
    [
        (-0.20, -0.10, "pass", 0),
        (0.01, 0.03, "pass", 0),  # slower, by less than the margin
        (0.031, 0.08, "regression", 3),
        (0.01, 0.08, "not decidable", 4),
        (None, None, "not decidable", 4),
    ],
)
def test_gate_follows_its_margin(
    low: float | None, high: float | None, result: str, code: int
) -> None:
    outcome = gate(judge(interval(low, high)), 0.03)
    assert outcome == result
    assert GATE_EXITS[outcome] == code
