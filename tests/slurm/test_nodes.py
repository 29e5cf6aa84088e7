"""Ranks over two nodes of a real Slurm: figures of one host, reported ends, clocks apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from sysbench.core.record.record import Distributed, Record
from sysbench.core.runs.run_directory import RunDirectory, list_runs
from sysbench.core.runs.worker_process import HANG_VARIABLE
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.studies.study_directory import CellEntry, StudyDirectory
from tests.slurm.daemons import (
    PATIENCE_SECONDS,
    POLL_SECONDS,
    queue,
    running,
    wait_for,
    why_no_other_clock,
    why_not,
)

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(why_not()), reason=f"no Slurm: {why_not()}"),
]
TRAINING = ("batch=1", "context=32", "warmup=1", "steps=3")
ENDLESS = ("workload=all-reduce", "payload_mib=1", "ranks=2", "warmup=1", "steps=1000000")
OVER_NODES = ("--nodes=2", "--ntasks-per-node=1", "--time=20", "--wait")
AHEAD_SECONDS = 1000
LATE_SECONDS = 0.3
LATE = f"""
import os
import time

import torch
from torch import nn


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)

    def forward(self, ids):
        if os.environ.get("RANK") == "1":
            time.sleep({LATE_SECONDS})
        return self.head(self.tokens(ids))


def make():
    return Late()
"""


def run_words(*settings: str) -> list[str]:
    settings = ("device=cpu", "threads=1", *settings)
    given = [word for setting in settings for word in ("--set", setting)]
    return [*(sys.executable, "-P", "-m", "sysbench.tui.cli", "run", "--json"), *given]


def variables(home: Path, environment: dict[str, str]) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    return {
        **environment,
        HOME_VARIABLE: str(home),
        # The processes of both nodes share this machine.
        "OMP_NUM_THREADS": "1",
        HANG_VARIABLE: str(PATIENCE_SECONDS),
    }


def submitted(
    home: Path, environment: dict[str, str], log: Path, *settings: str, after: str = ""
) -> subprocess.Popen[bytes]:
    """``run`` in a batch job of both nodes; ends with the job, and with its code."""
    script = log.with_suffix(".sh")
    words = " ".join(f"'{word}'" for word in run_words(*settings))
    script.write_text(f"#!/bin/sh\n{words}\ncode=$?\n{after}\nexit $code\n")
    return subprocess.Popen(
        ["sbatch", *OVER_NODES, f"--output={log}", str(script)],
        env=variables(home, environment),
        stdout=subprocess.DEVNULL,
    )


def measured(home: Path, environment: dict[str, str], log: Path, *settings: str) -> Record:
    process = submitted(home, environment, log, *settings)
    assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
    return only_run(home).record()


def only_run(home: Path) -> RunDirectory:
    (run,) = list_runs(home)
    return run


def block_of(record: Record) -> Distributed:
    assert record.distributed is not None
    return record.distributed


def ranks_of(home: Path) -> dict[int, int]:
    """Process ids of the ranks of a home's runs, by rank, on whichever node."""
    return {int(process.environ()["RANK"]): process.pid for process in ours(home, "ranks.rank")}


@pytest.fixture(autouse=True)
def no_jobs_left(slurm: dict[str, str]) -> Iterator[None]:
    """A test that fails leaves the nodes to the others."""
    yield
    subprocess.run(["scancel", f"--user={os.getuid()}"], env=slurm, check=True)


