"""Starting a supervisor that outlives whoever started it, and stopping one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from .directory import RunDirectory


def start_detached(run: RunDirectory) -> int:
    """Start the supervisor of a fresh run in its own session; returns its process id.

    What it prints goes to ``supervisor.log`` in the run directory. Closing the terminal,
    or ending this process in any way, does not touch it.
    """
    log = (run.path / "supervisor.log").open("ab")
    with log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sysbench.core.runs.supervisor", str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process.pid


def stop(run: RunDirectory) -> bool:
    """Ask the run's supervisor to end it as cancelled; false if none is live."""
    pid = run.supervisor_pid()
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    return True
