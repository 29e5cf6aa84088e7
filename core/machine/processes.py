"""Processes of the operating system: descendants, subreaper, death of the parent, data limit."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

import psutil

_STOPPED = ("T", "t")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the child subreaper: orphaned descendants are re-parented to this process, not init.

    Linux only; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process, but not the process itself."""
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in descendants:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # it ended meanwhile
            continue


def stopped_process(pid: int) -> int | None:
    """A process that a signal or a debugger has stopped: this one, else one of its descendants.

    Cheap enough to ask while something is measured: it reads the entries of these processes only.
    Linux only; elsewhere, and where none is stopped, None.
    """
    waiting = [pid]
    while waiting:
        process = Path("/proc", str(waiting.pop()))
        try:
            # The state follows the name, which may hold blanks and brackets.
            state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            children = (process / "task" / process.name / "children").read_text().split()
        except (OSError, IndexError):  # it ended, or this is no Linux
            continue
        if state in _STOPPED:
            return int(process.name)
        waiting += map(int, children)
    return None


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, however it dies.

    Linux only; elsewhere the end of standard input has to serve.

    Args:
        parent: Id of the parent, passed on by it: this process may have been orphaned already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before the request was in place.
        os._exit(1)


def limit_data_memory(limit_bytes: int) -> None:
    """Let the data of this process grow by ``limit_bytes``; beyond them MemoryError is raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = psutil.Process().memory_info().data + limit_bytes
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
