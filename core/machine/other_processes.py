"""Other processes of the machine, and the processor time that they use during a measurement."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil

from sysbench.core.machine.host_sampler import CpuUse
from sysbench.core.record.events import Neighbour as Neighbour

COMM_CHARS = 15
"""Length of the name that the kernel shows to everybody; psutil adds text from the arguments."""
NAMELESS = "another user's process"
MIN_CORES = 0.01
"""Average cores below which a process is not listed."""


class Neighbours:
    """Watches all processes except this one and its descendants.

    A process counts with its time until the last `look` that saw it: one that starts and ends
    between two looks is not seen, nor is one outside this container.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._stolen = _stolen_seconds()
        self._before = _seconds_by_process()
        self._seen = dict(self._before)

    def look(self) -> None:
        """Record the processor time of every process; takes some ten milliseconds."""
        self._seen |= _seconds_by_process()

    def busiest(self, most: int = 3) -> list[Neighbour]:
        """Return the names with the most processor time, at least a hundredth of a core."""
        self.look()
        passed = max(time.monotonic() - self._began, 1e-9)
        by_name: dict[str, float] = {}
        for key, (name, seconds) in self._seen.items():
            spent = seconds - self._before.get(key, (name, 0.0))[1]
            by_name[name] = by_name.get(name, 0.0) + spent / passed
        busy = [Neighbour(name=name, cores=n) for name, n in by_name.items() if n >= MIN_CORES]
        return sorted(busy, key=lambda row: -row.cores)[:most]

    def stolen_cores(self) -> float:
        """Return the average cores that the hypervisor gave to other machines while this one wanted
        them.

        0 if the kernel does not count it.
        """
        return (_stolen_seconds() - self._stolen) / max(time.monotonic() - self._began, 1e-9)


class ProcessorUse:
    """Processor use of one process and of all others during its warm-up and measurement."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._use: CpuUse | None = None
        self._neighbours: Neighbours | None = None

    def enter(self, stage: str) -> None:
        if stage in ("warmup", "measure"):
            # Not from the measurement on: a look takes ten milliseconds.
            self._neighbours = self._neighbours or Neighbours()
        if stage == "measure":
            self._use = CpuUse(self._pid)

    def facts(self) -> dict[str, Any]:
        """Return fields of `sysbench.core.record.events.PassEnded`."""
        if self._use is None or self._neighbours is None:
            return {}
        busy, own_percent = self._use.percent()
        beside = self._neighbours.busiest()
        return {"cpu_percent": busy, "own_cpu_percent": own_percent, "neighbours": beside}


def _stolen_seconds() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _seconds_by_process() -> dict[tuple[int, float], tuple[str, float]]:
    """Return the processor seconds of processes that are not ours, by id and time of birth.

    Those of this user and of the system have their names, all others one name together.
    """
    named = {0, os.getuid()}
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    seconds = {}
    for process in psutil.process_iter(["pid", "name", "create_time", "cpu_times", "uids"]):
        facts = process.info
        if facts["pid"] in own or facts["cpu_times"] is None:
            continue
        times = facts["cpu_times"]
        key = facts["pid"], facts["create_time"]
        uids = facts["uids"]
        name = (facts["name"] or "unknown")[:COMM_CHARS]
        known = uids is not None and uids.real in named
        seconds[key] = name if known else NAMELESS, times.user + times.system
    return seconds
