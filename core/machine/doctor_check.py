"""Rows of the doctor, with the cost of each defect."""

from __future__ import annotations

from typing import Literal

import msgspec

from sysbench.core.machine.children import PYTHON_VARIABLE
from sysbench.core.machine.interpreter import OPTION
from sysbench.core.storage import HOME_VARIABLE


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, the cost of its defect and the remedy; the last two are empty if it is ok."""

    name: str
    status: Literal["ok", "warning", "missing"]
    found: str
    costs: str = ""
    remedy: str = ""


ON_CPU = "runs measure the CPU: operators instead of kernels"
WITHOUT_DRIVER = {
    "no driver": "install NVIDIA's driver; for a container pass the GPU on (--gpus all)",
    "no GPU": "for a container pass the GPU on (--gpus all); else see `lspci` and the kernel log",
    "unloaded driver": "load it: `sudo modprobe nvidia`; if that fails, see the kernel log",
    "updated driver": "reboot, or unload and load the driver's modules",
    "closed driver": "let this user open /dev/nvidia*; for a container pass the GPU on "
    "(--gpus all)",
    "silent driver": "look for NVRM and Xid lines in the kernel log; reboot, or install the driver "
    "again",
}
"""Remedies of what keeps a GPU from being used at all."""
MISSING = {
    **{defect: (ON_CPU, remedy) for defect, remedy in WITHOUT_DRIVER.items()},
    "no GPM": (
        "utilization shows only that a kernel ran, not how full the GPU was",
        "only Hopper and later have them, outside MIG; elsewhere use the trace pass",
    ),
    "no torch": (
        "nothing can be measured; estimates and old runs work",
        "install torch 2.9 or later into the environment of sysbench-tui, or name a Python that "
        f"has it by {OPTION} or {PYTHON_VARIABLE}",
    ),
    "no nsys": (
        "no timeline of the whole system; the trace pass works without it",
        "install nsight-systems-cli (NVIDIA) or nsight-systems (Debian non-free)",
    ),
    "no nvtx": (
        "ranges come from torch.cuda.nvtx, which CPU builds of torch lack",
        "install the nvtx package",
    ),
    "no compiler": (
        "torch.compile with inductor fails; compile=off and the eager backends work",
        "install gcc, g++ and Python's development files",
    ),
    "home not writable": (
        "runs cannot be stored, so none can start",
        f"point {HOME_VARIABLE} to a writable folder",
    ),
}
WARNINGS = {
    "no NVML": (
        "runs measure the GPU; its clocks, power and other processes are n/a",
        "for a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility; AMD's GPUs have none",
    ),
    "prohibited": (
        "CUDA starts on no GPU in this mode: runs there fail",
        "`sudo nvidia-smi -c DEFAULT`",
    ),
    "exclusive": (
        "only one process at a time can use the GPU: `ab` cannot measure pairs",
        "`sudo nvidia-smi -c DEFAULT`",
    ),
    "damaged memory": (
        "rows of its memory are broken or wait for a reset: runs can fail, or be wrong",
        "reset the GPU or reboot; if it happens again, have it replaced",
    ),
    "MPS": (
        "kernels of several programs run side by side: times depend on the others",
        "stop it to measure: `echo quit | nvidia-cuda-mps-control`",
    ),
    "lost GPU": (
        "a lost GPU runs nothing",
        "reboot; if it happens again, look for Xid errors in the kernel log",
    ),
    "unknown peaks": (
        "MFU and roofs are n/a until they are measured",
        "`sysbench-tui doctor --measure` measures them; or give a run `--peak` in TFLOP/s",
    ),
    "absent fields": (
        "these are n/a on the screens and in records",
        "depends on the GPU, MIG mode and driver; a newer driver may report more",
    ),
    "tenants": (
        "they use memory and time of the measured device",
        "end them, or choose another GPU with device=cuda:N",
    ),
    "closed counters": (
        "`nsys --gpu-metrics-devices` and Nsight Compute are refused; traces work",
        "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run them as root, "
        "in a container started with --cap-add=SYS_ADMIN",
    ),
    "little shared memory": (
        "NCCL can fail in runs on several GPUs (SIGBUS, unhandled system error)",
        "give the container more: --shm-size=1g, or --ipc=host",
    ),
    "CPU build": (
        "the GPU here is not used: runs measure the CPU",
        "install a build of torch with CUDA",
    ),
    "old driver": (
        "CUDA does not start: runs on the GPU fail",
        "update the driver, or install torch for an older CUDA",
    ),
    "silent nsys": (
        "the exported nsys command may not work",
        "run `nsys --version` and fix the error",
    ),
    "nvtx of old nsys": (
        "ranges come from torch.cuda.nvtx instead",
        "install nsys 2025.3 or later, or nvtx 0.2.11",
    ),
    "silent nvtx": (
        "ranges come from torch.cuda.nvtx instead",
        "install a newer nsys, or nvtx 0.2.11",
    ),
    "little memory": (
        "a worker may be killed while it loads torch or writes a trace",
        "end other programs, or ask the scheduler for more memory",
    ),
    "busy": (
        "steps on the CPU and launches to the GPU wait for a processor: times vary",
        "end other work on this machine, or wait for it",
    ),
    "little disk": (
        "a trace or a memory snapshot of a large model can fill the disk",
        f"free some space, or point {HOME_VARIABLE} to another disk",
    ),
    "WSL": (
        "NVML hides processes and some counters; Windows shares the GPU and its memory",
        "measure on native Linux if small differences matter",
    ),
}


def row(name: str, found: str, defect: str = "") -> Check:
    """Return a row; ``defect`` is a key of `MISSING` or `WARNINGS`, empty if it is ok."""
    if not defect:
        return Check(name=name, status="ok", found=found)
    costs, remedy = MISSING.get(defect) or WARNINGS[defect]
    status: Literal["missing", "warning"] = "missing" if defect in MISSING else "warning"
    return Check(name=name, status=status, found=found, costs=costs, remedy=remedy)
