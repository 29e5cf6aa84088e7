"""Starting the runner of a study so that it outlives whoever started it, and stopping one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from ..runs.directory import lock_holder
from .run.state import StudyDirectory


def start_study(directory: StudyDirectory) -> int:
    """Fill all cells of a study from a process in a session of its own; returns its id.

    It is the runner that `sysbench-tui study` consumes. What it prints goes to ``runner.log``
    in the study's directory.
    """
    with (directory.path / "runner.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sysbench.core.studies.run.runner", str(directory.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process.pid


def stop_study(directory: StudyDirectory) -> bool:
    """Ask the runner to end: the present cell stays without a value. False if none is live."""
    pid = lock_holder(directory.lock_path)
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    return True
