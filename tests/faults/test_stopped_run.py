"""What a run keeps of a measurement that was cut short, and how the record marks it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sysbench.core.record.events import (
    AnyEvent,
    ClockMoved,
    Noticed,
    PassStarted,
    RoundDisturbed,
    StepsTimed,
)
from sysbench.core.record.record import Record
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import RunDirectory, create_run, load_record
from sysbench.core.runs.supervised_run import STOPPED
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.spec import RunSpec
from tests.worker_double.script import replace_workers

ENDLESS = RunSpec(
    device="cpu", steps=1_000_000, warmup=1, step="inference", threads=1, batch=1, context=16
)


@pytest.fixture(autouse=True)
def own_home(sysbench_home: Path) -> Path:
    return sysbench_home


@pytest.fixture
def stepping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that only report steps: enough for tests of how they end."""
    replace_workers(monkeypatch, tmp_path / "double", steps=True)


def measured_until(
    harm: Callable[[int, Cancellation], None], steps: int = 20
) -> tuple[RunDirectory, list[AnyEvent]]:
    """A run that is damaged after ``steps`` measured steps, and its events."""
    run, cancel, pid, done = create_run(ENDLESS, ["timing"]), Cancellation(), 0, 0
    events = []
    for event in supervise(run, cancel=cancel):
        events.append(event)
        if isinstance(event, PassStarted):
            pid = event.pid
        if isinstance(event, StepsTimed):
            before, done = done, event.first_index + len(event.step_ms)
            if before < steps <= done:
                harm(pid, cancel)
    return run, events


def test_what_a_stopped_run_measured_is_in_its_record_and_counts_as_no_round() -> None:
    run, events = measured_until(lambda pid, cancel: cancel.set())
    batches = [event for event in events if isinstance(event, StepsTimed)]
    samples = [ms for batch in batches for ms in batch.step_ms]
    record = run.record()
    timing = record.timing
    assert timing is not None
    assert (record.status, timing.samples_ms) == ("cancelled", samples)
    assert timing.phase_samples_ms["forward"] == [
        ms for batch in batches for ms in batch.phases_ms["forward"]
    ]
    assert timing.step.n == len(samples) >= 20
    assert timing.stop_reason == f"stopped on request after {len(samples)} of its steps"
    assert not timing.settled
    assert [(one.outcome, one.counts) for one in timing.rounds] == [("cancelled", False)]
    assert "loss_last" in timing.missing
    assert timing.warmup_ms and timing.wall_ms
    (entry,) = Library().entries()
    assert (entry.median_ms, entry.rounds) == (timing.step.median_ms, 0)


@pytest.mark.usefixtures("stepping")
def test_the_record_of_a_stopped_run_is_the_same_when_it_is_rebuilt() -> None:
    run, _ = measured_until(lambda pid, cancel: cancel.set())
    before: Record = run.record()
    run.record_path.unlink()
    assert load_record(run).timing == before.timing


@pytest.mark.usefixtures("stepping")
def test_a_process_that_a_signal_stops_is_reported_and_its_round_does_not_count() -> None:
    run, cancel, pid, done = create_run(ENDLESS, ["timing"]), Cancellation(), 0, False
    for event in supervise(run, cancel=cancel):
        if isinstance(event, PassStarted):
            pid = event.pid
        if isinstance(event, StepsTimed) and not done:
            os.kill(pid, signal.SIGSTOP)
            done = True
        if isinstance(event, Noticed):
            assert f"kill -CONT {pid}" in event.message
            os.kill(pid, signal.SIGCONT)
        if isinstance(event, RoundDisturbed):
            cancel.set()
    timing = run.record().timing
    assert timing is not None
    assert [one.disturbed for one in timing.rounds] == [STOPPED]


@pytest.mark.usefixtures("stepping")
def test_a_clock_that_is_set_while_a_round_runs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns
    run, cancel, done = create_run(ENDLESS, ["timing"]), Cancellation(), False
    for event in supervise(run, cancel=cancel):
        if isinstance(event, StepsTimed) and not done:
            monkeypatch.setattr("time.time_ns", lambda: now() - 3600 * 10**9)
            done = True
        if isinstance(event, ClockMoved):
            assert event.seconds == pytest.approx(-3600, abs=30)
            cancel.set()
    record = run.record()
    assert record.timing is not None
    assert "-3600 s" in record.timing.rounds[0].disturbed
    assert not record.timing.rounds[0].counts


def test_what_a_crashed_process_measured_is_refused() -> None:
    run, _ = measured_until(lambda pid, cancel: os.kill(pid, signal.SIGKILL))
    record = run.record()
    assert record.timing is None
    assert "SIGKILL" in record.missing["timing"]
