"""Read the host: processors, memory, clocks, processes, control groups."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sysbench.core.machine.sample import UNSEEN as UNSEEN
from sysbench.core.machine.sample import HostSample
from sysbench.core.record.events import Neighbour as Neighbour
from sysbench.core.storage import text_of

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


class Host:
    """Reader of the host; the share of busy processors is since the previous reading."""

    def __init__(self) -> None:
        self._cores = psutil.cpu_count() or 1
        self._before: tuple[float, float] | None = None
        self._energy = PackageEnergy()

    def read(self) -> HostSample:
        """Take a sample; ``cpu`` is None the first time, and if no time has passed."""
        now = _all_and_idle_seconds()
        cpu = busy_share(self._before, now) if self._before else None
        self._before = now
        memory = psutil.virtual_memory()
        return HostSample(
            cores=self._cores,
            cpu=cpu,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            energy_joules=self._energy.joules(),
        )


POWERCAP = Path("/sys/class/powercap")


class PackageEnergy:
    """Energy counters of the processor packages (RAPL), which most systems let only root read."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        # intel-rapl:0 is a package, also of AMD; intel-rapl:0:0 is a part of it.
        self._zones = sorted(
            zone for zone in folder.glob("intel-rapl:*") if zone.name.count(":") == 1
        )
        self._last = [self._read(zone) for zone in self._zones]
        self._joules = 0.0

    def joules(self) -> float | None:
        """Return the energy of all packages since the construction; None if one is unreadable."""
        now = [self._read(zone) for zone in self._zones]
        for zone, before, after in zip(self._zones, self._last, now, strict=True):
            if before is None or after is None:
                return None
            # The counter starts again at zero after its range.
            range_uj = int(text_of(zone / "max_energy_range_uj") or 0) if after < before else 0
            self._joules += (after - before + range_uj) / 1e6
        self._last = now
        return self._joules if now else None

    @staticmethod
    def _read(zone: Path) -> int | None:
        text = text_of(zone / "energy_uj")
        return int(text) if text.isdigit() else None


def _all_and_idle_seconds() -> tuple[float, float]:
    """Return the seconds of all logical cores since boot, and the idle part of them."""
    times = psutil.cpu_times()
    # User and nice time contain guest time.
    return sum(times) - times.guest - times.guest_nice, times.idle + times.iowait


def busy_share(before: tuple[float, float], now: tuple[float, float]) -> float | None:
    """Return the busy share between two readings of all and idle seconds; None without time."""
    total, idle = now[0] - before[0], now[1] - before[1]
    return min(1.0, max(0.0, 1 - idle / total)) if total > 0 else None


MIN_CORE_SECONDS = 0.4
"""Of all cores together: the kernel counts in ticks of 0.01 s a core, so a shorter interval has an
error of more than a few per cent.
"""


class CpuUse:
    """Processor time of the machine and of some process trees since construction."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._before = _all_and_idle_seconds()
        self._own = _seconds_of_trees(pids)

    def percent(self) -> tuple[float | None, float | None]:
        """Return the percentages of all logical cores that were busy, and that the trees used.

        Both are None below `MIN_CORE_SECONDS`, the second also if a process ended.
        """
        now = _all_and_idle_seconds()
        passed, share = now[0] - self._before[0], busy_share(self._before, now)
        if passed < MIN_CORE_SECONDS or share is None:
            return None, None
        own = _seconds_of_trees(self._pids)
        if own is None or self._own is None:
            return 100 * share, None
        return 100 * share, 100 * max(0.0, own - self._own) / passed


def _seconds_of_trees(pids: Sequence[int]) -> float | None:
    seconds = [_seconds_of_tree(pid) for pid in pids]
    return None if None in seconds else sum(filter(None, seconds))


def _seconds_of_tree(pid: int) -> float | None:
    """Return the processor seconds of a process and its descendants, ended or not; None if it
    ended."""
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


def available_bytes() -> int:
    """Return the bytes that new processes can use now, at most `memory_capacity_bytes`."""
    return min(psutil.virtual_memory().available, memory_capacity_bytes())


def memory_limit_bytes(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Return the smallest memory limit of this process's groups; None without one."""
    limits = [
        int(text)
        for folder in _folders("memory", root, membership)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := text_of(folder / name)).isdigit()
    ]
    return min(limits, default=None)


