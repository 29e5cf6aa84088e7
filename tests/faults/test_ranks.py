"""Runs of several ranks that end badly, with real processes: reported, typed, no process left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sysbench.core.record.events import AnyEvent, PassEnded, PassStarted, RunEnded, StepsTimed
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.spec import RunSpec

TRAINING = RunSpec(device="cpu", ranks=2, parallel="flat", threads=1, warmup=1)
# Ranks that need no model start sooner, and wait for each other all the same.
ENDLESS = TRAINING.changed(workload="all-reduce", parallel="none", payload_mib=16, steps=1_000_000)
MOST_SECONDS = 30


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSBENCH_HOME", str(tmp_path / "home"))


def rank_pids(worker: int) -> list[int]:
    """The ranks' processes, in order: each says its rank in its environment."""
    ranks = {}
    for process in psutil.Process(worker).children():
        ranks[int(process.environ()["RANK"])] = process.pid
    return [ranks[rank] for rank in sorted(ranks)]


def wait_until_gone(pids: list[int]) -> None:
    """Until no process has these ids any more."""
    deadline = time.monotonic() + MOST_SECONDS
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} are still there"
        time.sleep(0.05)


def ended_after(
    run: RunDirectory, harm: Callable[[list[int]], None], cancel: Cancellation | None = None
) -> tuple[PassEnded, float]:
    """The pass's end, and the seconds it took from ``harm``, called at the first steps."""
    worker, began = 0, 0.0
    pids: list[int] = []
    events: list[AnyEvent] = []
    for event in supervise(run, cancel=cancel):
        events.append(event)
        if isinstance(event, PassStarted):
            worker = event.pid
        if isinstance(event, StepsTimed) and not pids:
            pids = rank_pids(worker)
            harm(pids)
            began = time.monotonic()
    assert len(pids) == run.header().spec.ranks
    wait_until_gone(pids)
    (ended,) = (event for event in events if isinstance(event, PassEnded))
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == ended.outcome
    return ended, time.monotonic() - began


def test_a_killed_rank_ends_the_pass_by_its_name() -> None:
    run = create_run(ENDLESS, ["timing"])
    ended, seconds = ended_after(run, lambda pids: os.kill(pids[1], signal.SIGKILL))
    assert ended.outcome == "killed"
    assert ended.detail.startswith("rank 1: killed by SIGKILL in stage measure")
    assert seconds < MOST_SECONDS
    record = run.record()
    assert record.missing["distributed"] == ended.detail
    assert "--- the end of rank 1's log, rank-1.log" in record.passes[0].log_tail


def test_out_of_memory_in_a_rank_is_typed_and_names_it() -> None:
    spec = TRAINING.changed(batch=32, context=512, memory_limit=300 * 2**20)
    run = create_run(spec, ["timing"])
    events = list(supervise(run))
    (ended,) = (event for event in events if isinstance(event, PassEnded))
    assert ended.outcome == "oom"
    record = run.record()
    oom = record.passes[0].oom
    assert oom is not None
    assert oom.rank in (0, 1)
    assert f"rank {oom.rank}: out of memory in forward: tried to allocate 128 MiB" in ended.detail
    # One score matrix: batch × heads × context² × 4 bytes.
    assert oom.requested_bytes == 32 * 4 * 512 * 512 * 4


def test_an_exception_in_a_rank_is_reported_with_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    # No interface of that name: gloo refuses when the ranks meet.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    run = create_run(ENDLESS, ["timing"])
    (ended,) = (event for event in supervise(run) if isinstance(event, PassEnded))
    assert ended.outcome == "failed"
    assert ended.detail.startswith("rank ")
    assert "nosuch0" in ended.detail


def test_cancelling_leaves_no_rank() -> None:
    cancel = Cancellation()
    run = create_run(ENDLESS, ["timing"])
    ended, seconds = ended_after(run, lambda _: cancel.set(), cancel)
    assert ended.outcome == "cancelled"
    assert seconds < MOST_SECONDS


@pytest.fixture
def detached() -> Iterator[tuple[int, list[int]]]:
    """A detached run's supervisor and, once steps are measured, its worker and ranks."""
    run = create_run(ENDLESS, ["timing"])
    supervisor = run.start()
    started: list[int] = []
    deadline = time.monotonic() + 60
    steps = False
    tail = run.tail()
    while not steps:
        assert time.monotonic() < deadline
        for event in tail.read():
            started += [event.pid] if isinstance(event, PassStarted) else []
            steps = steps or isinstance(event, StepsTimed)
        time.sleep(0.05)
    yield supervisor, [*started, *rank_pids(started[0])]
    if psutil.pid_exists(supervisor):
        os.kill(supervisor, signal.SIGKILL)


def test_no_rank_survives_a_killed_supervisor(detached: tuple[int, list[int]]) -> None:
    supervisor, pids = detached
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)
    wait_until_gone(pids)
