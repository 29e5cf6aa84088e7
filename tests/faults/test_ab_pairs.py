"""Pairs of an experiment with real processes: killed, interrupted, out of memory, deleted."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from sysbench.core.experiments.experiment import find_experiment
from sysbench.core.experiments.experiment_report import experiment_report
from sysbench.core.runs.supervisor import LOST_PARTNER
from tests.faults.test_ab import ONE_BLOCK, PAIRS, document
from tests.worker_double.script import FOLDER_VARIABLE, Script, command, finished

TWICE = (*PAIRS, "--set-b", "batch=2")


@pytest.fixture(autouse=True)
def script(sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "double"))
    return Script(tmp_path / "double")


def rows_of(report: Any) -> list[dict[str, Any]]:
    return [row for side in "ab" for row in report[side]["rounds"]]


def counting(report: Any) -> list[tuple[int, str]]:
    """Pair and side of the rounds that count."""
    return sorted(
        (row["block"], row["side"])
        for row in rows_of(report)
        if row["outcome"] == "finished" and not row["disturbed"]
    )


def pairs(count: int) -> list[tuple[int, str]]:
    return [(pair, side) for pair in range(count) for side in "AB"]


def test_pairs_decide_and_each_has_a_random_first_process(script: Script) -> None:
    report = document(*TWICE)
    assert counting(report) == pairs(7)
    assert (report["ending"], report["verdict"]["verdict"]) == ("decided", "slower")
    assert report["verdict"]["change"] == pytest.approx(0.5, abs=0.01)
    assert report["verdict"]["basis"] == "duet pairs"
    experiment = find_experiment("last").experiment()
    for row in rows_of(report):
        assert row["duet"]
        assert experiment.order(row["block"])[row["position"]] == row["side"]
    orders = {experiment.order(pair) for pair in range(20)}
    assert orders == {("A", "B"), ("B", "A")}


def test_a_killed_worker_costs_its_pair_which_is_measured_once_more(script: Script) -> None:
    script.write(die=[3])
    report = document(*TWICE)
    assert counting(report) == pairs(7)
    lost = [row for row in rows_of(report) if row["outcome"] != "finished" or row["disturbed"]]
    assert len(lost) == 2 and {row["side"] for row in lost} == {"A", "B"}
    assert "killed" in {row["outcome"] for row in lost}
    # Its partner was ended, or had finished and was excluded.
    (partner,) = [row for row in lost if row["outcome"] != "killed"]
    assert partner["outcome"] == "cancelled" or partner["disturbed"] == LOST_PARTNER


def test_both_killed_at_once_are_one_loss(script: Script) -> None:
    script.write(die=[1, 2])
    assert document(*TWICE)["ending"] == "decided"


def test_a_pair_that_is_lost_twice_fails_the_experiment(script: Script) -> None:
    script.write(die=[1, 3])
    report = document(*TWICE, code=1)
    assert report["ending"] == "failed" and "killed by SIGKILL" in report["detail"]
    assert len(script.starts()) == 4
    script.write()
    assert document("--resume", "last")["ending"] == "decided"


def test_a_side_that_fails_ends_the_experiment_with_its_reason(script: Script) -> None:
    script.write(fail=[3])
    code, _, err = finished(command("ab", *TWICE))
    assert code == 1
    assert "ValueError: no such thing" in err
    assert len(script.starts()) == 4


def test_where_both_at_once_run_out_of_memory_one_measures_at_a_time(script: Script) -> None:
    script.write(starve=[3])
    report = document(*TWICE)
    assert (report["method"], report["blocks"], report["pairs"]) == ("blocks", 3, 0)
    assert "both at once did not fit: out of memory in forward" in report["why_blocks"]
    assert report["verdict"]["basis"] == "interleaved rounds"
    assert report["verdict"]["rounds_a"] == 6
    assert "--one-at-a-time" not in report["repeat"]


def test_a_killed_experiment_ends_both_workers_and_goes_on_with_that_pair(script: Script) -> None:
    script.write(hold=[3, 4])
    process = command("ab", *TWICE, "--json")
    workers = [script.wait_for_start(number) for number in (3, 4)]
    process.kill()
    finished(process)
    gone = [psutil.Process(pid) for pid in workers if psutil.pid_exists(pid)]
    assert psutil.wait_procs(gone, timeout=30)[1] == []
    directory = find_experiment("last")
    torn = experiment_report(directory)
    assert (torn.ending, torn.pairs) == ("killed", 1)
    script.write()
    report = document("--resume", "last")
    assert counting(report) == pairs(7)
    assert [row["outcome"] for row in rows_of(report)].count("killed") == 2
    assert len(script.starts()) == 16


def test_an_interrupt_ends_both_processes(script: Script) -> None:
    script.write(hold=[1, 2])
    process = command("ab", *TWICE, *ONE_BLOCK)
    workers = [script.wait_for_start(number) for number in (1, 2)]
    process.send_signal(signal.SIGINT)
    code, out, err = finished(process)
    assert code == 130
    assert not any(map(psutil.pid_exists, workers))
    assert "stopped after 0 rounds; continue with `ab --resume" in err
    assert "Traceback" not in err and "pairs of processes that take turns" in out
    script.write()
    report = document("--resume", "last", *ONE_BLOCK)
    assert counting(report) == pairs(1)
    assert sorted(row["outcome"] for row in rows_of(report))[:2] == ["cancelled"] * 2


def test_a_deleted_run_ends_the_experiment(script: Script) -> None:
    script.write(hold=[1, 2])
    process = command("ab", *TWICE)
    script.wait_for_start(2)
    directory = find_experiment("last")
    shutil.rmtree(directory.run("B").path)
    code, _, err = finished(process)
    assert code == 1
    assert "failed: a round of B: its directory was deleted" in err
    assert len(script.starts()) == 2


def test_sides_that_compute_different_things_are_detected_after_a_pair(script: Script) -> None:
    report = document(*PAIRS, "--set-b", "clip=1")
    assert report["verdict"]["verdict"] == "not the same computation"
    assert len(script.starts()) == 2


def test_a_silent_pair_hangs_once_and_then_fails(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSBENCH_HANG_SECONDS", "2")
    script.write(hold=[1, 2, 3, 4])
    report = document(*TWICE, code=1)
    assert "no event for 2 s in stage measure" in report["detail"]
    assert {row["outcome"] for row in rows_of(report)} <= {"hung", "cancelled"}
    assert len(script.starts()) == 4
