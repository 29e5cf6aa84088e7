"""All checks of ``doctor``: the state of the machine, and the cost of each missing part."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sysbench.core.errors import InterpreterError
from sysbench.core.formatting import format_bytes, percent
from sysbench.core.machine.children import PYTHON_VARIABLE
from sysbench.core.machine.devices import search_cuda, torch_facts
from sysbench.core.machine.doctor_check import Check, row
from sysbench.core.machine.host_sampler import memory_capacity_bytes
from sysbench.core.machine.interpreter import OPTION, chosen_python, probe_python, why_not_ready
from sysbench.core.machine.nvml import (
    MIN_GPM_NS,
    NO_GPU_PERMITTED,
    SINCE_LOADED,
    UNCORRECTED,
    WHY_CLOSED,
    Nvml,
    NvmlGpu,
)
from sysbench.core.machine.peaks import find_gpu
from sysbench.core.machine.read_environment import is_wsl, workers_package
from sysbench.core.machine.sample import DeviceSample
from sysbench.core.storage import home, text_of

LITTLE_DISK_BYTES = 2 * 2**30
LITTLE_MEMORY_BYTES = 2 * 2**30
"""Torch takes 0.2 to 0.6 GiB of this in a worker before it builds a model."""


def examine() -> list[Check]:
    """Run all checks, the most important first. They change nothing and do not import torch."""
    devices = survey()
    nsys = nsys_version()
    python = check_python()
    # The other checks need an interpreter that can run workers.
    is_usable = python is None or python.status == "ok"
    checks = [
        *gpu_checks(devices),
        *([python] if python else []),
        *([check_torch(torch_facts(), devices)] if is_usable else []),
        check_nsys(nsys),
        *([check_nvtx(nsys)] if is_usable else []),
        check_compiler(os.environ),
        _memory(),
        _load(),
        check_terminal(os.environ, _terminal_size()),
        check_home(home()),
    ]
    return [*checks, row("WSL", "Linux under Windows", "WSL")] if is_wsl() else checks


def _memory() -> Check:
    capacity = memory_capacity_bytes()
    free = min(psutil.virtual_memory().available, capacity)
    text = f"{format_bytes(free)} free of {format_bytes(capacity)}"
    return row("host memory", text, "" if free >= LITTLE_MEMORY_BYTES else "little memory")


def _load() -> Check:
    load, threads = os.getloadavg()[0], len(os.sched_getaffinity(0))
    text = f"{load:.1f} over the last minute, {threads} processors available"
    return row("load", text, "" if load < threads / 2 else "busy")


def _terminal_size() -> tuple[int, int] | None:
    try:
        return os.get_terminal_size(1)
    except OSError:
        return None


def check_terminal(environ: Mapping[str, str], size: tuple[int, int] | None) -> Check:
    """Check whether the terminal can show the screens, and how well."""
    term = environ.get("TERM", "")
    locale = next((environ[k] for k in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(k)), "")
    is_utf8 = "utf8" in locale.lower().replace("-", "")
    has_colours = environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    signs = [
        term or "TERM is not set",
        f"{size[0]}×{size[1]}" if size else "no terminal on standard output",
        "24-bit colour" if has_colours else "",
        "UTF-8" if is_utf8 else f"locale {locale or 'not set'}",
        "NO_COLOR" if environ.get("NO_COLOR") else "",
        "tmux" if environ.get("TMUX") else "",
        "over SSH" if environ.get("SSH_CONNECTION") else "",
    ]
    troubles = []
    if size is None or term in ("", "dumb"):
        troubles.append(("the screens do not work, all commands do", "run it in a terminal"))
    if size and (size[0] < 80 or size[1] < 24):
        troubles.append(("screens are cut off below 80×24", "enlarge the terminal"))
    if not is_utf8:
        troubles.append(("plots use plain ASCII", "set LANG=C.UTF-8"))
    if not has_colours and not environ.get("NO_COLOR"):
        if environ.get("TMUX"):
            troubles.append(
                ("tmux supports 256 colours only", "set COLORTERM=truecolor inside tmux")
            )
        elif environ.get("SSH_CONNECTION"):
            remedy = "SendEnv COLORTERM in ~/.ssh/config, AcceptEnv COLORTERM on this machine"
            troubles.append(("256 colours or fewer: COLORTERM was not forwarded", remedy))
    return Check(
        name="terminal",
        status="warning" if troubles else "ok",
        found=", ".join(filter(None, signs)),
        costs="; ".join(cost for cost, _ in troubles),
        remedy="; ".join(remedy for _, remedy in troubles),
    )


def check_home(path: Path) -> Check:
    """Check that runs can be stored: a writable folder, and free space on its disk."""
    nearest = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return row("home", f"{path} cannot be written", "home not writable")
    free = shutil.disk_usage(nearest).free
    text = f"{path}, {format_bytes(free)} free"
    return row("home", text, "" if free >= LITTLE_DISK_BYTES else "little disk")


BROKEN_NVTX = (0, 2, 12)
"""From this version on, nsys of 2022 and 2023 records no ranges of the nvtx package."""


def check_python() -> Check | None:
    """Check the interpreter of the workers; None if it is this program's own."""
    name, another = "workers' Python", f"name another by {OPTION} or {PYTHON_VARIABLE}"
    costs = "nothing can be measured; closed-form estimates and old runs work"
    try:
        python = chosen_python()
        if not python:
            return None
        if why := why_not_ready(python):
            text = f"{python}: {why}"
            remedy = f"fix that, or {another}"
            return Check(name=name, status="missing", found=text, costs=costs, remedy=remedy)
        return row(name, f"{python}, {probe_python(python).version}")
    except InterpreterError as error:
        text = f"{error.value}: {error.allowed}"
        return Check(name=name, status="missing", found=text, costs=costs, remedy=another)


