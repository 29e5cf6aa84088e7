"""Sample the devices and the host in a thread, and read the machine for a person."""

from __future__ import annotations

import os
import pwd
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from sysbench.core.errors import SpecError
from sysbench.core.machine.host_sampler import Host, busy_share, cpu_quota, memory_limit_bytes
from sysbench.core.machine.nvml import SINCE_LOADED, UNCORRECTED, Nvml, NvmlGpu
from sysbench.core.machine.sample import (
    MIN_INTERVAL_SECONDS,
    DeviceSample,
    DiskUse,
    GpuProcess,
    GpuState,
    HostSample,
    HostState,
    MachineState,
    MigInstance,
    ProcessState,
    Sample,
    command_text,
)

SLOW_INTERVAL_SECONDS = 5.0
"""Interval of the costly queries: processes, temperature, limits."""


class Probe:
    """Devices and host, open inside a ``with`` block. Not thread-safe."""

    def __init__(self, *, gpm: bool = True) -> None:
        self.nvml = Nvml(gpm=gpm)
        self._host = Host()
        self._slow_due = 0.0

    def __enter__(self) -> Probe:
        self.nvml.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.nvml.__exit__()

    def take(self) -> Sample:
        """Take a sample. The host's CPU share and GPM activity need an earlier one."""
        now = time.monotonic()
        slow = now >= self._slow_due
        if slow:
            self._slow_due = now + SLOW_INTERVAL_SECONDS
        return Sample(
            devices=self.nvml.read(slow),
            host=self._host.read(),
            no_devices=self.nvml.unavailable,
        )


class Sampler:
    """Samples in a daemon thread from `start` to `stop`; also a context manager.

    ``deliver`` gets every sample, in the sampler's thread, and must return quickly. If a reading or
    ``deliver`` raises, sampling ends and ``error`` has the exception: the caller reports it, and
    the run continues. Polling faster than `MIN_INTERVAL_SECONDS` holds the driver's lock against
    the workload and learns nothing, since the counters are slower: SpecError.
    """

    def __init__(
        self,
        deliver: Callable[[Sample], object],
        *,
        interval_seconds: float = MIN_INTERVAL_SECONDS,
    ) -> None:
        if not interval_seconds >= MIN_INTERVAL_SECONDS:
            raise SpecError(
                "interval_seconds", interval_seconds, f"at least {MIN_INTERVAL_SECONDS}"
            )
        self.interval_seconds = interval_seconds
        self.error: Exception | None = None
        self._deliver = deliver
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start; the first sample is taken at once. A sampler starts only once."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Stop, and wait for a reading in progress until the timeout: a driver may hang."""
        self._stopping.set()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            self.error = TimeoutError(f"NVML did not answer within {timeout_seconds} s")

    def _run(self) -> None:
        try:
            with Probe() as probe:
                due = time.monotonic()
                while not self._stopping.wait(max(0.0, due - time.monotonic())):
                    self._deliver(probe.take())
                    # After a stall the next reading is one interval away, not at once.
                    due = max(due, time.monotonic() - self.interval_seconds)
                    due += self.interval_seconds
        except Exception as error:
            self.error = error


MAX_BUSIEST = 30
"""Processes of the host that are listed, busiest first."""
FRESH_SECONDS = 5.0
"""Age up to which a process's utilization counts: the driver also keeps old samples."""
FUNCTIONS = {
    "utilization": ("nvmlDeviceGetUtilizationRates",),
    "memory_used_bytes": ("nvmlDeviceGetMemoryInfo",),
    "power_watts": ("nvmlDeviceGetPowerUsage",),
    "power_limit_watts": ("nvmlDeviceGetEnforcedPowerLimit",),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo",),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo",),
    "temperature_celsius": ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
    "clock_reasons": (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ),
    "processes": ("nvmlDeviceGetComputeRunningProcesses_v3",),
}
"""Functions of NVML behind the fields of `DeviceSample`."""
MORE_FUNCTIONS = {
    "memory_busy": ("nvmlDeviceGetUtilizationRates",),
    "bus_id": ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v3"),
    "performance_state": ("nvmlDeviceGetPerformanceState",),
    "fan_share": ("nvmlDeviceGetFanSpeed",),
    "ecc_errors": ("nvmlDeviceGetTotalEccErrors",),
}
"""Functions of NVML behind the fields of `GpuState`."""
ACTIVITY = ("sm_active", "tensor_active", "dram_active")
UNKNOWN_STATE = 32
"""NVML_PSTATE_UNKNOWN."""
NO_INSTANCE = 0xFFFFFFFF
"""NVML's number for "not in a MIG instance"."""


