"""Other processes of the machine, and the processor time that they take meanwhile."""

from __future__ import annotations

import os
import time

import msgspec
import psutil


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of one name: the cores that they kept busy on average."""

    name: str
    cores: float


class Neighbours:
    """Watches from now on; this process and its descendants are no neighbours."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._stolen = _stolen_seconds()
        self._before = _seconds_by_process()

    def busiest(self, most: int = 3) -> list[Neighbour]:
        """The names with the most processor time, at least a hundredth of a core.

        Of processes that live now; those that came and went are not seen, nor are those outside
        a container.
        """
        passed = max(time.monotonic() - self._began, 1e-9)
        by_name: dict[str, float] = {}
        for key, (name, seconds) in _seconds_by_process().items():
            spent = seconds - self._before.get(key, (name, 0.0))[1]
            by_name[name] = by_name.get(name, 0.0) + spent / passed
        ordered = sorted(by_name.items(), key=lambda item: -item[1])
        return [Neighbour(name=name, cores=cores) for name, cores in ordered if cores >= 0.01][
            :most
        ]

    def stolen_cores(self) -> float:
        """Cores that the hypervisor gave to other machines on average while this one wanted them.

        0 where the kernel does not count it.
        """
        return (_stolen_seconds() - self._stolen) / max(time.monotonic() - self._began, 1e-9)


def _stolen_seconds() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _seconds_by_process() -> dict[tuple[int, float], tuple[str, float]]:
    """Processor seconds of all processes that are not ours, by id and time of birth."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    seconds = {}
    for process in psutil.process_iter(["pid", "name", "create_time", "cpu_times"]):
        facts = process.info
        if facts["pid"] in own or facts["cpu_times"] is None:
            continue
        times = facts["cpu_times"]
        key = facts["pid"], facts["create_time"]
        seconds[key] = facts["name"] or "unknown", times.user + times.system
    return seconds
