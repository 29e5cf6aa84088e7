"""Processes of the operating system: descendants, subreaper, death of the parent, data limit."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

_STOPPED = ("T", "t")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the child subreaper: orphaned descendants get this process as parent, not init.

    Linux only; does nothing elsewhere.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(pid: int) -> None:
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in descendants:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # it ended already
            continue


def marked_processes(name: str, value: str, session: int) -> list[psutil.Process]:
    """Return processes of a session, and those whose environment has a variable with this value.

    A process that started a session of its own still has the variables of its parents. Their names
    are in ``info``.
    """
    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error, OSError):  # it ended, or belongs to another user
            is_marked = os.getsid(process.pid) == session or process.environ().get(name) == value
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def fork_guard() -> Callable[[], None]:
    """Return a check that ends a process which is a fork of this one, with a line in its log.

    Code that a worker calls may fork and return in both processes, which then would both measure.
    """
    worker = os.getpid()

    def refuse_fork() -> None:
        if (pid := os.getpid()) != worker:
            line = f"process {pid}, a fork of {worker}, went on as a second worker and is ended\n"
            with suppress(OSError):
                os.write(STANDARD_ERROR, line.encode())
            os._exit(1)

    return refuse_fork


STANDARD_ERROR = 2


def stopped_process(pid: int) -> int | None:
    """Return the id of this process or of a descendant that a signal or a debugger has stopped.

    Cheap enough during a measurement: it reads only the entries of these processes. None if none is
    stopped, and outside Linux.
    """
    waiting = [pid]
    while waiting:
        process = Path("/proc", str(waiting.pop()))
        try:
            # The state follows the name, which may contain blanks and brackets.
            state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            children = (process / "task" / process.name / "children").read_text().split()
        except (OSError, IndexError):  # it ended, or this is not Linux
            continue
        if state in _STOPPED:
            return int(process.name)
        waiting += map(int, children)
    return None


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies.

    Linux only; elsewhere the end of standard input has to serve.

    Args:
        parent: Id that the parent passed on: this process may have been orphaned already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before the request took effect.
        os._exit(1)


def limit_data_memory(limit_bytes: int) -> None:
    """Limit the growth of this process's data; beyond ``limit_bytes`` MemoryError is raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = psutil.Process().memory_info().data + limit_bytes
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # The hard limit stays as it is: lowered once, it could not be raised again.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