def cpu_quota(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Return the smallest processor quota of this process's groups, in cores; None without one."""
    quotas = []
    for folder in _folders("cpu", root, membership):
        version_2 = text_of(folder / "cpu.max").split()
        version_1 = [text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
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
    for line in text_of(membership).splitlines():
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
        text = text_of(folder / f"cpu{number}" / "cpufreq" / "scaling_cur_freq")
        if text.isdigit():  # it can be absent, or "<unknown>"
            clocks.append(int(text) / 1000)
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
        """Return the mean cores that other machines had while this one wanted them."""
        return (_stolen_seconds() - self._stolen) / max(time.monotonic() - self._began, 1e-9)


class ProcessorUse:
    """Processor use of some processes and of all others, while the first warms up and measures."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._use: CpuUse | None = None
        self._neighbours: Neighbours | None = None

    def enter(self, stage: str) -> None:
        if stage in ("warmup", "measure"):
            # Not from the measurement on: a look takes ten milliseconds.
            self._neighbours = self._neighbours or Neighbours()
        if stage == "measure":
            self._use = CpuUse(*self._pids)

    def facts(self) -> dict[str, Any]:
        """Return fields of `sysbench.core.record.events.PassEnded`."""
        if self._use is None or self._neighbours is None:
            return {}
        busy, own_percent = self._use.percent()
        beside = self._neighbours.busiest()
        return {"cpu_percent": busy, "own_cpu_percent": own_percent, "neighbours": beside}


def _stolen_seconds() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


class _Entry(NamedTuple):
    """A process in /proc; ``born`` is in clock ticks since boot."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    seconds: float
    born: int


TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _entries() -> Iterator[_Entry]:
    """Read one file for each process: runs look at all of them, on machines with thousands."""
    for number in filter(str.isdecimal, os.listdir("/proc")):
        try:
            text = _read_entry(number, "stat").decode(errors="replace")
        except OSError:  # it ended
            continue
        # The name may contain blanks and brackets.
        before, _, after = text.rpartition(")")
        fields = after.split()
        yield _Entry(
            pid=int(number),
            name=before.partition("(")[2],
            state=fields[0],
            parent=int(fields[1]),
            session=int(fields[3]),
            seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
            born=int(fields[19]),
        )


def _read_entry(number: int | str, name: str) -> bytes:
    with open(f"/proc/{number}/{name}", "rb") as file:
        return file.read()


def _seconds_by_process() -> dict[tuple[int, int], tuple[str, float]]:
    """Return the processor seconds of processes that are not ours, by id and time of birth.

    Those of this user and of the system have their names, all others one name together.
    """
    entries = list(_entries())
    children: dict[int, list[int]] = {}
    for entry in entries:
        children.setdefault(entry.parent, []).append(entry.pid)
    own, waiting = set[int](), [os.getpid()]
    while waiting:
        own.add(pid := waiting.pop())
        waiting += children.get(pid, [])
    seconds = {}
    for entry in entries:
        if entry.pid not in own:
            name = (entry.name or "unknown") if _is_named(entry.pid) else NAMELESS
            seconds[entry.pid, entry.born] = name, entry.seconds
    return seconds


def _is_named(pid: int) -> bool:
    try:
        status = _read_entry(pid, "status")
    except OSError:
        return False
    user = int(status.partition(b"\nUid:")[2].split(maxsplit=1)[0])
    return user in (0, os.getuid())


_STOPPED = ("T", "t")
ZOMBIE = "Z"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, in place of init; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(pid: int) -> None:
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in descendants:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # it ended already
            continue


def marked_processes(name: str, value: str, session: int) -> list[tuple[str, psutil.Process]]:
    """Return processes of a session, and those whose environment has a variable with this value,
    each with its name.

    A process that started a session of its own still has the variables of its parents.
    """
    found = []
    variable = f"{name}={value}".encode()
    for entry in _entries():
        with suppress(psutil.Error, OSError):  # it ended, or belongs to another user
            if entry.state != ZOMBIE and (
                entry.session == session
                or variable in _read_entry(entry.pid, "environ").split(b"\0")
            ):
                found.append((entry.name, psutil.Process(entry.pid)))
    return found


def is_going(process: psutil.Process) -> bool:
    """Whether a process has not ended, whether or not its parent has asked for its exit code."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def fork_guard() -> Callable[[], None]:
    """Return a check that ends a process which is a fork of this one, with a line in its log.

    Code that a worker calls may fork and return in both processes, which then would both measure.
    """
    worker = os.getpid()

    def refuse_fork() -> None:
        if (pid := os.getpid()) != worker:
            line = f"process {pid}, a fork of {worker}, went on as a second worker and is ended\n"
            with suppress(OSError):
                os.write(STANDARD_ERROR, line.encode())
            os._exit(1)

    return refuse_fork


STANDARD_ERROR = 2


def stopped_process(pid: int) -> int | None:
    """Return the id of this process or of a descendant that a signal or a debugger has stopped.

    Cheap enough during a measurement: it reads only the entries of these processes. None if none is
    stopped, and outside Linux.
    """
    waiting = [pid]
    while waiting:
        process = Path("/proc", str(waiting.pop()))
        try:
            # The state follows the name, which may contain blanks and brackets.
            state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            children = (process / "task" / process.name / "children").read_text().split()
        except (OSError, IndexError):  # it ended, or this is not Linux
            continue
        if state in _STOPPED:
            return int(process.name)
        waiting += map(int, children)
    return None


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, which may have died already.

    Linux only; elsewhere the end of standard input has to serve.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before the request took effect.
        os._exit(1)


def limit_data_memory(limit_bytes: int) -> None:
    """Limit the growth of this process's data; beyond ``limit_bytes`` MemoryError is raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = psutil.Process().memory_info().data + limit_bytes
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # The hard limit stays as it is: lowered once, it could not be raised again.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