def check_torch(torch: Mapping[str, str | None], gpu: Survey) -> Check:
    version, cuda = torch["version"], torch["cuda"]
    if version is None:
        return row("torch", "not installed", "no torch")
    if cuda is None and gpu.unavailable:
        return row("torch", f"{version}, for the CPU")
    if cuda is None:
        return row("torch", f"{version}, built without CUDA", "CPU build")
    text = f"{version}, for CUDA {cuda}"
    # A driver runs every minor version of the major CUDA versions that it supports.
    if gpu.cuda and int(gpu.cuda.split(".")[0]) < int(cuda.split(".")[0]):
        return row("torch", f"{text}; the driver knows CUDA up to {gpu.cuda}", "old driver")
    return row("torch", text)


def nsys_version() -> str | None:
    """Return the version of nsys on PATH; empty if it prints none, None if there is no nsys."""
    command = shutil.which("nsys")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "--version"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r"\d+(\.\d+)+", done.stdout)
    return match[0] if match else ""


def check_nsys(version: str | None) -> Check:
    if version is None:
        return row("nsys", "not on PATH", "no nsys")
    if not version:
        return row("nsys", "on PATH, but it does not report its version", "silent nsys")
    return row("nsys", version)


def check_nvtx(nsys: str | None) -> Check:
    """Check that a profiler would receive the nvtx package's ranges."""
    version = workers_package("nvtx")
    if version is None:
        return row("nvtx", "not installed", "no nvtx")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if nsys and nsys.startswith(("2022.", "2023.")) and numbers >= BROKEN_NVTX:
        return row("nvtx", f"{version}, which nsys {nsys} cannot record", "nvtx of old nsys")
    if "NVTX_INJECTION64_PATH" in os.environ and _is_silent():
        text = f"{version}, but the profiler around this process does not record it"
        return row("nvtx", text, "silent nvtx")
    return row("nvtx", version)


def _is_silent() -> bool:
    """Return whether nvtx reaches no profiler, though one has injected its library."""
    import nvtx  # lazy: optional

    return type(nvtx.get_domain("sysbench")).__name__ == "DummyDomain"


def _headers() -> str:
    own_headers = sysconfig.get_path("include")
    try:
        python = chosen_python()
        return probe_python(python).headers or own_headers if python else own_headers
    except InterpreterError:  # `check_python` reports it
        return own_headers


def check_compiler(environ: Mapping[str, str]) -> Check:
    """Check that torch.compile can build: C for Triton's launchers, C++ for the CPU's kernels."""
    # Triton takes $CC, gcc or clang; inductor takes $CXX or g++.
    needed = {
        "C compiler": environ.get("CC", "").split()[:1] or ["gcc", "clang"],
        "C++ compiler": environ.get("CXX", "").split()[:1] or ["g++"],
    }
    present = {
        kind: next(
            (name for name in commands if shutil.which(name, path=environ.get("PATH"))), None
        )
        for kind, commands in needed.items()
    }
    absent = [kind for kind, command in present.items() if command is None]
    if not (Path(_headers()) / "Python.h").is_file():
        absent.append("Python.h")
    if absent:
        return row("compiler", f"no {', no '.join(absent)}", "no compiler")
    return row("compiler", ", ".join(map(str, present.values())))


DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
OWN_STATUS = Path("/proc/self/status")
MPS_CONTROL = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control")
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
"""nvmlComputeMode_t of nvml.h."""
PROHIBITED, EXCLUSIVE = 2, (1, 3)
DEFECTS = {
    WHY_CLOSED["NVML_ERROR_LIBRARY_NOT_FOUND"]: "no driver",
    WHY_CLOSED["NVML_ERROR_DRIVER_NOT_LOADED"]: "unloaded driver",
    WHY_CLOSED["NVML_ERROR_LIB_RM_VERSION_MISMATCH"]: "updated driver",
    WHY_CLOSED["NVML_ERROR_NO_PERMISSION"]: "closed driver",
    WHY_CLOSED["NVML_ERROR_GPU_NOT_FOUND"]: "no GPU",
    NO_GPU_PERMITTED: "closed driver",
}
"""Defect by the reason for which NVML is unavailable."""
SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_BYTES = 2**30
"""NCCL's documentation asks for 1 GiB in containers, which have 64 MiB by default."""
SYS_ADMIN, PERFMON = 21, 38
"""Capability numbers of capabilities(7). By NVIDIA's page on ERR_NVGPUCTRPERM the driver requires
the first; R565 and later accept the second as well.
"""
PERFMON_DRIVER = 565
ACTIVITY = ("sm_active", "tensor_active", "dram_active")


