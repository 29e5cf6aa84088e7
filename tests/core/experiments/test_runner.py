"""Blocks of rounds with real processes and scripted neighbours: what counts, what is repeated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sysbench.core.compare.conditions import CPU_JUMP, MAX_REPEATS, others_load
from sysbench.core.experiments.experiment import ExperimentDirectory, create_experiment
from sysbench.core.experiments.experiment_report import ExperimentReport, experiment_report
from sysbench.core.experiments.experiment_runner import (
    Judged,
    RoundFinished,
    RoundStarting,
    Stopped,
    run_experiment,
)
from sysbench.core.machine import host_sampler as neighbours
from sysbench.core.machine.host_sampler import cpu_quota
from sysbench.core.record.events import PassEnded, PassStarted
from sysbench.core.record.timing import Round
from sysbench.core.runs import worker_process
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.supervisor import disturb_round
from sysbench.core.spec.spec import RunSpec
from tests.worker_double.script import DOUBLE, FOLDER_VARIABLE, Script

SPEC = RunSpec(device="cpu", step="inference", threads=1, batch=1)


@pytest.fixture(autouse=True)
def script(sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "double"))
    command = [sys.executable, "-S", "-E", str(DOUBLE)]
    monkeypatch.setattr(worker_process, "python_child", lambda *_, **__: command)
    return Script(tmp_path / "double")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Percent of the processors that neighbours take in the next rounds; 10 once it is empty."""
    ahead: list[float] = []

    class Loads:
        def __init__(self, *pids: int) -> None:
            pass

        def percent(self) -> tuple[float, float]:
            return 20.0 + (ahead.pop(0) if ahead else 10.0), 20.0

    monkeypatch.setattr(neighbours, "CpuUse", Loads)
    return ahead


def short() -> ExperimentDirectory:
    """An experiment of A against A that stops after a block."""
    return create_experiment(SPEC, SPEC, max_minutes=1e-6, seed=1, method="blocks")


def rounds(report: ExperimentReport) -> list[Round]:
    return sorted([*report.a.rounds, *report.b.rounds], key=lambda row: row.started_ns)


def condition(report: ExperimentReport, name: str) -> str:
    return next((row.text for row in report.conditions if row.name == name), "")


def test_blocks_follow_the_drawn_order_and_stop_when_the_verdict_stands() -> None:
    directory = create_experiment(SPEC, SPEC, seed=5, method="blocks")
    items = list(run_experiment(directory))
    starting = [item for item in items if isinstance(item, RoundStarting)]
    orders = [directory.experiment().order(block) for block in range(3)]
    assert [item.side for item in starting] == [side for order in orders for side in order]
    judged = [item for item in items if isinstance(item, Judged)]
    assert [item.blocks for item in judged] == [1, 2, 3]
    assert [item.verdict.verdict for item in judged] == ["not decidable"] * 2 + ["same"]
    assert judged[0].verdict.next == "8 more rounds until the first look"
    assert isinstance(items[-1], Stopped)
    assert directory.ended() == items[-1].ended
    assert items[-1].ended.ending == "decided"


def test_a_disturbed_round_is_listed_repeated_and_not_counted(loads: list[float]) -> None:
    loads += [10, 12, 60]
    directory = short()
    items = list(run_experiment(directory))
    finished = [item.round for item in items if isinstance(item, RoundFinished)]
    assert [row.counts for row in finished] == [True, True, False, True, True]
    assert finished[2].disturbed == (
        "other processes took 60 % of the cores, at most 12 % in the rounds before"
    )
    starting = [item for item in items if isinstance(item, RoundStarting)]
    assert [bool(item.again) for item in starting] == [False, False, False, True, False]
    assert starting[3].again == finished[2].disturbed
    report = experiment_report(directory)
    assert "other processes took 60 %" in condition(report, "excluded runs")
    assert report.verdict.rounds_a == report.verdict.rounds_b == 2
    assert condition(report, "neighbour stayed") == ""


def test_a_neighbour_that_stays_counts_after_the_most_repeats_and_is_noted(
    loads: list[float],
) -> None:
    loads += [10, 10] + [60] * 10
    directory = short()
    list(run_experiment(directory))
    report = experiment_report(directory)
    counts = [row.counts for row in rounds(report)]
    assert counts == [True, True] + [False] * MAX_REPEATS + [True, True]
    assert "1 round count despite another process" in condition(report, "neighbour stayed")


