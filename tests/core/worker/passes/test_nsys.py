"""The nsys pass with real processes, and a double in the place of nsys itself.

The double (tests/nsys_double) starts the worker as nsys does and hands out an export that is
written here. It shows our side: command, events, kinds of end, processes. What nsys records
on a GPU is not tested by it.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from sysbench.core.errors import SpecError
from sysbench.core.record.events import AnyEvent, Outcome, PassEnded, PassStarted, StepCounted
from sysbench.core.record.record import Kernels
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.passes import parse_passes
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.nsys_export import read_export
from sysbench.core.trace.scopes import STEPS_RANGE

DOUBLE = Path(__file__).parents[3] / "nsys_double"
SHORT = RunSpec(device="cpu", steps=2, warmup=1, step="inference", threads=1, batch=1)
ENDLESS = SHORT.changed(steps=1_000_000)
PATIENCE_SECONDS = 60


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The double on PATH, which hands out an export with two steps; returns the export."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{DOUBLE / "double.py"}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    export = write_export(tmp_path / "made.sqlite")
    monkeypatch.setenv("NSYS_DOUBLE_EXPORT", str(export))
    monkeypatch.setenv("NSYS_DOUBLE_HELPER", str(tmp_path / "helper"))
    return export


def write_export(path: Path) -> Path:
    writer = runpy.run_path(str(DOUBLE / "build.py"))["ExportWriter"](path)
    writer.range(f"{STEPS_RANGE}2", 0, 1000)
    for step in (0, 500):
        writer.range("phase:forward", step, step + 200)
        writer.range("mod:head", step + 10, step + 100)
        writer.launch("void gemm<int>(int)", step + 20, step + 50, step + 250)
    return Path(writer.write())


def play(
    run: RunDirectory, at_steps: Callable[[int], None], cancel: Cancellation | None = None
) -> list[AnyEvent]:
    """Supervise to the end; call ``at_steps`` with the pass's process at the first step."""
    events: list[AnyEvent] = []
    pid, has_counted = 0, False
    for event in supervise(run, cancel=cancel):
        events.append(event)
        if isinstance(event, PassStarted):
            pid = event.pid
        if isinstance(event, StepCounted) and not has_counted:
            has_counted = True
            at_steps(pid)
    return events


def end_of(events: list[AnyEvent]) -> tuple[Outcome, str]:
    (ended,) = (event for event in events if isinstance(event, PassEnded))
    return ended.outcome, ended.detail


def processes_of(run: RunDirectory) -> list[str]:
    """Command lines of live processes that know the run's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(run.path) in line and process.status() != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


def wait_until_gone(run: RunDirectory) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := processes_of(run):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


def test_the_pass_leaves_its_block_and_its_artifacts(nsys: Path, sysbench_home: Path) -> None:
    run = create_run(SHORT, ["nsys"])
    events = play(run, lambda pid: None)
    assert end_of(events) == ("finished", "finished")
    assert [event.done for event in events if isinstance(event, StepCounted)] == [1, 2]
    record = run.record()
    block, made = record.nsys, read_export(nsys).block()
    assert block is not None
    assert (block.nvtx, block.clocks, block.schema) == (made.nvtx, made.clocks, "3.25.0")
    assert (block.kernels.rows, block.kernels.steps) == (made.kernels.rows, 2)
    assert record.passes[0].step_ms == pytest.approx(500e-6)
    folder = run.pass_folder("nsys")
    assert (folder / "nsys.sqlite").read_bytes() == nsys.read_bytes()
    assert (folder / "nsys.nsys-rep").exists()
    layers = msgspec.json.decode((folder / "kernels.json").read_bytes(), type=Kernels)
    assert [(row.module, row.calls) for row in layers.rows] == [("head", 1.0)]
    assert not [line for line in record.passes[0].log_tail if "%" in line]


def test_without_nsys_nothing_is_started(
    tmp_path: Path, sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match="nsys is not on PATH: install"):
        parse_passes("timing,nsys")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sysbench.tui.cli", "run", "--passes", "nsys"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "nsys is not on PATH: install" in done.stderr
    assert not (sysbench_home / "runs").exists()


def test_passes_that_were_not_asked_for_leave_nsys_out() -> None:
    assert parse_passes("memory,timing,trace") == ["timing", "trace", "memory"]


def test_an_nsys_that_fails_fails_the_pass(
    nsys: Path, sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NSYS_DOUBLE_EXPORT")
    run = create_run(SHORT, ["nsys"])
    outcome, detail = end_of(play(run, lambda pid: None))
    assert (outcome, "nsys ended with code 1" in detail) == ("failed", True)
    record = run.record()
    assert record.nsys is None
    assert record.missing["nsys"] == detail
    assert "Importer error status: no luck" in record.passes[0].log_tail[-1]


def test_an_export_that_cannot_be_read_fails_the_pass(nsys: Path, sysbench_home: Path) -> None:
    nsys.write_bytes(nsys.read_bytes()[:5000])
    outcome, detail = end_of(play(create_run(SHORT, ["nsys"]), lambda pid: None))
    assert outcome == "failed"
    assert "DamagedFileError" in detail


def test_a_worker_out_of_memory_under_nsys_is_reported_as_such(
    nsys: Path, sysbench_home: Path
) -> None:
    run = create_run(SHORT.changed(memory_limit="1MiB"), ["nsys"])
    outcome, detail = end_of(play(run, lambda pid: None))
    assert outcome == "oom"
    assert detail.startswith("out of memory")


def test_cancelling_ends_nsys_its_helper_and_the_worker(nsys: Path, sysbench_home: Path) -> None:
    run, cancel = create_run(ENDLESS, ["nsys"]), Cancellation()
    seen: list[int] = []

    def stop(pid: int) -> None:
        seen.append(len(processes_of(run)))
        cancel.set()

    assert end_of(play(run, stop, cancel))[0] == "cancelled"
    assert seen == [3]  # nsys, its helper, the worker
    wait_until_gone(run)


def test_a_pass_that_is_killed_takes_nsys_and_the_worker_with_it(
    nsys: Path, sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody is left then to end the helper, which idles and holds no device.
    monkeypatch.delenv("NSYS_DOUBLE_HELPER")
    run = create_run(ENDLESS, ["nsys"])
    outcome, detail = end_of(play(run, lambda pid: os.kill(pid, signal.SIGKILL)))
    assert (outcome, "SIGKILL" in detail) == ("killed", True)
    wait_until_gone(run)
