"""The doctor's checks of NVIDIA GPUs and their driver."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from ...formatting import format_bytes, percent
from ..peaks import find_gpu
from ..telemetry.nvml import MIN_GPM_NS, Nvml
from ..telemetry.sample import DeviceSample
from .check import Check

DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
OWN_STATUS = Path("/proc/self/status")
SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = 2**30
"""NCCL's documentation asks for 1 GiB in containers, which have 64 MiB unless told otherwise."""
SYS_ADMIN, PERFMON = 21, 38
"""Numbers of the rights in capabilities(7). By NVIDIA's page on ERR_NVGPUCTRPERM the driver asks
for the first, and from R565 on takes the second as well."""
PERFMON_DRIVER = 565
ACTIVITY = ("sm_active", "tensor_active", "dram_active")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Answers of NVML, read twice so that there is an activity between the readings."""

    unavailable: str
    cuda: str | None = None
    driver: str | None = None
    devices: list[DeviceSample] = field(default_factory=list)


def survey() -> Survey:
    """Query NVML; takes a tenth of a second where there is a GPU."""
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
    """GPU and driver; and if there is one, fields, activity, tenants and counters."""
    if survey.unavailable:
        return [
            Check(
                name="GPU",
                status="missing",
                found=survey.unavailable,
                costs="runs measure the CPU, with operators in place of kernels",
                remedy="install NVIDIA's driver; for a container pass the GPU on (--gpus all)",
            )
        ]
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
    if any(device.lost for device in survey.devices):
        return Check(
            name="GPU",
            status="warning",
            found=text,
            costs="a lost GPU runs nothing",
            remedy="reboot; should it happen again, look for Xid errors in the kernel's log",
        )
    return Check(name="GPU", status="ok", found=text)


def check_peaks(names: list[str]) -> Check:
    """Check that the peak rates of GPUs with these names are known."""
    unknown = sorted({name for name in names if find_gpu(name) is None})
    if not unknown:
        return Check(name="peak rates", status="ok", found="those of the data sheet are known")
    return Check(
        name="peak rates",
        status="warning",
        found=f"none known for {', '.join(unknown)}",
        costs="MFU and roofs are n/a until they are measured",
        remedy="`sysbench-tui doctor --measure` measures them; or give a run `--peak` in TFLOP/s",
    )


def _fields(devices: list[DeviceSample]) -> Check:
    absent = sorted(
        {
            name
            for device in devices
            for name in device.__struct_fields__
            if name not in ACTIVITY and getattr(device, name) is None
        }
    )
    if not absent:
        return Check(name="telemetry", status="ok", found="every field answers")
    return Check(
        name="telemetry",
        status="warning",
        found=f"n/a: {', '.join(absent)}",
        costs="these stay n/a in the strip and in records",
        remedy="a matter of the GPU, MIG mode or the driver; a newer driver may say more",
    )


def _activity(devices: list[DeviceSample]) -> Check:
    if any(getattr(device, name) is not None for device in devices for name in ACTIVITY):
        return Check(name="activity counters", status="ok", found="SM, tensor cores, memory (GPM)")
    return Check(
        name="activity counters",
        status="missing",
        found="GPM does not answer",
        costs="utilization says only that some kernel ran, not how full the GPU was",
        remedy="Hopper or later, outside MIG, has them; on others the trace pass tells more",
    )


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
        f"GPU {device.index} is {percent(device.utilization, 0)} busy with no process in sight"
        for device in devices
        if device.utilization and not device.processes
    ]
    if not present and not unseen:
        return Check(name="other tenants", status="ok", found="none in sight")
    return Check(
        name="other tenants",
        status="warning",
        found="; ".join(present + unseen),
        costs="they take memory and time from what you measure",
        remedy="end them, or choose another GPU with device=cuda:N",
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def may_profile(status: str, driver: str | None) -> bool:
    """Whether the driver takes this process for an administrator: root in a container is none
    unless the container was given the right.

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
    name = "hardware counters"
    rows = dict(line.split(":", 1) for line in parameters.splitlines() if ":" in line)
    restricted = rows.get("RmProfilingAdminOnly", "").strip()
    if restricted == "0" or is_admin:
        return Check(name=name, status="ok", found="open to this user")
    return Check(
        name=name,
        status="warning",
        found="for administrators only (CAP_SYS_ADMIN)"
        if restricted
        else "the driver does not say who may read them",
        costs="`nsys --gpu-metrics-devices` and Nsight Compute are refused; traces work",
        remedy="load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run those as root, "
        "in a container started with --cap-add=SYS_ADMIN",
    )


def _shared_memory_bytes() -> int | None:
    try:
        return shutil.disk_usage(SHARED_MEMORY).total
    except OSError:
        return None


def check_shared_memory(total_bytes: int | None) -> Check:
    """Check that NCCL has room to pass data between the ranks of a run.

    Args:
        total_bytes: Size of ``/dev/shm``; None where there is none.
    """
    name = "shared memory"
    if total_bytes is not None and total_bytes >= LEAST_SHARED_BYTES:
        return Check(name=name, status="ok", found=f"{format_bytes(total_bytes)} in /dev/shm")
    return Check(
        name=name,
        status="warning",
        found="no /dev/shm" if total_bytes is None else f"{format_bytes(total_bytes)} in /dev/shm",
        costs="runs on several GPUs can end in NCCL, by SIGBUS or with an unhandled system error",
        remedy="give the container more: --shm-size=1g, or --ipc=host",
    )
