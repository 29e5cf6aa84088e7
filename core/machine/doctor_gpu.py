"""The doctor's checks of NVIDIA GPUs and their driver."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from sysbench.core.formatting import format_bytes, percent
from sysbench.core.machine.doctor_check import Check, row
from sysbench.core.machine.nvml import MIN_GPM_NS, Nvml
from sysbench.core.machine.peaks import find_gpu
from sysbench.core.machine.sample import DeviceSample

DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
OWN_STATUS = Path("/proc/self/status")
SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_BYTES = 2**30
"""NCCL's documentation asks for 1 GiB in containers, which have 64 MiB by default."""
SYS_ADMIN, PERFMON = 21, 38
"""Capability numbers of capabilities(7). By NVIDIA's page on ERR_NVGPUCTRPERM the driver requires
the first; R565 and later accept the second as well.
"""
PERFMON_DRIVER = 565
ACTIVITY = ("sm_active", "tensor_active", "dram_active")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """NVML's answers, read twice so that activity between the readings is known."""

    unavailable: str
    cuda: str | None = None
    driver: str | None = None
    devices: list[DeviceSample] = field(default_factory=list)


def survey() -> Survey:
    with Nvml() as nvml:
        if nvml.unavailable:
            return Survey(unavailable=nvml.unavailable)
        nvml.read()
        time.sleep(MIN_GPM_NS / 1e9)
        versions = nvml.driver()
        return Survey(
            unavailable="",
            cuda=versions["cuda"],
            driver=versions["driver"],
            devices=nvml.read(slow=False),
        )


def checks(survey: Survey) -> list[Check]:
    """Check GPU and driver and, if there is a GPU, fields, activity, processes and counters."""
    if survey.unavailable:
        return [row("GPU", survey.unavailable, "no driver")]
    answering = [device for device in survey.devices if not device.lost]
    return [
        _gpus(survey),
        check_peaks([device.name for device in answering]),
        _fields(answering),
        _activity(answering),
        _tenants(answering),
        check_counters(
            _text_of(DRIVER_PARAMETERS),
            is_admin=may_profile(_text_of(OWN_STATUS), survey.driver),
        ),
        *([] if len(answering) < 2 else [check_shared_memory(_shared_memory_bytes())]),
    ]


def _gpus(survey: Survey) -> Check:
    names = [
        f"{device.index} {device.name}"
        + (" (lost)" if device.lost else " (MIG)" if device.mig else "")
        for device in survey.devices
    ]
    text = f"{', '.join(names)}; driver {survey.driver or 'n/a'}, CUDA up to {survey.cuda or 'n/a'}"
    is_lost = any(device.lost for device in survey.devices)
    return row("GPU", text, "lost GPU" if is_lost else "")


def check_peaks(names: list[str]) -> Check:
    unknown = sorted({name for name in names if find_gpu(name) is None})
    if unknown:
        return row("peak rates", f"none known for {', '.join(unknown)}", "unknown peaks")
    return row("peak rates", "those of the data sheet are known")


def _fields(devices: list[DeviceSample]) -> Check:
    absent = sorted(
        {
            name
            for device in devices
            for name in device.__struct_fields__
            if name not in ACTIVITY and getattr(device, name) is None
        }
    )
    if absent:
        return row("telemetry", f"n/a: {', '.join(absent)}", "absent fields")
    return row("telemetry", "all fields available")


def _activity(devices: list[DeviceSample]) -> Check:
    if any(getattr(device, name) is not None for device in devices for name in ACTIVITY):
        return row("activity counters", "SM, tensor cores, memory (GPM)")
    return row("activity counters", "GPM does not respond", "no GPM")


def _tenants(devices: list[DeviceSample]) -> Check:
    present = [
        f"{process.name} (pid {process.pid}) holds "
        f"{'n/a' if process.memory_bytes is None else format_bytes(process.memory_bytes)}"
        f" on GPU {device.index}"
        for device in devices
        for process in device.processes or ()
    ]
    # A container often sees no processes while the GPU works for others.
    unseen = [
        f"GPU {device.index} is {percent(device.utilization, 0)} busy without a visible process"
        for device in devices
        if device.utilization and not device.processes
    ]
    if present or unseen:
        return row("other tenants", "; ".join(present + unseen), "tenants")
    return row("other tenants", "none visible")


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def may_profile(status: str, driver: str | None) -> bool:
    """Return whether the driver treats this process as an administrator.

    Root in a container only is one if the container has the capability.

    Args:
        status: Text of ``/proc/self/status``.
        driver: Version of the driver, such as ``580.95.05``.
    """
    effective = re.search(r"^CapEff:\s*([0-9a-fA-F]+)$", status, re.MULTILINE)
    rights = int(effective[1], 16) if effective else 0
    major = re.match(r"\d+", driver or "")
    takes_perfmon = major is not None and int(major[0]) >= PERFMON_DRIVER
    return bool(rights >> SYS_ADMIN & 1 or (takes_perfmon and rights >> PERFMON & 1))


def check_counters(parameters: str, *, is_admin: bool) -> Check:
    """Check that this process may read hardware counters, from the driver's parameter file."""
    rows = dict(line.split(":", 1) for line in parameters.splitlines() if ":" in line)
    restricted = rows.get("RmProfilingAdminOnly", "").strip()
    if restricted == "0" or is_admin:
        return row("hardware counters", "available to this user")
    text = "for administrators only (CAP_SYS_ADMIN)"
    if not restricted:
        text = "the driver does not report who may read them"
    return row("hardware counters", text, "closed counters")


def _shared_memory_bytes() -> int | None:
    try:
        return shutil.disk_usage(SHARED_MEMORY).total
    except OSError:
        return None


def check_shared_memory(total_bytes: int | None) -> Check:
    """Check that shared memory suffices for NCCL.

    Args:
        total_bytes: Size of ``/dev/shm``; None if there is none.
    """
    text = "no /dev/shm" if total_bytes is None else f"{format_bytes(total_bytes)} in /dev/shm"
    is_enough = total_bytes is not None and total_bytes >= MIN_SHARED_BYTES
    return row("shared memory", text, "" if is_enough else "little shared memory")
