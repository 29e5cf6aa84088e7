"""Clocks of the machine: processor frequency, timer resolution, changes of the wall clock."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

PROCESSORS = Path("/sys/devices/system/cpu")
_READINGS = 2000
MIN_MOVE_SECONDS = 1.0
"""Smaller changes are corrections by a time server; samples are 0.5 s apart."""


def processor_mhz(folder: Path = PROCESSORS) -> float | None:
    """Return the highest present clock of the processors that this process may use, MHz.

    The highest, because idle processors lower theirs. None if the kernel reports none, as in most
    virtual machines; ``/proc/cpuinfo`` is not read because it is constant there.
    """
    clocks = []
    for number in os.sched_getaffinity(0):
        try:
            text = (folder / f"cpu{number}" / "cpufreq" / "scaling_cur_freq").read_text()
            clocks.append(int(text) / 1000)
        except (OSError, ValueError):  # absent, or "<unknown>"
            continue
    return max(clocks, default=None)


def host_tick_ns() -> int:
    """Return the smallest step between two readings of the clock that times steps, nanoseconds."""
    readings = [time.perf_counter_ns() for _ in range(_READINGS)]
    steps = [b - a for a, b in pairwise(readings) if b > a]
    return min(steps, default=0)


class ClockGuard:
    """Detects that the wall clock was set, or that the machine slept: the monotonic clock stops."""

    def __init__(self) -> None:
        self._offset_ns = _offset_ns()

    def moved_seconds(self) -> float | None:
        """Return the seconds by which the wall clock moved since the last call; None below one."""
        seconds = (_offset_ns() - self._offset_ns) / 1e9
        if abs(seconds) < MIN_MOVE_SECONDS:
            return None
        self._offset_ns = _offset_ns()
        return seconds


def _offset_ns() -> int:
    return time.time_ns() - time.monotonic_ns()
