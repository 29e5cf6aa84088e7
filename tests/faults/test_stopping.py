"""Stopping what a process measures that the lock names by another container's number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sysbench.core.errors import DeviceBusyError
from sysbench.core.experiments.experiment import create_experiment
from sysbench.core.runs.run_directory import create_run, load_record
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_directory import open_study
from sysbench.tui.cli import main

HOLDER = """
import fcntl, sys
with open(sys.argv[1], "ab") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(0)
    file.write(sys.argv[2].encode())
    file.flush()
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_as(lock: Path, pid: int) -> Iterator[None]:
    """Another process holds the lock, and its file names ``pid``, as from another container."""
    command = [sys.executable, "-c", HOLDER, str(lock), str(pid)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.communicate()


Stopping = tuple[Path, Callable[[], bool]]


def a_run() -> Stopping:
    run = create_run(RunSpec(device="cpu"), ["timing"])
    return run.lock_path, lambda: run.stop()


def an_experiment() -> Stopping:
    spec = resolve(RunSpec(device="cpu"))
    directory = create_experiment(spec, spec)
    return directory.lock_path, lambda: directory.stop()


def a_study() -> Stopping:
    directory = open_study(load_study("attention"))
    return directory.lock_path, lambda: directory.stop()


@pytest.mark.usefixtures("sysbench_home")
def test_a_run_is_stopped_though_its_supervisor_has_no_word_yet() -> None:
    run = create_run(RunSpec(device="cpu", steps=1_000_000, max_seconds=3600.0), ["timing"])
    pid = run.start()
    assert main(["stop", run.id]) == 0
    assert load_record(run).status == "cancelled"
    os.waitpid(pid, 0)


@pytest.mark.usefixtures("sysbench_home")
def test_a_supervisor_that_was_stopped_hears_that_it_is_to_end() -> None:
    run = create_run(RunSpec(device="cpu"), ["timing"])
    waiting = "import sys; from pathlib import Path; from sysbench.core.storage import locked\n"
    waiting += "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-P", "-c", waiting, str(run.lock_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        assert run.stop()
        assert holder.wait(60) == -signal.SIGTERM


@pytest.mark.usefixtures("sysbench_home")
@pytest.mark.parametrize("made", [a_run, an_experiment, a_study])
def test_what_another_container_measures_is_not_stopped_at_the_cost_of_somebody_here(
    made: Callable[[], Stopping],
) -> None:
    """There its process has the number that an innocent process has here."""
    lock, stopping = made()
    waiting = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as innocent:
        with (
            held_as(lock, innocent.pid),
            pytest.raises(DeviceBusyError, match="another container"),
        ):
            stopping()
        assert not stopping()
        innocent.communicate(b"\n")
    assert innocent.returncode == 0
