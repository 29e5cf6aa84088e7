"""An experiment with real processes: killed, interrupted, its rounds torn, its runs deleted."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from sysbench.core.experiments.experiment import (
    ExperimentDirectory,
    find_experiment,
    list_experiments,
)
from sysbench.core.experiments.experiment_report import experiment_report
from sysbench.core.storage import locked
from tests.worker_double.script import FOLDER_VARIABLE, Script, command, finished

PAIRS = (
    *("tiny", "tiny", "--set", "device=cpu", "--set", "threads=1", "--set", "batch=1"),
    *("--set", "step=inference", "--seed", "3"),
)
SPEC = (*PAIRS, "--one-at-a-time")
TWICE = (*SPEC, "--set-b", "batch=2")
ONE_BLOCK = ("--max-minutes", "0.0001")


@pytest.fixture(autouse=True)
def script(sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "double"))
    return Script(tmp_path / "double")


def document(*words: str, code: int = 0) -> Any:
    returned, out, err = finished(command("ab", *words, "--json"))
    assert returned == code, err + out
    assert err == ""
    return json.loads(out)


def places(report: Any) -> list[tuple[int, int, str]]:
    """Block, position and side of the rounds that count, in the order of measuring."""
    rows = [row for side in "ab" for row in report[side]["rounds"]]
    return [
        (row["block"], row["position"], row["side"])
        for row in sorted(rows, key=lambda row: row["started_ns"])
        if row["outcome"] == "finished" and not row["disturbed"]
    ]


def planned(directory: ExperimentDirectory, blocks: int) -> list[tuple[int, int, str]]:
    experiment = directory.experiment()
    return [
        (block, position, side)
        for block in range(blocks)
        for position, side in enumerate(experiment.order(block))
    ]


def outcomes(report: Any) -> list[str]:
    rows = [row for side in "ab" for row in report[side]["rounds"]]
    return [row["outcome"] for row in sorted(rows, key=lambda row: row["started_ns"])]


def test_a_killed_experiment_goes_on_where_it_was_and_gates_read_its_verdict(
    script: Script,
) -> None:
    script.write(hold=[6])
    process = command("ab", *TWICE, "--json")
    worker = script.wait_for_start(6)
    process.kill()
    finished(process)
    psutil.wait_procs([psutil.Process(worker)] if psutil.pid_exists(worker) else [], timeout=30)
    directory = find_experiment("last")
    assert directory.ended() is None
    torn = experiment_report(directory)
    assert (torn.ending, torn.blocks, torn.is_live) == ("killed", 1, False)
    assert torn.resume.endswith(directory.id)
    with directory.run("A").events_path.open("ab") as file:
        file.write(b'{"event":"PassEnded","na')  # and a last line is torn

    script.write()
    report = document("--resume", "last")
    assert places(report) == planned(directory, 3)
    assert outcomes(report) == ["finished"] * 5 + ["killed"] + ["finished"] * 7
    assert len(script.starts()) == 13
    assert (report["ending"], report["verdict"]["verdict"]) == ("decided", "slower")
    assert report["verdict"]["change"] == pytest.approx(0.5, abs=0.01)
    assert report["headline"].startswith("slower: +")

    for gate, code in (("3%", 3), ("60%", 0)):
        again = document("--resume", "last", "--gate", gate, code=code)
        assert (again["gate"]["exit_code"], again["verdict"]) == (code, report["verdict"])
    assert len(script.starts()) == 13, "what is decided is not measured again"
    assert len(list_experiments()) == 1


def test_an_interrupt_ends_the_round_and_the_experiment_can_go_on(script: Script) -> None:
    script.write(hold=[3])
    process = command("ab", *TWICE, *ONE_BLOCK)
    worker = script.wait_for_start(3)
    process.send_signal(signal.SIGINT)
    code, out, err = finished(process)
    assert code == 130
    assert not psutil.pid_exists(worker)
    assert "stopped after 0 rounds; continue with `ab --resume" in err
    assert "Traceback" not in err
    directory = find_experiment("last")
    assert f"sysbench-tui ab --resume {directory.id}" in out
    script.write()
    report = document("--resume", directory.id, "--gate", "3%", code=4)
    assert report["ending"] == "out-of-time"
    assert places(report) == planned(directory, 1)
    assert outcomes(report) == ["finished"] * 2 + ["cancelled"] + ["finished"] * 2


def test_a_killed_worker_costs_its_round_which_is_measured_once_more(script: Script) -> None:
    script.write(die=[2])
    code, out, err = finished(command("ab", *TWICE, *ONE_BLOCK))
    assert code == 0
    assert "again: killed by SIGKILL" in err
    (excluded,) = [line for line in out.splitlines() if "excluded runs" in line]
    assert excluded.endswith(": killed")
    assert len(script.starts()) == 5


def test_a_worker_killed_twice_at_one_place_fails_the_experiment(script: Script) -> None:
    script.write(die=[1, 2])
    report = document(*TWICE, code=1)
    assert report["ending"] == "failed"
    assert "killed by SIGKILL" in report["detail"]
    assert len(script.starts()) == 2
    script.write()
    assert document("--resume", "last", *ONE_BLOCK)["ending"] == "out-of-time"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("fail", "ValueError: no such thing"),
        ("starve", "out of memory in forward: tried to allocate 1.00 GiB"),
    ],
)
def test_a_side_that_fails_ends_the_experiment_at_once_with_its_reason(
    script: Script, end: str, reason: str
) -> None:
    script.write(fail=[3] if end == "fail" else [], starve=[3] if end == "starve" else [])
    code, out, err = finished(command("ab", *TWICE))
    side = find_experiment("last").experiment().order(0)[2]
    assert code == 1
    assert f"failed: a round of {side}: {reason}" in err
    assert reason.partition(":")[0] in out
    assert len(script.starts()) == 3


def test_a_deleted_run_ends_the_experiment(script: Script) -> None:
    script.write(hold=[3])
    process = command("ab", *TWICE)
    script.wait_for_start(3)
    directory = find_experiment("last")
    third = directory.experiment().order(0)[2]
    shutil.rmtree(directory.run(third).path)
    code, _, err = finished(process)
    assert code == 1
    assert f"failed: a round of {third}: its directory was deleted" in err
    assert f"with the rounds of {third}" in err
    ended = directory.ended()
    assert ended is not None and ended.ending == "failed"
    code, out, err = finished(command("ab", "--resume", "last"))
    assert (code, out) == (1, "")
    assert "is gone" in err


def test_sides_that_compute_different_things_are_detected_after_two_rounds(
    script: Script,
) -> None:
    report = document(*SPEC, "--set-b", "clip=1")
    assert report["verdict"]["verdict"] == "not the same computation"
    assert report["ending"] == "decided"
    sides = find_experiment("last").experiment().order(0)
    # The first place of the other side ends it.
    assert len(script.starts()) == 1 + sides.index("B" if sides[0] == "A" else "A")


def test_the_rounds_of_two_experiments_never_overlap(script: Script) -> None:
    script.write(seconds=0.05)
    both = [command("ab", *SPEC, *ONE_BLOCK, "--set", f"batch={n}") for n in (1, 2)]
    assert [finished(process)[0] for process in both] == [0, 0]
    log = script.log()
    assert [line["what"] for line in log] == ["start", "end"] * 8
    assert all(start["pid"] == end["pid"] for start, end in zip(log[::2], log[1::2], strict=True))
    assert {line["batch"] for line in log[::2]} == {1, 2}


def test_a_held_device_fails_the_round_where_nobody_may_wait(
    script: Script, sysbench_home: Path
) -> None:
    with locked(sysbench_home / "locks" / "cpu.lock", who="cpu"):
        report = document(*TWICE, "--no-wait", code=1)
    assert report["ending"] == "failed"
    assert str(os.getpid()) in report["detail"]
    assert script.starts() == []
    assert report["resume"]


def test_two_processes_cannot_work_on_one_experiment(script: Script) -> None:
    script.write(hold=[1])
    process = command("ab", *TWICE)
    script.wait_for_start(1)
    code, out, err = finished(command("ab", "--resume", "last"))
    assert (code, out) == (1, "")
    assert f"is held by process {process.pid}" in err
    process.send_signal(signal.SIGTERM)
    assert finished(process)[0] == 130