class MachineReader:
    """Reads the machine, inside a ``with`` block; not thread-safe.

    Utilization of processors, processes and parts of a GPU is since the previous reading, so the
    first one has none. A reading takes some ten milliseconds; with thousands of processes more.
    ``folders`` are those whose file systems are reported, by what they are for.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._probe = Probe()
        self._processes = ProcessReader()
        self._cores: list[tuple[float, float]] = []

    def __enter__(self) -> MachineReader:
        self._probe.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._probe.__exit__()

    def take(self) -> MachineState:
        sample = self._probe.take()
        nvml = self._probe.nvml
        pairs = list(zip(nvml.gpus, sample.devices, strict=True))
        uses = {device.index: _uses(gpu) for gpu, device in pairs if not device.lost}
        gpus = [_gpu_state(gpu, device) for gpu, device in pairs]
        seen = [use for of_gpu in uses.values() for use in of_gpu]
        of_pid, busiest, count = self._processes.read({use.pid for use in seen})
        driver = nvml.driver()
        return MachineState(
            t_ns=sample.t_ns,
            gpus=gpus,
            no_gpus=sample.no_devices,
            driver=driver["driver"],
            cuda=driver["cuda"],
            gpu_processes=[
                GpuProcess(**msgspec.structs.asdict(of_pid[use.pid]) | use._asdict(), gpu=index)
                for index, of_gpu in uses.items()
                for use in of_gpu
            ],
            processes=busiest,
            process_count=count,
            host=self._host(sample.host),
        )

    def _host(self, host: HostSample) -> HostState:
        swap, limit = psutil.swap_memory(), memory_limit_bytes()
        return HostState(
            cores=host.cores,
            cpu=host.cpu,
            core_shares=self._core_shares(),
            load_average=[round(load, 2) for load in os.getloadavg()],
            memory_used_bytes=host.memory_used_bytes,
            memory_total_bytes=host.memory_total_bytes,
            swap_used_bytes=swap.used,
            swap_total_bytes=swap.total,
            disks={name: disk_use(folder) for name, folder in self._folders.items()},
            uptime_seconds=time.time() - psutil.boot_time(),
            cpu_quota=cpu_quota(),
            # Control groups version 1 write a number above any machine's for "no limit".
            memory_limit_bytes=limit if limit and limit < host.memory_total_bytes else None,
        )

    def _core_shares(self) -> list[float | None]:
        """Return the busy share of each core since the previous reading."""
        now = [(sum(core), core.idle + core.iowait) for core in psutil.cpu_times(percpu=True)]
        before, self._cores = self._cores, now
        if len(before) != len(now):
            return [None] * len(now)
        return [busy_share(*readings) for readings in zip(before, now, strict=True)]


def disk_use(folder: Path) -> DiskUse:
    """Return the use of the file system of a folder, or of its nearest parent that exists."""
    place = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    try:
        use = shutil.disk_usage(place)
    except OSError as error:
        return DiskUse(path=str(folder), missing=error.strerror or str(error))
    return DiskUse(path=str(folder), free_bytes=use.free, total_bytes=use.total)


class _GpuUse(NamedTuple):
    """NVML's facts about a process on one GPU."""

    pid: int
    kind: str
    gpu_memory_bytes: int | None
    sm_share: float | None
    gpu_instance: int | None


def _uses(gpu: NvmlGpu) -> list[_GpuUse]:
    """Return the processes on a GPU, largest first; one per process and MIG instance."""
    answers = {
        "compute": gpu.query("nvmlDeviceGetComputeRunningProcesses_v3"),
        "graphics": gpu.query("nvmlDeviceGetGraphicsRunningProcesses_v3"),
    }
    shares = _sm_shares(gpu) if any(answers.values()) else {}
    uses: dict[tuple[int, int | None], _GpuUse] = {}
    for kind, processes in answers.items():
        for process in processes or ():
            number = getattr(process, "gpuInstanceId", None)
            instance = None if number in (None, NO_INSTANCE) else number
            key = process.pid, instance
            use = _GpuUse(
                process.pid, kind, process.usedGpuMemory, shares.get(process.pid), instance
            )
            # Both lists report the memory of the whole process.
            uses[key] = uses[key]._replace(kind="both") if key in uses else use
    return sorted(uses.values(), key=lambda use: -(use.gpu_memory_bytes or 0))


def _sm_shares(gpu: NvmlGpu) -> dict[int, float]:
    """Return the newest utilization by process; the driver keeps some seconds of samples."""
    since_us = round((time.time() - FRESH_SECONDS) * 1e6)
    samples = gpu.query("nvmlDeviceGetProcessUtilization", 0) or ()
    fresh = [sample for sample in samples if sample.timeStamp >= since_us]
    newest = sorted(fresh, key=lambda sample: sample.timeStamp)
    return {sample.pid: min(sample.smUtil, 100) / 100 for sample in newest}