def test_a_mark_that_a_kill_prevented_is_made_on_resuming(loads: list[float]) -> None:
    loads += [10, 10, 10, 60]
    directory, cancel = short(), Cancellation()
    for item in run_experiment(directory, cancel=cancel):
        if isinstance(item, RoundFinished) and item.round.disturbed:
            cancel.set()
            # As if the process had died before it wrote the mark.
            disturb_round(directory.run(item.side), item.round.index, "")
    assert all(row.counts for row in rounds(experiment_report(directory)))
    list(run_experiment(directory))
    assert [row.counts for row in rounds(experiment_report(directory))] == [True] * 3 + [
        False,
        True,
    ]


def test_a_pair_is_disturbed_as_a_whole_and_repeated(loads: list[float]) -> None:
    loads += [10, 10, 30, 30, 12, 12, 60, 12]
    directory = create_experiment(SPEC, SPEC, seed=1, method="duet")
    cancel, judged = Cancellation(), 0
    for item in run_experiment(directory, cancel=cancel):
        judged += isinstance(item, Judged)
        if judged == 4:
            cancel.set()
    report = experiment_report(directory)
    assert [row.counts for row in rounds(report)] == [True] * 6 + [False] * 2 + [True] * 2
    reasons = {row.disturbed for row in rounds(report) if not row.counts}
    assert reasons == {"other processes took 60 % of the cores, at most 30 % in the rounds before"}


def test_a_mark_on_the_partner_that_a_kill_prevented_is_made_on_resuming(script: Script) -> None:
    script.write(die=[1])
    directory, cancel = create_experiment(SPEC, SPEC, seed=1, method="duet"), Cancellation()
    ended = set[str]()
    for item in run_experiment(directory, cancel=cancel):
        # The partner may finish first, or be ended.
        if isinstance(item, PassEnded):
            ended.add(item.side)
            if ended == {"A", "B"}:
                cancel.set()
    assert not any(row.counts for row in rounds(experiment_report(directory)))
    for run in (directory.run("A"), directory.run("B")):
        disturb_round(run, 1, "")  # as if the process had died before it wrote the mark
    cancel = Cancellation()
    for item in run_experiment(directory, cancel=cancel):
        if isinstance(item, Judged):
            cancel.set()
    rows = rounds(experiment_report(directory))
    assert [(row.index, row.block) for row in rows if row.counts] == [(2, 0), (2, 0)]
    assert {row.index for row in rows if not row.counts} == {1}


def test_a_cancelled_wait_for_the_device_leaves_no_round(script: Script) -> None:
    script.write(hold=[1])
    first, second = Cancellation(), Cancellation()
    holding = run_experiment(short(), cancel=first)
    next(item for item in holding if isinstance(item, RoundStarting))
    next(item for item in holding if isinstance(item, PassStarted))
    directory = short()
    for item in run_experiment(directory, cancel=second):
        if getattr(item, "message", "").startswith("waiting: cpu is held"):
            second.set()
    assert rounds(experiment_report(directory)) == []
    assert experiment_report(directory).ending == "cancelled"
    first.set()
    assert isinstance(list(holding)[-1], Stopped)


@pytest.fixture
def busy() -> Iterator[list[psutil.Popen]]:
    """Children to be started that keep one core each busy; ended after the test."""
    children: list[psutil.Popen] = []
    yield children
    for child in children:
        child.kill()
        child.wait()


def test_a_real_neighbour_on_every_core_disturbs_the_round_in_which_it_comes(
    script: Script, busy: list[psutil.Popen]
) -> None:
    cores = psutil.Process().cpu_affinity() or []
    if len(cores) < 0.5 * (psutil.cpu_count() or 1) or cpu_quota() is not None:
        pytest.skip("this process may not use enough of the processors")
    script.write(seconds=0.6)
    directory = short()
    for item in run_experiment(directory):
        counted = rounds(experiment_report(directory))
        if isinstance(item, RoundStarting) and len(counted) == 2 and not busy:
            if max(others_load(row) or 0.0 for row in counted) > 0.9 - CPU_JUMP:
                pytest.skip("other programs have the processors already")
            for core in cores:
                child = psutil.Popen([sys.executable, "-S", "-c", "while True: pass"])
                busy.append(child)
                child.cpu_affinity([core])
        if isinstance(item, RoundFinished) and item.round.disturbed:
            while busy:
                child = busy.pop()
                child.kill()
                child.wait()
    rows = rounds(experiment_report(directory))
    assert [row.counts for row in rows[:3]] == [True, True, False]
    assert "other processes took" in rows[2].disturbed
