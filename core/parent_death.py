"""No process outlives the one that started it for its own purpose."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

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
