"""What the attacks share: fresh homes, commands, and the rules that every record has to hold."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from sysbench.core.record.events import AnyEvent, PassStarted, RunEnded, StageEntered
from sysbench.core.record.record import Record
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import RunDirectory, create_run, load_record
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.spec import RunSpec

SPEC = RunSpec(
    model="tiny", device="cpu", threads=1, batch=1, context=16, warmup=1, steps=8, step="inference"
)
LONGER = SPEC.changed(steps=500)
"""Long enough for a signal to come while it measures."""
ENDLESS = SPEC.changed(steps=1_000_000, max_seconds=3600.0)
PATIENCE_SECONDS = 600.0
Rows = list[tuple[str, str, str, str]]
"""Attack, what survives, what is lost, and what was counted."""


def wait_until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:.0f} s for {what}"
        time.sleep(0.05)


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "sysbench.tui.cli", *arguments]


def command(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(program(*arguments), capture_output=True, text=True, errors="replace")
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done


def checked(run: RunDirectory) -> Record:
    """The record of a run that is over, which the rules on incomplete numbers hold for."""
    record = load_record(run)
    assert not run.is_live()
    assert record.id in {entry.id for entry in Library().entries()}
    timed = record.pass_named("timing")
    if timed is None or timed.outcome not in ("finished", "cancelled"):
        assert record.timing is None and record.missing["timing"]
    elif timed.outcome == "cancelled":
        assert record.timing is None or not any(one.counts for one in record.timing.rounds)
    for row in record.passes:
        assert row.outcome == "finished" or row.detail
    return record


def no_child_left() -> None:
    """No process that this one started, or that was left to it, is there any more."""
    wait_until(lambda: not psutil.Process().children(recursive=True), "processes to end")


Harm = Callable[[int], None]


def harmed(
    passes: list[Any], harm: Harm, stage: str, *, in_pass: str = "timing", spec: RunSpec = SPEC
) -> tuple[RunDirectory, list[AnyEvent]]:
    """A run whose worker is harmed once it enters a stage of a pass."""
    run, pid, current, done = create_run(spec, passes), 0, "", False
    events: list[AnyEvent] = []
    for event in supervise(run):
        events.append(event)
        if isinstance(event, PassStarted):
            pid, current = event.pid, event.name
        if isinstance(event, StageEntered) and (current, event.stage) == (in_pass, stage):
            if not done:
                harm(pid)
            done = True
    assert done, f"{in_pass} entered no stage {stage}"
    assert isinstance(events[-1], RunEnded)
    no_child_left()
    return run, events


@contextmanager
def home(folder: Path | None = None) -> Iterator[None]:
    """A fresh data folder, or that one, for this process and those that it starts."""
    before = os.environ.get("SYSBENCH_HOME")
    with tempfile.TemporaryDirectory(prefix="attack-") as fresh:
        os.environ["SYSBENCH_HOME"] = str(folder or Path(fresh, "home"))
        try:
            yield
        finally:
            if before is None:
                del os.environ["SYSBENCH_HOME"]
            else:
                os.environ["SYSBENCH_HOME"] = before


def peak_bytes(*arguments: str, code: int = 0) -> int:
    """Most memory that a command took; what it prints is dropped."""
    with Path(os.devnull).open("w") as nowhere:
        process = subprocess.Popen(program(*arguments), stdout=nowhere, stderr=nowhere)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == code, (arguments, process.returncode)
    return usage.ru_maxrss * 1024


def mib(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"
