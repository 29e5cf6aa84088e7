"""What the decoding process puts on itself: a memory limit, and no life of its own."""

from __future__ import annotations

import os
import resource
import threading

import psutil

STANDARD_INPUT = 0


def limit_memory(limit_bytes: int) -> None:
    """Let the data of this process grow by so much and no more; then MemoryError is raised."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = psutil.Process().memory_info().data + limit_bytes
    limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def die_with_input() -> None:
    """End when standard input does: whoever waits for the tables holds the other end of it."""
    threading.Thread(target=_exit_with_input, daemon=True).start()


def _exit_with_input() -> None:
    while os.read(STANDARD_INPUT, 4096):
        pass
    os._exit(1)
