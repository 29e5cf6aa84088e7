"""Tables of this machine: GPUs, processes, host, and what ran beside a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from sysbench.core.formatting import UNKNOWN, format_bytes, percent
from sysbench.core.machine.sample import GpuProcess, GpuState, HostState, MigInstance, ProcessState
from sysbench.core.record.record import Record
from sysbench.core.record.timing import limiting_reasons
from sysbench.core.tables.cells import heading, literal
from sysbench.core.tables.table import Cell, Column, Table, columns_for, facts, tabulate

UNLIMITED = "none"
DISTURBING_RULES = ("other-tenants", "busy-machine")
"""Findings that call a run disturbed by other processes."""
MIN_CORES_SHARE = 0.01
"""Share of all cores from which another process is named."""
AGES = (("d", 86400), ("h", 3600), ("min", 60))

GPU_COLUMNS = columns_for(
    GpuState,
    Column("gpu", lambda gpu: str(gpu.sample.index), about="number, as nvidia-smi's"),
    Column("name", lambda gpu: gpu.sample.name.removeprefix("NVIDIA "), priority=3),
    Column(
        "utilization",
        "sample.utilization",
        heading="busy",
        unit="share",
        about="share of time in which any kernel ran",
    ),
    Column("memory_used_bytes", "sample.memory_used_bytes", about="memory in use"),
    Column(
        "memory_total_bytes",
        "sample.memory_total_bytes",
        heading="of",
        priority=4,
        about="memory without the part that the driver reserves",
    ),
    Column(
        "power_watts",
        "sample.power_watts",
        heading="W",
        format="{:.0f}",
        priority=1,
        about="power now, W",
    ),
    Column(
        "power_limit_watts",
        "sample.power_limit_watts",
        heading="limit W",
        format="{:.0f}",
        priority=5,
        about="enforced power limit, W",
    ),
    Column("sm_clock_mhz", "sample.sm_clock_mhz", heading="MHz", priority=1, about="SM clock now"),
    Column(
        "temperature_celsius",
        "sample.temperature_celsius",
        heading="°C",
        priority=2,
        about="temperature now",
    ),
    Column(
        "clock_limits",
        lambda gpu: clock_limits(gpu),
        is_flexible=True,
        about="what lowers the clock; or none",
    ),
    Column(
        "sm_active",
        "sample.sm_active",
        heading="SM",
        unit="share",
        is_optional=True,
        priority=6,
        about="share of SMs with work, mean over time",
    ),
    Column(
        "tensor_active",
        "sample.tensor_active",
        heading="tensor",
        unit="share",
        is_optional=True,
        priority=7,
        about="share of time in which tensor cores worked",
    ),
    Column(
        "dram_active",
        "sample.dram_active",
        heading="DRAM",
        unit="share",
        is_optional=True,
        priority=7,
        about="share of the peak bandwidth of the memory",
    ),
    Column(
        "memory_busy",
        heading="mem busy",
        unit="share",
        priority=7,
        about="share of time in which memory was read or written",
    ),
    Column("fan_share", heading="fan", is_optional=True, priority=8, about="speed of the fan"),
    Column(
        "performance_state",
        heading="state",
        is_optional=True,
        priority=8,
        about="P0 is the fastest",
    ),
    Column(
        "ecc_errors",
        heading="ECC",
        is_optional=True,
        priority=8,
        about="uncorrected memory errors since the driver was loaded",
    ),
    Column("bus_id", is_optional=True, priority=9, about="address on the PCI bus"),
)


def clock_limits(gpu: GpuState) -> str:
    """What lowers the SM clock, in words; `UNLIMITED`, or n/a if NVML does not report it."""
    if gpu.sample.lost:
        return "lost"
    reasons = gpu.sample.clock_reasons
    return UNKNOWN if reasons is None else ", ".join(limiting_reasons(reasons)) or UNLIMITED


def gpus_table(gpus: Sequence[GpuState]) -> Table:
    """One row per GPU; an empty cell is not reported by NVML, and a note below says why."""
    return tabulate(gpus, *GPU_COLUMNS, name="gpus", title="GPUs")


def gpu_notes(gpus: Sequence[GpuState]) -> list[str]:
    """Why values of GPUs are not known; GPUs with the same reasons share a note."""
    headings = {column.name: column.heading or heading(column.name) for column in GPU_COLUMNS}
    by_text: dict[str, list[str]] = {}
    for gpu in gpus:
        by_reason: dict[str, list[str]] = {}
        for name, why in gpu.missing.items():
            by_reason.setdefault(why, []).append(headings.get(name, heading(name)))
        if by_reason:
            text = "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())
            by_text.setdefault(text, []).append(str(gpu.sample.index))
    return [f"GPU {', '.join(indices)} n/a: {text}" for text, indices in by_text.items()]


def mig_table(instances: Sequence[MigInstance]) -> Table:
    """One row per MIG instance that this user may use."""
    return tabulate(
        instances,
        Column("gpu", lambda row: str(row.gpu), about="number of the GPU"),
        Column("gpu_instance", about="number of the instance on its GPU"),
        Column("name", is_flexible=True),
        Column("memory_used_bytes", about="memory in use"),
        Column("memory_total_bytes", about="memory of the instance"),
        name="mig_instances",
        title="MIG instances",
    )


def gpu_processes_table(processes: Sequence[ProcessState]) -> Table:
    """One row per process and GPU; of a process of the host the GPU's cells are empty."""

    def of_gpu(row: ProcessState, name: str) -> Cell:
        return getattr(row, name) if isinstance(row, GpuProcess) else None

    table = tabulate(
        processes,
        Column(
            "gpu",
            lambda row: gpu_place(row) if isinstance(row, GpuProcess) else "–",
            about="number of the GPU, and of the MIG instance after a slash",
        ),
        Column("pid", format="{:d}", about="process id"),
        Column("user", lambda row: row.user or UNKNOWN, priority=1, about="its user"),
        Column(
            "gpu_memory_bytes",
            lambda row: of_gpu(row, "gpu_memory_bytes"),
            heading="GPU mem",
            about="memory on this GPU",
        ),
        Column(
            "sm_share",
            lambda row: of_gpu(row, "sm_share"),
            heading="busy",
            priority=4,
            about="share of time in which a kernel of this process ran, over some seconds",
        ),
        Column(
            "kind", lambda row: of_gpu(row, "kind"), priority=8, about="compute, graphics or both"
        ),
        Column("cores", format="{:.2f}", priority=3, about="average cores that it kept busy"),
        Column("memory_bytes", heading="RSS", priority=5, about="resident memory"),
        Column(
            "age", lambda row: age_text(row.age_seconds), priority=2, about="time since its start"
        ),
        Column("command", command_words, is_flexible=True, about="arguments without secrets"),
        name="gpu_processes",
        title="Processes on GPUs",
    )
    return _sorted_by_age(table, processes)


