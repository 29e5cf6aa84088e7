"""Stopping a run whose lock names a process that is not its supervisor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core.errors import DeviceBusyError
from sysbench.core.runs.directory import create_run
from sysbench.core.runs.launch import stop
from sysbench.core.spec.spec import RunSpec

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


def test_a_run_of_another_container_is_not_stopped_at_the_cost_of_somebody_here(
    sysbench_home: Path,
) -> None:
    """There the supervisor has the number that an innocent process has here."""
    run = create_run(RunSpec(device="cpu"), ["timing"])
    waiting = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as innocent:
        command = [sys.executable, "-c", HOLDER, str(run.lock_path), str(innocent.pid)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(DeviceBusyError, match="another container"):
                stop(run)
            holder.communicate()
        assert not stop(run)
        innocent.communicate(b"\n")
    assert innocent.returncode == 0
