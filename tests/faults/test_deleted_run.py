"""A run whose directory is deleted while it measures ends: nobody could ever read it."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from sysbench.core.record.events import AnyEvent, PassEnded, PassStarted, RunEnded, StepsTimed
from sysbench.core.runs.run_directory import create_run
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.spec import RunSpec


def test_it_ends_as_failed_and_leaves_no_worker(sysbench_home: Path) -> None:
    endless = RunSpec(
        device="cpu", steps=1_000_000, warmup=1, step="inference", threads=1, batch=1, context=16
    )
    run = create_run(endless, ["timing", "trace"])
    events: list[AnyEvent] = []
    for event in supervise(run):
        events.append(event)
        if isinstance(event, StepsTimed) and run.path.exists():
            shutil.rmtree(run.path)
    (started,) = [event for event in events if isinstance(event, PassStarted)]
    (ended,) = [event for event in events if isinstance(event, PassEnded)]
    assert not psutil.pid_exists(started.pid)
    assert (ended.outcome, ended.detail) == ("failed", "its directory was deleted")
    assert isinstance(events[-1], RunEnded)
    assert not run.path.exists()
