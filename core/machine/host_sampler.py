"""Read the host: processors, memory, names of processes, control groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from sysbench.core.machine.sample import HostSample

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNSEEN = "unseen process"
"""Name of a process that is hidden from this one, for example inside a container."""


class Host:
    """Reader of the host; the share of busy processors is since the previous reading."""

    def __init__(self) -> None:
        self._cores = psutil.cpu_count() or 1
        self._before: tuple[float, float] | None = None

    def read(self) -> HostSample:
        """Take a sample; ``cpu`` is None the first time, and if no time has passed."""
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
    """Return the seconds of all logical cores since boot, and the idle part of them."""
    times = psutil.cpu_times()
    # User and nice time contain guest time.
    return sum(times) - times.guest - times.guest_nice, times.idle + times.iowait


MIN_CORE_SECONDS = 0.4
"""Of all cores together: the kernel counts in ticks of 0.01 s a core, so a shorter interval has an
error of more than a few per cent.
"""


class CpuUse:
    """Processor time of the machine and of one process tree since construction."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._all, self._idle = _all_and_idle_seconds()
        self._own = _seconds_of_tree(pid)

    def percent(self) -> tuple[float | None, float | None]:
        """Return the percentages of all logical cores that were busy, and that the tree used.

        Both are None below `MIN_CORE_SECONDS`, the second also if the process ended.
        """
        total, idle = _all_and_idle_seconds()
        passed = total - self._all
        if passed < MIN_CORE_SECONDS:
            return None, None
        busy = 100 * min(1.0, max(0.0, 1 - (idle - self._idle) / passed))
        own = _seconds_of_tree(self._pid)
        if own is None or self._own is None:
            return busy, None
        return busy, 100 * max(0.0, own - self._own) / passed


def _seconds_of_tree(pid: int) -> float | None:
    """Return the processor seconds of a process and its descendants, also of those that ended.

    None if the process itself ended.
    """
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
        total = sum(root.cpu_times()[:4])
    except psutil.Error:
        return None
    for process in tree[1:]:
        with suppress(psutil.Error):  # it ended: its parent has its time
            total += sum(process.cpu_times()[:4])
    return total


def process_name(pid: int) -> str:
    """Return the short name of a process, such as ``python``; `UNSEEN` if it ended or is hidden."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return UNSEEN


def memory_capacity_bytes() -> int:
    """Return the bytes available to this process: the machine's, or the control group's limit."""
    total = psutil.virtual_memory().total
    # Control groups version 1 write a number above any machine's for "no limit".
    return min(total, memory_limit_bytes() or total)


def memory_limit_bytes(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Return the smallest memory limit of this process's groups; None without one."""
    limits = [
        int(text)
        for folder in _folders("memory", root, membership)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(folder / name)).isdigit()
    ]
    return min(limits, default=None)


def cpu_quota(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Return the smallest processor quota of this process's groups, in cores; None without one."""
    quotas = []
    for folder in _folders("cpu", root, membership):
        version_2 = _read(folder / "cpu.max").split()
        version_1 = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        for pair in (version_2, version_1):
            # "max" and -1 mean no limit.
            if len(pair) == 2 and all(text.isdigit() for text in pair):
                quotas.append(int(pair[0]) / int(pair[1]))
    return min(quotas, default=None)


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups and all parents, of both versions.

    A line of the membership file is ``number:controllers:path``; version 2 leaves the controllers
    empty, version 1 has a folder for each.
    """
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top = root
        elif controller in controllers.split(","):
            top = root / controller
        else:
            continue
        folder = top / path.lstrip("/")
        yield folder
        yield from (above for above in folder.parents if above.is_relative_to(top))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