def processes_table(processes: Sequence[ProcessState]) -> Table:
    """The busiest processes of the host."""
    table = tabulate(
        processes,
        Column("pid", format="{:d}", about="process id"),
        Column("user", lambda row: row.user or UNKNOWN, priority=3, about="its user"),
        Column("cores", format="{:.2f}", about="average cores that it kept busy"),
        Column("memory_bytes", heading="RSS", priority=1, about="resident memory"),
        Column(
            "age", lambda row: age_text(row.age_seconds), priority=2, about="time since its start"
        ),
        Column("command", command_words, is_flexible=True, about="arguments without secrets"),
        name="processes",
        title="Busiest processes of the host",
    )
    return _sorted_by_age(table, processes)


def _sorted_by_age(table: Table, processes: Sequence[ProcessState]) -> Table:
    ages = tuple(process.age_seconds for process in processes)
    return msgspec.structs.replace(table, sort_keys={"age": ages})


def gpu_place(process: GpuProcess) -> str:
    instance = process.gpu_instance
    return str(process.gpu) if instance is None else f"{process.gpu}/{instance}"


def command_words(process: ProcessState) -> str:
    """The command, or the name and why there is none."""
    if process.command is not None:
        return f"{process.command} ({process.missing})" if process.missing else process.command
    name = f"{process.name} " if process.name else ""
    return f"{name}({UNKNOWN}: {process.missing})"


