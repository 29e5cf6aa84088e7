"""Clocks of the machine: the processors' frequency, and the step of the clock that times."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

PROCESSORS = Path("/sys/devices/system/cpu")
_READINGS = 2000


def processor_mhz(folder: Path = PROCESSORS) -> float | None:
    """Highest present clock among the processors that this process may use, MHz.

    The highest, because processors at rest lower theirs and say nothing on the busy one. None
    where the kernel shows none, as in most virtual machines. ``/proc/cpuinfo`` has a constant
    there, and is not read.
    """
    clocks = []
    for number in os.sched_getaffinity(0):
        try:
            text = (folder / f"cpu{number}" / "cpufreq" / "scaling_cur_freq").read_text()
            clocks.append(int(text) / 1000)
        except (OSError, ValueError):  # not shown, or shown as "<unknown>"
            continue
    return max(clocks, default=None)


def host_tick_ns() -> int:
    """Smallest step seen between two readings of the clock that times steps, nanoseconds."""
    readings = [time.perf_counter_ns() for _ in range(_READINGS)]
    steps = [b - a for a, b in pairwise(readings) if b > a]
    return min(steps, default=0)
