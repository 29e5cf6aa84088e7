"""When two processes may live side by side, and what earlier pairs forecast."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from sysbench.core.compare.compared_records import pair_difference
from sysbench.core.experiments import plan as pairing
from sysbench.core.experiments.experiment import create_experiment
from sysbench.core.experiments.plan import plan_of, why_not_pairs
from sysbench.core.record.timing import Round
from sysbench.core.spec.spec import RunSpec
from tests.tui.experiments import OTHER, SPEC, write_pairs

GIB = 2**30


@pytest.fixture(autouse=True)
def home(sysbench_home: Path) -> Path:
    return sysbench_home


def test_both_must_fit_and_several_ranks_are_measured_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    big = RunSpec(device="cpu", batch=64, context=256)
    assert why_not_pairs(big, big) == ""
    monkeypatch.setattr(pairing, "available_bytes", lambda: GIB // 2)
    assert why_not_pairs(SPEC, SPEC) == ""
    why = why_not_pairs(big, big)
    assert why.startswith("both at once need ") and "512 MiB are free on cpu" in why
    directory = create_experiment(big, big)
    assert directory.experiment().method == "blocks"
    assert directory.experiment().why_blocks == why
    assert plan_of(big, big, 15).why_blocks == why
    ranks = RunSpec(device="cpu", parallel="ddp", ranks=2)
    assert "several ranks" in why_not_pairs(SPEC, ranks)


def test_memory_that_cannot_be_predicted_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "available_bytes", lambda: 1)
    compiled = SPEC.changed(compile="default")
    assert why_not_pairs(compiled, compiled) == ""


def test_an_experiment_of_a_version_without_pairs_has_blocks() -> None:
    directory = create_experiment(SPEC, SPEC, method="duet")
    stored = msgspec.to_builtins(directory.experiment())
    for key in ("method", "why_blocks"):
        del stored[key]
    directory.write("experiment.json", stored)
    assert directory.experiment().method == "blocks"
    assert len(directory.experiment().order(0)) == 4


def test_pairs_that_were_measured_here_forecast_the_next_experiment() -> None:
    before = plan_of(SPEC, OTHER, 15)
    assert (before.method, before.smallest, before.pairs, before.blocks) == ("duet",) + (None,) * 3
    assert "fewer than 5 pairs" in before.missing["smallest"]
    draw = random.Random(1)
    a = [10 * draw.lognormvariate(0, 0.02) for _ in range(20)]
    b = [8 * draw.lognormvariate(0, 0.02) for _ in range(20)]
    write_pairs(create_experiment(SPEC, OTHER, seed=1), a, b)
    plan = plan_of(SPEC, OTHER, 15)
    assert "20 earlier pairs of these specs" in plan.source
    assert plan.spread == pytest.approx(0.02, rel=0.3)
    other = SPEC.changed(batch=2)
    assert "20 earlier pairs of other specs" in plan_of(other, other, 15).source


def turned(position: int, turns: list[list[float]]) -> Round:
    steps = [ms for turn in turns for ms in turn]
    return Round(
        index=1,
        started_ns=0,
        outcome="finished",
        median_ms=sorted(steps)[len(steps) // 2],
        samples_ms=steps,
        turn_steps=[len(turn) for turn in turns],
        position=position,
    )


def test_a_change_of_the_machine_between_turns_is_not_one_of_a_side() -> None:
    calm, slow = [10.0, 10.0], [20.0, 20.0]
    a, b = turned(0, [calm] * 3 + [slow] * 2), turned(1, [calm] * 2 + [slow] * 3)
    assert (a.median_ms, b.median_ms) == (10, 20)
    assert pair_difference(a, b) == 0
    drifting = [[10 * 1.01**n] for n in range(10)]
    a, b = turned(0, drifting[::2]), turned(1, drifting[1::2])
    assert pair_difference(a, b) == pytest.approx(0.01, abs=2e-4)
    assert pair_difference(b, a) == -pair_difference(a, b)


def test_one_slow_step_in_most_turns_is_not_a_slower_side() -> None:
    burst, calm = [10.0, 20.0], [10.0, 10.0]
    a, b = turned(0, [burst, calm, burst, calm, burst]), turned(1, [calm] * 5)
    assert pair_difference(a, b) == pair_difference(b, a) == 0


def test_rounds_without_turns_are_judged_by_their_medians() -> None:
    a, b = turned(0, [[10.0]]), turned(1, [[20.0]])
    damaged = msgspec.structs.replace(b, turn_steps=[5, 7])
    assert pair_difference(a, b) == pair_difference(a, damaged) == pytest.approx(0.6931, abs=1e-4)
