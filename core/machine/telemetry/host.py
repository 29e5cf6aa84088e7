"""The machine around the devices: processors, memory, names of processes."""

from __future__ import annotations

import psutil

from .cgroup import memory_limit_bytes
from .sample import HostSample

UNSEEN = "unseen process"
"""Name of a process that is hidden from this one, as from inside a container."""


class Host:
    """Reader of the host; the share of busy processors is since the previous reading."""

    def __init__(self) -> None:
        self._cores = psutil.cpu_count() or 1
        self._before: tuple[float, float] | None = None

    def read(self) -> HostSample:
        """One sample; ``cpu`` is None the first time, and when no time has passed."""
        times = psutil.cpu_times()
        # A guest's time is contained in user's and nice's.
        total = sum(times) - times.guest - times.guest_nice
        idle = times.idle + times.iowait
        cpu = None
        if self._before is not None and total > self._before[0]:
            elapsed = total - self._before[0]
            cpu = min(1.0, max(0.0, 1 - (idle - self._before[1]) / elapsed))
        self._before = total, idle
        memory = psutil.virtual_memory()
        return HostSample(
            cores=self._cores,
            cpu=cpu,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
        )


def process_name(pid: int) -> str:
    """The short name of a process, such as ``python``; `UNSEEN` when it is gone or hidden."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return UNSEEN


def memory_capacity_bytes() -> int:
    """Bytes that this process may fill: the machine's, or less where a control group caps it."""
    total = psutil.virtual_memory().total
    # Control groups version 1 write a number above any machine's for "no limit".
    return min(total, memory_limit_bytes() or total)
