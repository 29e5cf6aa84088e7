"""The machine around the devices: processors, memory, names of processes."""

from __future__ import annotations

from contextlib import suppress

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
        total, idle = _all_and_idle_seconds()
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


def _all_and_idle_seconds() -> tuple[float, float]:
    """Seconds of all logical cores since the boot, and those of them that were idle."""
    times = psutil.cpu_times()
    # A guest's time is contained in user's and nice's.
    return sum(times) - times.guest - times.guest_nice, times.idle + times.iowait


LEAST_CORE_SECONDS = 0.4
"""Of all cores together: the kernel counts in ticks of 0.01 s a core, so that a shorter interval
has an error of more than a few per cent."""


class CpuUse:
    """Processor time that the machine, and one tree of processes in it, take from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._all, self._idle = _all_and_idle_seconds()
        self._own = _seconds_of_tree(pid)

    def percent(self) -> tuple[float | None, float | None]:
        """Percent of all logical cores that were busy, and that the tree took.

        Both are None over less than `LEAST_CORE_SECONDS`, the second also if the process is gone.
        """
        total, idle = _all_and_idle_seconds()
        passed = total - self._all
        if passed < LEAST_CORE_SECONDS:
            return None, None
        busy = 100 * min(1.0, max(0.0, 1 - (idle - self._idle) / passed))
        own = _seconds_of_tree(self._pid)
        if own is None or self._own is None:
            return busy, None
        return busy, 100 * max(0.0, own - self._own) / passed


def _seconds_of_tree(pid: int) -> float | None:
    """Processor seconds of a process and its descendants, those that ended included; None if it
    is gone."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
        total = sum(root.cpu_times()[:4])
    except psutil.Error:
        return None
    for process in tree[1:]:
        with suppress(psutil.Error):  # it ended meanwhile: its parent has its time
            total += sum(process.cpu_times()[:4])
    return total


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
