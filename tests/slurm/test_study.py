"""Twenty cells on a real Slurm: one job killed, the runner killed in the middle, resumed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.runs.run_directory import list_runs
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.studies.study_directory import CellEntry, StudyDirectory, find_study, records_of
from sysbench.core.studies.study_grid import expand
from tests.slurm.daemons import PATIENCE_SECONDS, queue, wait_for, why_not

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(why_not()), reason=f"no Slurm: {why_not()}"),
]
STUDY = """
title = "twenty cells"
passes = ["timing", "memory"]
[fixed]
model = "tiny"
step = "forward+backward"
device = "cpu"
threads = 1
warmup = 1
steps = 3
[axes]
context = [64, 128, 192, 256, 320]
batch = [1, 2, 3, 4]
[[tables]]
name = "cells"
columns = [
    { name = "Peak (MiB)", value = "memory.peak_allocated_bytes", unit = "MiB" },
    { name = "Loss", value = "timing.loss_start" },
    { name = "Parameters", value = "parameters" },
    { name = "Status", value = "measures.status" },
]
"""
CELLS = 20


def command(home: Path, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """How to start ``study`` in a home, in a session of its own."""
    home.mkdir(exist_ok=True)
    file = home / "twenty.toml"
    file.write_text(STUDY)
    program = [sys.executable, "-P", "-m", "sysbench.tui.cli", "study", str(file), *arguments]
    variables = {**environment, HOME_VARIABLE: str(home), "OMP_NUM_THREADS": "1"}
    return {"args": program, "env": variables, "start_new_session": True}


def entries(home: Path) -> dict[str, CellEntry]:
    folders = [*(home / "studies").glob("twenty-*")]
    return StudyDirectory(folders[0]).entries() if folders else {}


def rows(output: bytes) -> list[dict[str, Any]]:
    """The table without the columns that name the machine."""
    reported = msgspec.json.decode(output)
    names = [name for name in reported["columns"] if name != "machine"]
    return [
        {name: value for name, value in zip(reported["columns"], row, strict=True) if name in names}
        for row in reported["rows"]
    ]


def exact(home: Path) -> dict[str, tuple[object, ...]]:
    """By the cell, what is the same to the last digit wherever it ran on this machine."""
    directory = find_study("twenty", home)
    cells = expand(directory.study())
    records = records_of(directory, cells)
    found: dict[str, tuple[object, ...]] = {}
    for cell in cells:
        record = records[cell.id]
        assert record.memory is not None and record.timing is not None
        memory = record.memory
        found[cell.words] = (
            *(record.status, record.identity, record.parameters, record.timing.loss_start),
            *(memory.peak_allocated_bytes, memory.ledger, memory.columns, memory.modules),
        )
    return found


@pytest.fixture(scope="module")
def at_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The study as it runs in one process of this machine."""
    home = tmp_path_factory.mktemp("home") / "here"
    done = subprocess.run(
        **command(home, dict(os.environ), "--json"), capture_output=True, check=True
    )
    return home, done.stdout


def test_killed_resumed_and_still_the_table_of_home(
    slurm: dict[str, str], at_home: tuple[Path, bytes], tmp_path: Path
) -> None:
    home, log = tmp_path / "shared", tmp_path / "log"
    with log.open("wb") as output:
        start: dict[str, Any] = {"stdout": output, "stderr": output}
        options = ("--slurm", "time=10,parallel=2")
        first = subprocess.Popen(**command(home, slurm, *options), **start)

        # One job is killed with all of its processes, one by a signal to its supervisor alone.
        victim = wait_for(lambda: queue(slurm), first, log)[0]
        subprocess.run(["scancel", "--signal=KILL", "--full", victim], env=slurm, check=True)
        wait_for(lambda: statuses(home).count("finished") >= 3, first, log)
        supervisor = wait_for(lambda: supervisors(home), first, log)[0]
        os.kill(supervisor, signal.SIGKILL)

        # The runner is killed while jobs run and wait; they go on without it.
        wait_for(lambda: statuses(home).count("finished") >= 5, first, log)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        before = len(list_runs(home))
        assert queue(slurm) and queue(slurm, "PD")
        written = {id: entry for id, entry in entries(home).items() if entry.status == "finished"}

        # Who would run it here as well is refused; who starts it again follows.
        here = subprocess.run(**command(home, slurm), capture_output=True, check=False)
        assert here.returncode == 1 and b"in Slurm's queue" in here.stderr
        second = subprocess.run(**command(home, slurm, *options), **start, check=False)
    said = log.read_text()
    assert "in the queue since before" in said
    assert second.returncode in (0, 1), said
    third = subprocess.run(**command(home, slurm, *options, "--json"), capture_output=True)
    assert third.returncode == 0, third.stderr.decode() + said

    after = entries(home)
    assert [entry.status for entry in after.values()] == ["finished"] * CELLS
    assert {id: after[id].run for id in written} == {id: one.run for id, one in written.items()}
    # Two were killed, and nothing else ran twice.
    assert before == CELLS and len(list_runs(home)) == CELLS + 2
    assert rows(third.stdout) == rows(at_home[1])
    assert exact(home) == exact(at_home[0])
    machines = msgspec.json.decode(third.stdout)["columns"].index("machine")
    nodes = {row[machines] for row in msgspec.json.decode(third.stdout)["rows"]}
    assert len(nodes) == 2 and all(re.fullmatch("[0-9a-f]{6}", node) for node in nodes)


def statuses(home: Path) -> list[str]:
    return [entry.status for entry in entries(home).values()]


def supervisors(home: Path) -> list[int]:
    """Processes that hold the lock of a run."""
    return [pid for run in list_runs(home) if (pid := run.pid()) is not None]


def test_ctrl_c_ends_the_jobs_and_what_finished_stays(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    home, log = tmp_path / "shared", tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            **command(home, slurm, "--slurm", "nodelist=n1", "--json"), stdout=output, stderr=output
        )
        wait_for(lambda: "finished" in statuses(home), process, log)
        wait_for(lambda: queue(slurm), process, log)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
    assert not queue(slurm, "all") or not queue(slurm)
    kept = [entry for entry in entries(home).values() if entry.status == "finished"]
    assert 1 <= len(kept) < CELLS
    # Runs whose jobs never began are gone.
    assert all(run.events_path.exists() for run in list_runs(home))


def test_what_slurm_refuses_is_told(slurm: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "shared"
    refused = subprocess.run(
        **command(home, slurm, "--slurm", "partition=moon"), capture_output=True, check=False
    )
    assert refused.returncode == 1 and b"invalid partition" in refused.stderr
    assert list_runs(home) == []