@dataclass(frozen=True, slots=True)
class Modes:
    """State of a GPU that decides whether it measures, and how steadily; None if not reported.

    ``compute`` is a key of `COMPUTE_MODES`, ``errors`` are uncorrected ones since the driver was
    loaded. Rows of a damaged memory wait for a reset, or could not be replaced.
    """

    compute: int | None
    is_persistent: bool | None
    has_ecc: bool | None
    errors: int | None
    is_damaged: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """NVML's answers, read twice so that activity between the readings is known.

    ``seen_by_torch`` counts the devices that torch finds though NVML is unavailable.
    """

    unavailable: str
    cuda: str | None = None
    driver: str | None = None
    devices: list[DeviceSample] = field(default_factory=list)
    modes: list[Modes] = field(default_factory=list)
    seen_by_torch: int = 0


def survey() -> Survey:
    with Nvml() as nvml:
        if nvml.unavailable:
            found = search_cuda(nvml)
            return Survey(unavailable=nvml.unavailable, seen_by_torch=len(found.devices))
        nvml.read()
        time.sleep(MIN_GPM_NS / 1e9)
        versions = nvml.driver()
        return Survey(
            unavailable="",
            cuda=versions["cuda"],
            driver=versions["driver"],
            devices=nvml.read(slow=False),
            modes=[_modes(gpu) for gpu in nvml.gpus],
        )


def _modes(gpu: NvmlGpu) -> Modes:
    ecc = gpu.query("nvmlDeviceGetEccMode")
    remapped = gpu.query("nvmlDeviceGetRemappedRows")
    persistence = gpu.query("nvmlDeviceGetPersistenceMode")
    return Modes(
        compute=gpu.query("nvmlDeviceGetComputeMode"),
        is_persistent=None if persistence is None else bool(persistence),
        has_ecc=None if ecc is None else bool(ecc[0]),
        errors=gpu.query("nvmlDeviceGetTotalEccErrors", UNCORRECTED, SINCE_LOADED),
        is_damaged=None if remapped is None else any(remapped[2:]),
    )


def gpu_checks(survey: Survey) -> list[Check]:
    """Check GPU and driver and, if there is a GPU, fields, activity, processes and counters."""
    if survey.seen_by_torch:
        number = "a GPU" if survey.seen_by_torch == 1 else f"{survey.seen_by_torch} GPUs"
        return [row("GPU", f"torch finds {number}; {survey.unavailable}", "no NVML")]
    if survey.unavailable:
        return [row("GPU", survey.unavailable, DEFECTS.get(survey.unavailable, "silent driver"))]
    answering = [device for device in survey.devices if not device.lost]
    return [
        _gpus(survey),
        check_modes(survey.modes, has_mps=MPS_CONTROL.exists()),
        check_peaks([device.name for device in answering]),
        _fields(answering),
        _activity(answering),
        _tenants(answering),
        check_counters(
            text_of(DRIVER_PARAMETERS),
            is_admin=may_profile(text_of(OWN_STATUS), survey.driver),
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


def check_modes(modes: Sequence[Modes], *, has_mps: bool) -> Check:
    """Check compute mode, persistence, ECC and memory of all GPUs, and NVIDIA's MPS."""
    rows = []
    for index, mode in enumerate(modes):
        facts = {
            "compute mode": COMPUTE_MODES.get(mode.compute) if mode.compute is not None else None,
            "persistence": mode.is_persistent,
            "ECC": mode.has_ecc,
            "uncorrected errors": mode.errors,
        }
        words = [f"{name} {_word(value)}" for name, value in facts.items() if value is not None]
        words += ["damaged rows"] if mode.is_damaged else []
        rows.append(f"{index}: {', '.join(words) or 'not reported'}")
    computes = {mode.compute for mode in modes}
    is_damaged = any(mode.is_damaged or mode.errors for mode in modes)
    defects = {
        "prohibited": PROHIBITED in computes,
        "damaged memory": is_damaged,
        "MPS": has_mps,
        "exclusive": not computes.isdisjoint(EXCLUSIVE),
    }
    defect = next((name for name, is_so in defects.items() if is_so), "")
    return row("GPU modes", "; ".join([*rows, *(["MPS runs"] if has_mps else [])]), defect)


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


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


def may_profile(status: str, driver: str | None) -> bool:
    """Return whether the driver treats this process as an administrator.

    Root in a container only is one if the container has the capability. ``status`` is the text of
    ``/proc/self/status``, ``driver`` a version such as ``580.95.05``.
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
    text = "no /dev/shm" if total_bytes is None else f"{format_bytes(total_bytes)} in /dev/shm"
    is_enough = total_bytes is not None and total_bytes >= MIN_SHARED_BYTES
    return row("shared memory", text, "" if is_enough else "little shared memory")
