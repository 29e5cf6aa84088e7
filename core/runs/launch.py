"""Starting a supervisor that outlives whoever started it, and stopping one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from ..formatting import BINARY_UNITS
from ..spec.spec import RunSpec
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


def command_line(spec: RunSpec, passes: Sequence[str] | None = None) -> str:
    """The command that runs the same spec from a shell; by default with its default passes."""
    words = ["sysbench-tui", "run"]
    for name, value in spec.settings().items():
        words += ["--set", f"{name}={_as_typed(name, value)}"]
    if passes is not None and tuple(passes) != spec.default_passes:
        words += ["--passes", ",".join(passes)]
    return shlex.join(words)


def _as_typed(name: str, value: object) -> str:
    """A value as a person would write it after ``--set``."""
    if isinstance(value, bool):
        return str(value).lower()
    if name == "memory_limit" and isinstance(value, int):
        for unit in ("GiB", "MiB", "KiB"):
            if value % BINARY_UNITS[unit] == 0:
                return f"{value // BINARY_UNITS[unit]}{unit}"
    return str(value)
