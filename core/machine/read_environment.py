"""Read the machine and the settings that change numbers, for the record.

Runs get published: no host names, user names, serial numbers or paths.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from sysbench.core.machine.devices import describe_node, search_cuda, torch_facts
from sysbench.core.machine.host_sampler import cpu_quota, memory_capacity_bytes
from sysbench.core.machine.interpreter import Interpreter, chosen_python, probe_python
from sysbench.core.machine.nvml import Nvml
from sysbench.core.record.environment import LEFT_OUT
from sysbench.core.storage import text_of

PROGRAM = "sysbench-tui"
PACKAGES = ("torch", "triton", "numpy", "msgspec", "nvtx", "nvidia-ml-py", PROGRAM)

# Variables that change what is measured, or on what.
RELEVANT = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_LAUNCH_BLOCKING|CUDA_MODULE_LOADING"
    r"|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
    r"|PYTORCH_ALLOC_CONF|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_NO_CUDA_MEMORY_CACHING"
    r"|TORCH_LOGS|TORCH_COMPILE_.+|TORCHDYNAMO_.+|TORCHINDUCTOR_.+|TRITON_.+"
    r"|(ONEDNN|DNNL)_.+|ATEN_CPU_CAPABILITY|MKL_ENABLE_INSTRUCTIONS|MKL_CBWR"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS|OMP_PROC_BIND|OMP_PLACES|KMP_.+|MALLOC_.+|LD_PRELOAD"
    r"|THP_MEM_ALLOC_ENABLE|GLIBC_TUNABLES"
    r"|NCCL_(?!COMM_ID|HOSTID).+"
)

UUID = re.compile(r"\b(GPU|MIG)-[0-9A-Fa-f][0-9A-Fa-f/-]*")
"""Serial number of a GPU or of a slice of one, whole or shortened."""
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|AUTH|_KEY")
ADDRESS = re.compile(r"@|\b\d{1,3}(\.\d{1,3}){3}\b|[\w-]+\.[A-Za-z]{2,}:\d+")
"""Host in a setting: an account at one, an IPv4 address, a name with a port."""


def describe_host(python: str = "", ranks: int = 1) -> dict[str, Any]:
    """Return the facts on the host that decide the numbers, without torch's; ready for JSON.

    ``missing`` maps the dotted name of every value that is None to its reason. For another
    interpreter of the workers the group ``python`` has the name of its environment, not its path.
    Of nodes of a job only names are recorded. Raises InterpreterError or ClusterError.
    """
    with Nvml(gpm=False) as nvml:
        nvidia, why_no_nvidia = _nvidia(nvml)
        cuda = search_cuda(nvml, python)
    torch = torch_facts(python)
    other = probe_python(python) if python else None
    facts: dict[str, Any] = {
        "cpu": {
            "model": cpu_model(),
            "cores": psutil.cpu_count(logical=False),
            "threads": psutil.cpu_count(),
            "threads_allowed": len(os.sched_getaffinity(0)),
            "quota": cpu_quota(),
            "governor": _cpu_governor(),
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
        "memory": {
            "total_bytes": psutil.virtual_memory().total,
            "capacity_bytes": memory_capacity_bytes(),
        },
        "system": {
            "os": _os_name(),
            "kernel": platform.release(),
            "python": other.version if other else platform.python_version(),
            "wsl": is_wsl(),
            "container": container(),
        },
        "nvidia": nvidia,
        "torch": {
            "version": torch["version"],
            "cuda": torch["cuda"],
            **({"hip": torch["hip"]} if torch["hip"] else {}),
        },
        **({LEFT_OUT: {"gpu": cuda.why_none}} if cuda.is_left_out else {}),
        **({"python": {"environment": other.environment}} if other else {}),
        "packages": _packages(other),
        "variables": relevant_variables(os.environ),
        **describe_node(ranks=ranks),
    }
    reasons = {
        "cpu.quota": "no limit is set",
        "cpu.governor": "the kernel reports no frequency scaling",
        "system.container": "none detected",
        "nvidia": why_no_nvidia,
        "torch.version": "torch is not installed",
        "torch.cuda": "a build of torch without CUDA" if torch["version"] else "no torch",
    }
    return facts | {
        "missing": {name: reasons.get(name, "not reported") for name in _names_of_none(facts)}
    }


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that change numbers.

    Paths, addresses, serial numbers and the values of secrets are replaced.
    """
    return {
        name: _redact(name, value)
        for name, value in sorted(environ.items())
        if RELEVANT.fullmatch(name)
    }


def _redact(name: str, value: str) -> str:
    if SECRET.search(name):
        return "(hidden)"
    if "/" in value:
        return "(a path)"
    return "(an address)" if ADDRESS.search(value) else UUID.sub(r"\1-(a UUID)", value)


def _packages(other: Interpreter | None) -> dict[str, str]:
    own_versions = {name: version for name in PACKAGES if (version := package_version(name))}
    if other is None:
        return own_versions
    versions = {name: other.packages[name] for name in PACKAGES if name in other.packages}
    return versions | {name: own_versions[name] for name in (PROGRAM,) if name in own_versions}


def workers_package(name: str) -> str | None:
    """Return a version of `PACKAGES` in the workers' interpreter; raises InterpreterError."""
    python = chosen_python()
    return probe_python(python).packages.get(name) if python else package_version(name)


def package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def is_wsl() -> bool:
    """Detect Linux under Windows, which reaches the GPU through Windows' driver."""
    return "microsoft" in platform.release().lower() or Path("/dev/dxg").exists()


def container() -> str | None:
    """Return the kind of container around this process; None if none is detected."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    signs = {
        "KUBERNETES_SERVICE_HOST": "kubernetes",
        "APPTAINER_CONTAINER": "apptainer",
        "SINGULARITY_CONTAINER": "singularity",
    }
    return next((kind for name, kind in signs.items() if name in os.environ), None)


def _nvidia(nvml: Nvml) -> tuple[dict[str, Any] | None, str]:
    if nvml.unavailable:
        return None, nvml.unavailable
    devices = {
        f"device{sample.index}": {
            "name": sample.name,
            "memory_total_bytes": sample.memory_total_bytes,
            "power_limit_watts": sample.power_limit_watts,
            "sm_clock_max_mhz": sample.sm_clock_max_mhz,
            "mig": sample.mig,
            **facts,
        }
        for sample, facts in zip(nvml.read(), nvml.facts(), strict=True)
    }
    return nvml.driver() | devices, ""


def cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", text_of(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def _cpu_governor() -> str | None:
    paths = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ", ".join(sorted({path.read_text().strip() for path in paths})) or None


def _os_name() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _names_of_none(facts: Mapping[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key, value in facts.items():
        if value is None:
            names.append(prefix + key)
        elif isinstance(value, Mapping):
            names += _names_of_none(value, f"{prefix}{key}.")
    return names