def _gpu_state(gpu: NvmlGpu, sample: DeviceSample) -> GpuState:
    if sample.lost:
        return GpuState(sample=sample, missing={"device": "it stopped answering (lost)"})
    rates = gpu.query("nvmlDeviceGetUtilizationRates")
    pci = gpu.query("nvmlDeviceGetPciInfo")
    state = gpu.query("nvmlDeviceGetPerformanceState")
    fan = gpu.query("nvmlDeviceGetFanSpeed")
    values = {
        "memory_busy": None if rates is None else rates.memory / 100,
        "bus_id": None if pci is None else str(pci.busId),
        "performance_state": None if state is None or state == UNKNOWN_STATE else f"P{state}",
        "fan_share": None if fan is None else fan / 100,
        "ecc_errors": gpu.query("nvmlDeviceGetTotalEccErrors", UNCORRECTED, SINCE_LOADED),
    }
    of_sample = {name: getattr(sample, name) for name in (*FUNCTIONS, *ACTIVITY)}
    return GpuState(
        sample=sample,
        mig_instances=_mig_instances(gpu, sample.index) if sample.mig else [],
        missing={
            name: _reason(gpu, name) + (" (the GPU is in MIG mode)" if sample.mig else "")
            for name, value in (of_sample | values).items()
            if value is None
        },
        **values,
    )


def _reason(gpu: NvmlGpu, name: str) -> str:
    if name in ACTIVITY:
        if gpu.has_gpm:
            return "not counted yet"
        return gpu.reason("nvmlGpmQueryDeviceSupport") or "this GPU or driver does not count it"
    return gpu.reason(*(FUNCTIONS | MORE_FUNCTIONS)[name]) or "not reported"


def _mig_instances(gpu: NvmlGpu, index: int) -> list[MigInstance]:
    count = gpu.query("nvmlDeviceGetMaxMigDeviceCount") or 0
    handles = [gpu.query("nvmlDeviceGetMigDeviceHandleByIndex", place) for place in range(count)]
    instances = []
    for handle in handles:
        if handle is not None:
            used, total = gpu.slice_memory(handle)
            instances.append(
                MigInstance(
                    gpu=index,
                    gpu_instance=gpu.query_slice(handle, "nvmlDeviceGetGpuInstanceId"),
                    name=gpu.query_slice(handle, "nvmlDeviceGetName") or "MIG device",
                    memory_used_bytes=used,
                    memory_total_bytes=total,
                )
            )
    return instances


@cache
def _user_name(number: int) -> str:
    """Return the name of a user, or the number; cached, since a directory service may be slow."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


class ProcessReader:
    """Reads processes of the host; their use of cores is since the previous reading."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, float], float] = {}
        self._read_at: float | None = None
        self._unseen: set[int] = set()

    def read(self, pids: Iterable[int]) -> tuple[dict[int, ProcessState], list[ProcessState], int]:
        """Return the processes with these ids, the busiest others, and the number of all."""
        wanted = set(pids)
        fields = ["pid", "create_time", "cpu_times", "memory_info"]
        found = {each.pid: each for each in psutil.process_iter(fields)}
        passed = None if self._read_at is None else time.monotonic() - self._read_at
        self._read_at = time.monotonic()
        seconds, cores = {}, {}
        for pid, process in found.items():
            times, born = process.info["cpu_times"], process.info["create_time"]
            if times is None or born is None:
                continue
            spent = seconds[pid, born] = times.user + times.system
            before = self._before.get((pid, born))
            if passed and before is not None:
                cores[pid] = max(0.0, spent - before) / passed
        self._before = seconds
        memory = {pid: process.info["memory_info"] for pid, process in found.items()}
        sizes = {pid: info.rss for pid, info in memory.items() if info is not None}
        # Cores are rounded, so that idle processes keep their order.
        used = {pid: round(cores.get(pid, 0), 2) for pid in found}
        order = sorted(found, key=lambda pid: (-used[pid], -sizes.get(pid, 0)))
        # Threads of the kernel have no memory of their own; idle ones are left out.
        others = [pid for pid in order if pid not in wanted and (used[pid] or sizes.get(pid, 1))]
        others = others[:MAX_BUSIEST]
        chosen = {
            pid: describe_process(found[pid], cores.get(pid)) if pid in found else self._hidden(pid)
            for pid in (*wanted, *others)
        }
        self._unseen = wanted - found.keys()
        return chosen, [chosen[pid] for pid in others], len(found)

    def _hidden(self, pid: int) -> ProcessState:
        # The driver lists it again although it is not here, so it did not end between the two.
        why = "of another container, or hidden by the system"
        return ProcessState(pid=pid, missing=why if pid in self._unseen else f"just ended, {why}")


def describe_process(process: psutil.Process, cores: float | None) -> ProcessState:
    """Return the facts about a process that this user may read; it may have ended."""
    values: dict[str, Any] = {"pid": process.pid, "cores": cores}
    refused: list[str] = []
    try:
        with process.oneshot():
            values["name"] = process.name()
            values["user"] = _user_name(process.uids().real)
            values["age_seconds"] = max(0.0, time.time() - process.create_time())
            values["memory_bytes"] = process.memory_info().rss
            try:
                values["command"] = command_text(process.cmdline()) or f"[{values['name']}]"
            except psutil.AccessDenied:
                refused.append("no permission to read its arguments")
    except psutil.AccessDenied:
        refused.append("no permission to read it")
    except psutil.NoSuchProcess:  # also a zombie
        refused.append("it ended")
    return ProcessState(**values, missing=", ".join(refused))
