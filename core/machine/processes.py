"""Parents and children among processes: death of the parent, subreaper, descendants."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import psutil

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make descendants whose parent ends fall to this process, not to the system's first one.

    Only Linux can.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(pid: int) -> None:
    """Kill what a process started, directly or not, and leave the process itself."""
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in descendants:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # it ended meanwhile
            continue


PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, however it dies.

    Only Linux can; elsewhere the closing of standard input has to do.

    Args:
        parent: The process that this one was started by, as that one says.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the request was in place.
        os._exit(1)