def age_text(seconds: float | None) -> str:
    """Format an age in its largest unit: ``45 s``, ``3.4 h``, ``12 d``."""
    if seconds is None:
        return UNKNOWN
    for unit, size in AGES:
        if seconds >= size:
            count = seconds / size
            return f"{count:.1f} {unit}" if count < 9.95 else f"{count:.0f} {unit}"
    return f"{seconds:.0f} s"


def host_table(host: HostState) -> Table:
    """Processors, memory, swap, disks and limits of the host."""
    load = (*host.load_average, None, None, None)
    disks: dict[str, Cell] = {}
    missing = {
        "cpu_share": "needs two readings",
        "cpu_quota": UNLIMITED,
        "memory_limit_bytes": UNLIMITED,
    }
    for name, disk in host.disks.items():
        disks |= {f"{name}_free_bytes": disk.free_bytes, f"{name}_total_bytes": disk.total_bytes}
        missing |= {key: disk.missing for key in disks if key.startswith(name)}
    return facts(
        "host",
        "Host",
        {
            "cores": host.cores,
            "cpu_share": host.cpu,
            "load_1_min": load[0],
            "load_5_min": load[1],
            "load_15_min": load[2],
            "memory_used_bytes": host.memory_used_bytes,
            "memory_total_bytes": host.memory_total_bytes,
            "swap_used_bytes": host.swap_used_bytes,
            "swap_total_bytes": host.swap_total_bytes,
            **disks,
            "uptime": age_text(host.uptime_seconds),
            "cpu_quota": host.cpu_quota,
            "memory_limit_bytes": host.memory_limit_bytes,
        },
        missing,
    )


class OtherProcess(NamedTuple):
    """A program that a record names beside its run; ``cores_share`` is of all cores."""

    name: str
    pid: int | None = None
    gpu_memory_bytes: int | None = None
    cores: float | None = None
    cores_share: float | None = None

    @property
    def words(self) -> str:
        if self.cores is None:
            memory = f", {format_bytes(self.gpu_memory_bytes)}" if self.gpu_memory_bytes else ""
            return f"{literal(self.name)} (pid {self.pid}) on the GPU{memory}"
        share = "" if self.cores_share is None else f", {percent(self.cores_share, 0)} of all"
        return f"{literal(self.name)} on {self.cores:.1f} cores{share}"


def others_of(record: Record) -> list[OtherProcess]:
    """Return the other programs in a record: those on its GPU, then by processor time."""
    telemetry, timed = record.telemetry, record.pass_named("timing")
    count = record.environment.get("cpu", {}).get("threads")
    on_gpu = [
        OtherProcess(str(row.get("name") or "?"), row.get("pid"), row.get("memory_bytes"))
        for row in (telemetry.other_processes if telemetry else ())
    ]
    on_cores = [
        OtherProcess(each.name, cores=each.cores, cores_share=each.cores / count if count else None)
        for each in (timed.neighbours if timed else ())
        if not count or each.cores / count >= MIN_CORES_SHARE
    ]
    return [*on_gpu, *on_cores]


def disturbed_words(record: Record) -> str:
    """Say what a record names beside its run, and whether its findings call that a disturbance."""
    names = "; ".join(other.words for other in others_of(record))
    verdicts = {each.rule: each.verdict for each in record.findings}
    lost = f" {verdicts['lost-rounds']}" if "lost-rounds" in verdicts else ""
    disturbing = [verdicts[rule] for rule in DISTURBING_RULES if rule in verdicts]
    if disturbing:
        return (f"disturbed by {names}." if names else " ".join(disturbing)) + lost
    if names:
        return f"also running: {names}; no finding calls this a disturbance.{lost}"
    if record.telemetry is None:
        return f"its record has no telemetry.{lost}"
    return f"its record names no other process.{lost}"
