"""A gate follows the interval and its margin, and says how many rounds would decide it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.compare.bounds import rank_bound
from sysbench.core.compare.compared_records import NOTHING_KNOWN, Known, verdict_of
from sysbench.core.compare.gate_rule import (
    DEFAULT_ROUNDS,
    Gate,
    gate,
    gate_line,
    gate_of,
    interleaved_rounds,
    separate_rounds,
)
from sysbench.core.compare.interval import Interval, RoundBlock
from sysbench.core.compare.verdict import judge
from sysbench.core.errors import WorkerFailed
from sysbench.core.record.record import Record
from tests import factories

ORDER = ("regression", "not decidable", "pass")
"""From a small margin to a large one."""
medians = st.lists(st.floats(5.0, 20.0), min_size=2, max_size=8)


def gated(
    a: Sequence[float],
    b: Sequence[float],
    margin: float = 0.03,
    known: Known = NOTHING_KNOWN,
    experiment: str = "",
) -> Gate:
    fields: dict[str, Any] = {"experiment": experiment} if experiment else {}
    left, right = (factories.record_of_rounds(ms, **fields) for ms in (a, b))
    return gate_of(left, right, verdict_of(left, right, known), margin, known)


@pytest.mark.parametrize(
    ("times", "result", "code"),
    [(1.0, "pass", 0), (1.02, "pass", 0), (1.2, "regression", 3), (1.03, "not decidable", 4)],
)
def test_result_and_exit_code(times: float, result: str, code: int) -> None:
    a = [10.0, 10.01, 9.99, 10.02, 9.98, 10.0]
    gate = gated(a, [times * ms for ms in a])
    assert (gate.result, gate.exit_code) == (result, code)
    assert gate_line(gate).startswith(f"gate 3.0 %: {result}: 95 % interval")
    assert bool(gate.next) is (result == "not decidable")


@given(medians, medians, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_margin_is_never_worse(
    a: list[float], b: list[float], one: float, other: float
) -> None:
    results = [gated(a, b, margin).result for margin in sorted((one, other))]
    assert ORDER.index(results[0]) <= ORDER.index(results[1])


@given(st.floats(-0.9, 2), st.floats(0, 2), st.floats(0, 1), st.floats(0, 1))
def test_nor_for_any_interval(low: float, width: float, one: float, other: float) -> None:
    verdict = judge(
        Interval(
            change=low + width / 2,
            low=low,
            high=low + width,
            basis="interleaved rounds",
            source="",
        )
    )
    results = [gate(verdict, margin) for margin in sorted((one, other))]
    assert ORDER.index(results[0]) <= ORDER.index(results[1])


@given(medians, medians, st.floats(0, 1))
def test_a_run_that_is_decided_needs_no_rounds_and_another_says_what_it_needs(
    a: list[float], b: list[float], margin: float
) -> None:
    gate = gated(a, b, margin)
    if gate.result != "not decidable":
        assert (gate.rounds, gate.next) == (None, "")
    else:
        assert gate.next
        assert gate.rounds is None or gate.rounds >= DEFAULT_ROUNDS


def test_few_rounds_say_how_many_would_do() -> None:
    gate = gated([10.0, 10.4, 9.7], [10.3, 9.8, 10.1, 10.0, 10.4, 9.6])
    assert gate.result == "not decidable"
    assert gate.rounds is not None and gate.rounds > DEFAULT_ROUNDS
    assert f"about {gate.rounds} rounds a side" in gate.next
    assert "A has 3, B has 6" in gate.next
    assert "6 rounds a side would show the spread" in gated([10.0], [10.0]).next


def test_drift_beyond_the_margin_is_decided_by_no_separate_rounds() -> None:
    a = [10.0, 10.01, 9.99, 10.02, 9.98, 10.0]
    gate = gated(a, a, 0.03, Known(drift=0.05))
    assert (gate.result, gate.rounds) == ("not decidable", None)
    assert "drifts by 5.00 %" in gate.next and "sysbench-tui ab" in gate.next
    assert gated(a, a, 0.03, Known(drift=0.01)).result == "pass"


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_separate_rounds_find_the_shift_as_often_as_promised(shift: float) -> None:
    rounds = separate_rounds(0.01, 0.01 * shift)
    assert rounds is not None
    bound = rank_bound(rounds, rounds)
    assert bound is not None
    draw = random.Random(7)
    found = 0
    for _ in range(200):
        a = [draw.gauss(0, 1) for _ in range(rounds)]
        b = [draw.gauss(shift, 1) for _ in range(rounds)]
        found += sum(y <= x for x in a for y in b) <= bound
    assert found / 200 >= 0.75


@given(st.floats(0.001, 0.2), st.floats(0.001, 0.2), st.floats(0.001, 0.2))
def test_more_rounds_for_a_smaller_distance(spread: float, one: float, other: float) -> None:
    near, far = (separate_rounds(spread, d) or 10_000 for d in sorted((one, other)))
    assert near >= far
    assert separate_rounds(spread, 0.0) is None


def test_interleaved_rounds_go_on_from_those_there_are() -> None:
    draw = random.Random(3)
    blocks = [
        RoundBlock(
            (draw.gauss(100, 1), draw.gauss(100, 1)), (draw.gauss(101, 1), draw.gauss(101, 1))
        )
        for _ in range(4)
    ]
    near, far = (interleaved_rounds(blocks, margin) for margin in (0.03, 0.2))
    assert near is not None and far is not None
    assert 2 * len(blocks) < far <= near
    assert gated([10, 10.4, 9.7, 10.1], [10.2, 9.9, 10.3, 9.8], experiment="x").rounds


def with_outcome(outcome: str) -> Record:
    rows = [*factories.rounds([10.0, 10.1]), *factories.rounds([10.0], outcome=outcome, index=3)]
    return factories.record(
        timing=factories.timing(factories.spread(10.0), rounds=rows, interval_of="rounds")
    )


def test_a_failed_run_is_no_verdict_and_a_torn_round_no_failure() -> None:
    whole = factories.record_of_rounds([10.0, 10.1, 10.2])
    untimed = factories.record(status="oom")
    for record in (untimed, with_outcome("failed")):
        with pytest.raises(WorkerFailed, match="run run"):
            gate_of(whole, record, verdict_of(whole, record), 0.03)
    torn = with_outcome("killed")
    assert gate_of(torn, whole, verdict_of(torn, whole), 0.03).result == "not decidable"


def test_rounds_that_do_not_count_decide_nothing() -> None:
    whole = factories.record_of_rounds([10.0, 10.1, 10.2])
    disturbed = factories.record_of_rounds([10.0, 10.1], disturbed="a neighbour came")
    gate = gate_of(whole, disturbed, verdict_of(whole, disturbed), 1.0)
    assert gate.result == "not decidable"
    assert "no round counts" in gate.reason
