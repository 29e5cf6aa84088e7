"""Starts a supervisor that outlives its parent process, and stops one."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from ..errors import DamagedFileError, DeviceBusyError, SysbenchError
from ..machine import children
from ..machine.children import python_child
from ..machine.node import device_lock
from ..storage import has_open, lock_holder
from .directory import RunDirectory


def start_detached(run: RunDirectory) -> int:
    """Start the supervisor of a fresh run in its own session; returns its process id.

    Its output goes to ``supervisor.log`` in the run directory. It survives a closed terminal and
    the end of this process.
    """
    command = python_child("sysbench.core.runs.supervisor", str(run.path))
    return children.start_detached(command, run.path / "supervisor.log")


BEGIN_SECONDS = 20.0
"""Time that a supervisor may take until it holds its run's lock, on a busy machine."""


def is_beginning(run: RunDirectory) -> bool:
    """Whether the run was made just now and has no sign of its supervisor yet: it may be on its
    way, so nobody can say that it was killed."""
    try:
        if run.lock_path.exists() or run.events_path.exists():
            return False
        seconds = (time.time_ns() - run.header().created_ns) / 1e9
    except (OSError, DamagedFileError):
        return False
    return 0 <= seconds < BEGIN_SECONDS


def is_waiting(run: RunDirectory) -> bool:
    """Whether a supervisor works on the run, and another process holds the device that it needs.

    Of a run whose header cannot be read that is not known, and false.
    """
    pid = run.supervisor_pid()
    try:
        first, *_ = run.header().spec.devices
    except (OSError, SysbenchError):
        return False
    holder = lock_holder(device_lock(first))
    return pid is not None and holder is not None and holder != pid


def stop(run: RunDirectory) -> bool:
    """Signal the run's supervisor to end it as cancelled; false if none is live.

    Raises:
        DeviceBusyError: It is no process of this system, which therefore cannot signal it.
    """
    return end_holder(run.lock_path, f"run {run.id} is supervised")


def end_holder(lock: Path, what: str) -> bool:
    """Signal the process that holds a lock to end; false if none does.

    Args:
        lock: The lock's file.
        what: Start of a sentence on its work, for the error.

    Raises:
        DeviceBusyError: It is no process of this system, which therefore cannot signal it.
    """
    pid = lock_holder(lock)
    if pid is None:
        return False
    if not has_open(pid, lock):
        if lock_holder(lock) != pid:  # it ended meanwhile
            return False
        raise DeviceBusyError(f"{what} in another container or on another machine: stop it there")
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)  # one that Ctrl+Z or a debugger stopped would not hear
    return True
