"""Set up torch for the spec, set limits, run the pass.

Importing this module imports torch, so a process reports its first event before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from sysbench.core.machine.devices import cpu_flags, onednn_instructions
from sysbench.core.machine.peaks import TF32
from sysbench.core.record.environment import CHANGED_SETTINGS
from sysbench.core.record.events import DeviceDescribed
from sysbench.core.runs.worker_process import Job, Report
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.failures import OomObserver, report_failure
from sysbench.core.worker.imports import Measure
from sysbench.core.worker.limits import limit_memory, set_threads
from sysbench.core.worker.workloads.make_workload import set_precision

USUAL = {
    "deterministic_algorithms": False,
    "cudnn_deterministic": False,
    "cudnn_benchmark": False,
    "anomaly_mode": False,
    "default_dtype": "float32",
    "attention_kernels_off": "",
}
"""Torch's own values of settings that no spec has; a record names only others."""


def prepare_torch(spec: RunSpec) -> dict[str, Any]:
    """Set threads, precision and device; return the settings in force by name."""
    set_threads(spec)
    set_precision(spec)
    if spec.on_cuda:
        torch.cuda.set_device(torch.device(spec.device))
    return settings_in_force()


def settings_in_force() -> dict[str, Any]:
    """Return torch's settings that change results or times; None for what torch cannot tell."""
    backends: Any = torch.backends
    readers: dict[str, Callable[[], Any]] = {
        "float32_matmul_precision": _matmul_precision,
        "allow_tf32": lambda: _is_tf32(backends.cuda.matmul, backends.cuda.matmul),
        "cudnn_allow_tf32": lambda: _is_tf32(backends.cudnn, backends.cudnn.conv),
        "threads": torch.get_num_threads,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "cudnn_deterministic": lambda: backends.cudnn.deterministic,
        "cudnn_benchmark": lambda: backends.cudnn.benchmark,
        "anomaly_mode": torch.is_anomaly_enabled,
        "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        "attention_kernels_off": _attention_kernels_off,
    }
    return {name: _value_of(read) for name, read in readers.items()}


def _value_of(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (AttributeError, RuntimeError):
        return None


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # devices differ: the code has set their ``fp32_precision``
        backends: Any = torch.backends
        cuda, cpu = backends.cuda.matmul, backends.mkldnn.matmul
        return f"{cuda.fp32_precision} on CUDA, {cpu.fp32_precision} on the CPU"


def _is_tf32(backend: Any, newer: Any) -> bool:
    """Read ``allow_tf32``, or the newer ``fp32_precision`` if the code has set that one."""
    try:
        return bool(backend.allow_tf32)
    except (AttributeError, RuntimeError):
        return bool(newer.fp32_precision == TF32)


def _attention_kernels_off() -> str:
    cuda: Any = torch.backends.cuda
    enabled = {
        "cudnn": cuda.cudnn_sdp_enabled(),
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return ", ".join(name for name, is_on in enabled.items() if not is_on)


def report_changed_settings(asked: dict[str, Any], report: Report) -> None:
    """Report the settings that the measured code has changed, with the value that was asked for."""
    now = settings_in_force()
    changed = {name: value for name, value in now.items() if value != asked[name]}
    if changed:
        both = {name: {"asked": asked[name], "in_force": value} for name, value in changed.items()}
        report(DeviceDescribed(facts={"settings": changed, CHANGED_SETTINGS: both}))


def describe_torch(spec: RunSpec) -> dict[str, Any]:
    """Collect versions of torch and facts about the device.

    The group ``missing`` has the reason for each absent fact.
    """
    facts: dict[str, Any] = {"version": str(torch.__version__), "cuda": torch.version.cuda}
    if spec.on_cuda:
        device = {"device": _describe_cuda(torch.device(spec.device))}
        try:
            facts["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            # cuDNN of another version than torch was built for; runs that need it report that.
            return {"torch": facts, **device, "missing": {"torch.cudnn": str(error)}}
        return {"torch": facts, **device}
    facts["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    facts["mkldnn"] = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    instructions = onednn_instructions(cpu_flags(), os.environ)
    if facts["mkldnn"] and instructions:
        facts["onednn_instructions"] = instructions
    return {"torch": facts}


def is_simulated(gpu_name: str) -> bool:
    """Whether it computes nothing: the name of the tests' null GPU ends with this mark."""
    return gpu_name.endswith("(null GPU)")


def _describe_cuda(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_total_bytes": properties.total_memory,
        **_memory_speed(properties),
        **({"is_simulated": True} if is_simulated(properties.name) else {}),
    }


def _memory_speed(properties: Any) -> dict[str, int]:
    """Memory clock (MHz) and bus width (bits); empty if torch reports neither."""
    clock_khz = getattr(properties, "memory_clock_rate", 0)
    bits = getattr(properties, "memory_bus_width", 0)
    if not clock_khz or not bits:
        return {}
    return {"memory_clock_max_mhz": clock_khz // 1000, "memory_bus_bits": bits}


def run_pass(job: Job, report: Report, load: Callable[[], Measure]) -> bool:
    """Run a pass in this process; return False if it failed, which is reported.

    Args:
        load: Called before the memory limit is set, so that its imports do not count.
    """
    observer = asked = None
    try:
        asked = prepare_torch(job.spec)
        settings = {name: value for name, value in asked.items() if value != USUAL.get(name)}
        report(DeviceDescribed(facts={**describe_torch(job.spec), "settings": settings}))
        measure = load()
        limit_memory(job.spec)
        observer = OomObserver(job.spec)
        measure(job, report)
    except Exception as error:
        report_failure(error, job.spec, report, observer)
        return False
    finally:
        if asked is not None:
            report_changed_settings(asked, report)
    return True
