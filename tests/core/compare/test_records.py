"""A verdict rests on the best evidence in two records."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from sysbench.core.compare.compared_records import (
    Known,
    counted_ms,
    other_computation,
    round_blocks,
    verdict_of,
)
from sysbench.core.compare.verdict import headline
from sysbench.core.record.record import Record
from sysbench.core.spec.spec import RunSpec
from tests import factories

EIGHT = (74.1, 75.9, 71.8, 77.6, 73.3, 78.9, 72.5, 76.0)
"""Medians of one spec in eight processes, milliseconds; each was known to ±1.4 to 5.5 % inside."""


def with_losses(spec: RunSpec, loss: float | None) -> Record:
    step = factories.spread(1.0)
    return factories.record(spec, timing=factories.timing(step, loss_start=loss))


def test_no_pair_of_eight_runs_of_one_spec_is_called_different() -> None:
    runs = [factories.record_of_rounds([median]) for median in EIGHT]
    for known in (Known(), Known(a_ms=EIGHT, b_ms=EIGHT)):
        words = {verdict_of(a, b, known).verdict for a in runs for b in runs}
        assert words <= {"not decidable", "same"}


def test_interleaved_rounds_come_before_separate_ones() -> None:
    a = factories.record_of_rounds([10, 10.1, 9.9, 10, 10.2, 9.8], experiment="x")
    b = factories.record_of_rounds([11, 11.1, 10.9, 11, 11.2, 10.8], experiment="x")
    verdict = verdict_of(a, b)
    assert (verdict.basis, verdict.verdict) == ("interleaved rounds", "slower")
    other = factories.record_of_rounds([11, 11.1, 10.9, 11, 11.2, 10.8], experiment="y")
    assert verdict_of(a, other).basis == "separate rounds"


def test_rounds_of_the_same_passes_over_a_grid_are_paired() -> None:
    # Passes differ by far more than the sides do, which only the pairs can see.
    levels = [100, 140, 90, 120, 200, 160]
    a, b = (
        factories.record(timing=factories.timing(factories.spread(100 * factor), rounds=[
            *factories.rounds([factor * level for level in levels])
        ]))
        for factor in (1.0, 1.05)
    )  # fmt: skip
    assert verdict_of(a, b).basis == "separate rounds"
    assert verdict_of(a, b).verdict == "not decidable"

    def in_passes(record: Record, passes: range) -> Record:
        assert record.timing is not None
        rows = [
            msgspec.structs.replace(row, experiment="grid", block=n)
            for n, row in zip(passes, record.timing.rounds, strict=True)
        ]
        timing = msgspec.structs.replace(record.timing, rounds=rows)
        return msgspec.structs.replace(record, timing=timing)

    verdict = verdict_of(in_passes(a, range(6)), in_passes(b, range(6)))
    assert (verdict.basis, verdict.verdict, verdict.rounds_a) == ("paired rounds", "slower", 6)
    assert verdict.change == pytest.approx(0.05)
    shifted = verdict_of(in_passes(a, range(6)), in_passes(b, range(1, 7)))
    assert shifted.basis == "separate rounds"  # only five passes have both


def test_known_spread_is_used_and_named_for_one_process_a_side() -> None:
    a, b = (factories.record_of_rounds([ms]) for ms in (100.0, 60.0))
    verdict = verdict_of(a, b, Known(a_ms=(100.0, 101, 99, 100.5, 99.5)))
    assert (verdict.basis, verdict.verdict) == ("known spread", "faster")
    assert "5 runs of these specs vary by" in verdict.why


def test_disturbed_rounds_do_not_count_and_repeats_take_their_place() -> None:
    rounds = factories.rounds([10, 50, 10.1], experiment="x")
    rows = [
        factories.rounds([10], experiment="x")[0],
        *factories.rounds([50], experiment="x", position=1, disturbed="a neighbour came"),
        *factories.rounds([10.1], experiment="x", position=1),
    ]
    assert [row.counts for row in rows] == [True, False, True]
    assert len(round_blocks(rounds[:2], rows)) == 1
    assert round_blocks(rounds[:2], rows)[0].b == (10, 10.1)


def test_a_block_that_lacks_a_round_is_left_out() -> None:
    a = factories.rounds([10, 10, 10, 10], experiment="x")
    assert len(round_blocks(a, a[:3])) == 1
    assert round_blocks(a, []) == []


def test_a_run_without_rounds_is_one_process() -> None:
    timing = factories.record_of_rounds([42.0]).timing
    assert timing is not None and counted_ms(timing) == [42.0]


@pytest.mark.parametrize(
    ("change", "loss", "differs"),
    [
        ({}, 9.2104, False),
        ({}, 9.2204, True),
        ({"precision": "bf16"}, 9.2204, False),  # rounding explains it
        ({"precision": "bf16"}, 9.8, True),
        ({"attention": "sdpa", "compile": "default"}, 9.2105, False),
        ({"batch": 8}, 9.8, False),  # other work has another loss
        ({"seed": 7}, 9.8, False),  # and so have other weights
        ({}, math.nan, True),
        ({}, None, False),
    ],
)
def test_losses_of_the_same_work_must_agree(
    change: dict[str, object], loss: float | None, differs: bool
) -> None:
    spec = RunSpec(device="cpu")
    a, b = with_losses(spec, 9.2104), with_losses(spec.changed(**change), loss)
    assert bool(other_computation(a, b)) is differs
    word = verdict_of(a, b).verdict
    assert (word == "not the same computation") is differs


def test_what_is_seen_far_above_the_smallest_difference_has_its_own_number_of_rounds() -> None:
    a = factories.record_of_rounds([100, 130, 99, 131, 101, 128], experiment="x")
    b = factories.record_of_rounds([90, 110, 89, 112, 91, 108], experiment="x")
    verdict = verdict_of(a, b, smallest=0.001)
    assert verdict.verdict == "not decidable"
    small, seen = verdict.next.split("; ")
    assert "0.1 % difference" in small
    assert seen.endswith("more would decide the observed one")


@pytest.mark.parametrize("fields", [{"outcome": "cancelled"}, {"disturbed": "a neighbour came"}])
def test_a_run_whose_rounds_do_not_count_is_no_measurement(fields: dict[str, Any]) -> None:
    a = factories.record_of_rounds([100.0])
    b = msgspec.structs.replace(factories.record_of_rounds([200.0], **fields), id="stopped")
    known = Known(a_ms=(100.0, 101, 99, 100.5, 99.5, 100))
    for pair in ((a, b), (b, a)):
        verdict = verdict_of(*pair, known)
        assert (verdict.verdict, verdict.why) == ("not decidable", "no round counts in stopped")


def test_times_of_a_simulated_gpu_have_no_verdict() -> None:
    a = factories.record_of_rounds([10, 10.1, 9.9, 10, 10.2, 9.8], experiment="x")
    b = factories.record_of_rounds([11, 11.1, 10.9, 11, 11.2, 10.8], experiment="x")
    assert verdict_of(a, b).verdict == "slower"
    environment = {"device": {"name": "NVIDIA H100 80GB HBM3 (null GPU)", "is_simulated": True}}
    null = msgspec.structs.replace(b, id="null", environment=environment)
    for pair in ((a, null), (null, a)):
        verdict = verdict_of(*pair)
        assert verdict.verdict == "not decidable"
        assert verdict.why == "times of a simulated GPU are not meaningful: null"
        assert verdict.change is None
        assert headline(verdict, "B") == f"No verdict: {verdict.why}"