def ours(home: Path, module: str) -> list[psutil.Process]:
    """Processes that run a module on a run of this home; srun, which starts some, is none."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            is_python = bool(words) and "python" in Path(words[0]).name
            if is_python and f"sysbench.core.worker.{module}" in words and _is_of(home, words):
                found.append(process)
        except psutil.Error:  # it ended during this
            continue
    return found


def _is_of(home: Path, words: Sequence[str]) -> bool:
    return any(word.startswith(f"{home}/") for word in words)


def steps_began(home: Path) -> bool:
    return any(b'"StepsTimed"' in run.events_path.read_bytes() for run in begun(home))


def begun(home: Path) -> list[RunDirectory]:
    return [run for run in list_runs(home) if run.events_path.exists()]


def wait_until_gone(home: Path) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while left := [one for name in ("ranks.rank", "ranks.agent") for one in ours(home, name)]:
        assert time.monotonic() < until, left
        time.sleep(POLL_SECONDS)


@pytest.mark.parametrize(
    "settings",
    [("parallel=ddp", "ranks=3"), ("parallel=fsdp2", "ranks=2")],
    ids=["ddp", "fsdp2"],
)
def test_ranks_over_two_nodes_learn_as_on_one_host_and_name_their_hosts(
    slurm: dict[str, str], tmp_path: Path, settings: tuple[str, ...]
) -> None:
    there = measured(tmp_path / "there", slurm, tmp_path / "log", *TRAINING, *settings)
    here = subprocess.run(
        run_words(*TRAINING, *settings),
        env=variables(tmp_path / "here", dict(os.environ)),
        capture_output=True,
        check=True,
    )
    at_home = msgspec.json.decode(here.stdout, type=Record)
    assert there.timing is not None and at_home.timing is not None
    assert there.identity == at_home.identity
    assert there.timing.loss_start == at_home.timing.loss_start
    # After four updates by shared gradients.
    assert there.timing.loss_last == pytest.approx(at_home.timing.loss_last, rel=1e-6)
    block, alone = block_of(there), block_of(at_home)
    assert [row.calls for row in block.collectives] == [row.calls for row in alone.collectives]
    assert [row.total_bytes for row in block.memory] == [row.total_bytes for row in alone.memory]

    names = [os.readlink(tmp_path / "there" / "nodes" / name) for name in ("n1", "n2")]
    assert [host.node for host in block.hosts] == names
    first = block.ranks - block.ranks // 2
    assert [host.ranks for host in block.hosts] == [first, block.ranks // 2]
    assert [row.host for row in block.rows] == [0] * first + [1] * (block.ranks // 2)
    assert there.environment["cluster"] == {"node": names[0], "nodes": ",".join(names)}
    assert block.interconnect == "network between 2 hosts"
    assert block.clock_error_ms and block.clock_error_ms == block.hosts[1].clock_error_ms
    assert abs(block.hosts[1].clock_ahead_ms) <= block.hosts[1].clock_error_ms
    assert block.disorder_ms <= block.clock_error_ms
    assert alone.hosts == [] and alone.rows[0].host is None
    # Nothing is left of the meeting.
    assert not (only_run(tmp_path / "there").pass_folder("timing") / "meeting").exists()


def of_rank_one(home: Path) -> psutil.Process:
    return psutil.Process(ranks_of(home)[1])


def of_its_agent(home: Path) -> psutil.Process:
    (agent,) = (one for one in ours(home, "ranks.agent") if one.cmdline()[-2:] == ["1", "2"])
    return agent


@pytest.mark.parametrize(
    ("victim", "said"),
    [
        (of_rank_one, "rank 1: killed by SIGKILL in stage measure"),
        (of_its_agent, "rank 1: the agent of host 1 of 2"),
    ],
    ids=["rank", "agent"],
)
def test_a_death_on_the_other_node_ends_the_run_typed_and_nothing_is_lost(
    slurm: dict[str, str],
    tmp_path: Path,
    victim: Callable[[Path], psutil.Process],
    said: str,
) -> None:
    home, log = tmp_path / "shared", tmp_path / "log"
    process = submitted(home, slurm, log, *ENDLESS)
    wait_for(lambda: begun(home) and steps_began(home), process, log)
    wait_for(lambda: len(ranks_of(home)) == 2, process, log)
    victim(home).kill()
    assert process.wait(PATIENCE_SECONDS) == 1, log.read_text()
    record = only_run(home).record()
    assert (record.status, record.passes[0].outcome) == ("killed", "killed")
    assert record.passes[0].detail.startswith(said)
    assert record.missing["distributed"] == record.passes[0].detail
    assert "--- the end of rank 1's log, rank-1.log" in record.passes[0].log_tail
    assert steps_began(home)
    wait_until_gone(home)
    assert not queue(slurm)


def test_a_rank_that_does_not_see_the_death_of_its_peer_is_ended(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    home, log = tmp_path / "shared", tmp_path / "log"
    process = submitted(home, slurm, log, *ENDLESS, after=f"touch {log}.over; sleep 600")
    wait_for(lambda: begun(home) and steps_began(home), process, log)
    wait_for(lambda: len(ranks_of(home)) == 2, process, log)
    ranks = ranks_of(home)
    os.kill(ranks[1], signal.SIGSTOP)
    os.kill(ranks[0], signal.SIGKILL)
    wait_for(lambda: Path(f"{log}.over").exists(), process, log)
    record = only_run(home).record()
    assert record.passes[0].detail.startswith("rank 0: killed by SIGKILL in stage measure")
    # While the job, whose end would end everything, goes on.
    wait_until_gone(home)
    assert queue(slurm)


def test_a_run_that_is_stopped_leaves_nothing_on_the_other_node(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    home, log = tmp_path / "shared", tmp_path / "log"
    # The job stays: its end would end everything.
    process = submitted(home, slurm, log, *ENDLESS, after=f"touch {log}.over; sleep 600")
    wait_for(lambda: begun(home) and steps_began(home), process, log)
    run = only_run(home)
    words = [sys.executable, "-P", "-m", "sysbench.tui.cli", "stop", run.id]
    subprocess.run(words, env=variables(home, slurm), check=True, capture_output=True)
    wait_for(lambda: Path(f"{log}.over").exists(), process, log)
    assert run.record().status == "cancelled"
    wait_until_gone(home)
    (job,) = queue(slurm)
    subprocess.run(["scancel", job], env=slurm, check=True)
    process.wait(PATIENCE_SECONDS)


STUDY = """
title = "over nodes"
passes = ["timing"]
[fixed]
model = "tiny"
context = 32
batch = 1
ranks = 2
device = "cpu"
threads = 1
warmup = 1
steps = 3
[axes]
parallel = ["ddp", "flat", "fsdp2"]
[[tables]]
name = "cells"
columns = [
    { name = "Loss", value = "timing.loss_start" },
    { name = "Status", value = "measures.status" },
]
"""


def test_a_study_over_nodes_goes_on_where_it_was_killed(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    home, log = tmp_path / "shared", tmp_path / "log"
    file = tmp_path / "over.toml"
    file.write_text(STUDY)
    words = [*(sys.executable, "-P", "-m", "sysbench.tui.cli", "study", str(file))]
    words += ["--slurm", "nodes=2,time=10", "--json"]
    start: dict[str, Any] = {"env": variables(home, slurm), "start_new_session": True}
    with log.open("wb") as output:
        first = subprocess.Popen(words, **start, stdout=output, stderr=output)
        wait_for(lambda: "finished" in statuses(home), first, log)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    kept = {entry.run for entry in entries(home).values() if entry.status == "finished"}
    second = subprocess.run(words, **start, capture_output=True, check=False)
    assert second.returncode == 0, second.stderr.decode()
    assert statuses(home) == ["finished"] * 3
    assert kept <= {entry.run for entry in entries(home).values()} and len(list_runs(home)) == 3
    reported = msgspec.json.decode(second.stdout)
    rows = [dict(zip(reported["columns"], row, strict=True)) for row in reported["rows"]]
    names = [os.readlink(home / "nodes" / name) for name in ("n1", "n2")]
    assert [row["machine"] for row in rows] == ["+".join(names)] * 3
    assert [row["Status"] for row in rows] == ["OK"] * 3
    assert len({row["Loss"] for row in rows}) == 1
    assert all(len(block_of(run.record()).hosts) == 2 for run in list_runs(home))


def entries(home: Path) -> dict[str, CellEntry]:
    folders = [*(home / "studies").glob("over-*")]
    return StudyDirectory(folders[0]).entries() if folders else {}


def statuses(home: Path) -> list[str]:
    return [entry.status for entry in entries(home).values()]


@pytest.fixture(scope="module")
def with_a_clock_ahead() -> Iterator[dict[str, str]]:
    """Variables of a Slurm whose second node has another monotonic clock."""
    if why := why_no_other_clock():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        Path(folder).chmod(0o755)
        with running(Path(folder), ahead={"n2": AHEAD_SECONDS}) as environment:
            yield environment


def test_the_slow_rank_is_named_though_its_clock_is_a_thousand_seconds_ahead(
    with_a_clock_ahead: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "late.py"
    file.write_text(LATE)
    settings = (f"model={file}:make", "context=8", "batch=1", "ranks=2", "parallel=flat")
    record = measured(
        tmp_path / "shared",
        with_a_clock_ahead,
        tmp_path / "log",
        *(*settings, "warmup=1", "steps=6"),
    )
    block = block_of(record)
    (_, other) = block.hosts
    assert other.clock_ahead_ms == pytest.approx(AHEAD_SECONDS * 1e3, abs=other.clock_error_ms)
    assert 0 < other.clock_error_ms < LATE_SECONDS * 1e3 / 2
    assert block.disorder_ms <= other.clock_error_ms
    assert [row.last_share for row in block.rows] == [0, 1]
    waiting_ms = [row.waiting_ms for row in block.rows]
    assert waiting_ms[0] == pytest.approx(LATE_SECONDS * 1e3, rel=0.5)
    (finding,) = (one for one in record.findings if one.rule == "straggler")
    assert finding.verdict.startswith("Rank 1 is a straggler")
    assert f"known to {other.clock_error_ms:.2g} ms" in finding.why
    assert finding.numbers["clock_error_ms"] == other.clock_error_ms
