"""The devices, processes and host at one instant. Null means "n/a", never zero."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import msgspec

MIN_INTERVAL_SECONDS = 0.5
"""Minimum time between two samples, and the default."""


UNSEEN = "unseen process"
"""Name of a process that is hidden from this one, for example inside a container."""


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """A process that computes on a device; ``memory_bytes`` is null if NVML hides it."""

    pid: int
    name: str
    memory_bytes: int | None = None


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one instant.

    Ratios are 0 to 1. ``utilization`` is NVML's: the share of time in which any kernel ran, not how
    full the GPU was; ``sm_active``, ``tensor_active`` and ``dram_active`` (GPM, Hopper and later)
    measure the latter. ``memory_total_bytes`` leaves out what the driver reserves, so that free is
    total minus used. ``energy_joules`` counts since the driver was loaded. ``clock_reasons`` are
    words such as ``power cap``. ``lost`` is true if the device stopped answering; its other fields
    are then null.
    """

    index: int
    name: str
    uuid: str = ""
    lost: bool = False
    utilization: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    clock_reasons: list[str] | None = None
    processes: list[ProcessUse] | None = None
    mig: bool | None = None


class HostSample(msgspec.Struct, frozen=True, kw_only=True):
    """The host at one instant; ``cpu`` is the share of all logical cores in use.

    ``energy_joules`` of all processor packages counts since the first sample; null without RAPL.
    """

    cores: int
    cpu: float | None
    memory_used_bytes: int
    memory_total_bytes: int
    energy_joules: float | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """All devices and the host at one instant.

    ``no_devices`` is empty, or a short reason why there are none.
    """

    t_ns: int = msgspec.field(default_factory=time.time_ns)
    devices: list[DeviceSample] = []
    host: HostSample
    no_devices: str = ""


MAX_COMMAND_CHARS = 400
HIDDEN = "(hidden)"
_SECRET_WORDS = r"token|secret|password|passwd|credentials?|auth|authorization|key"
_SECRET_NAME = rf"(?:[A-Za-z0-9]*[_.-])*(?:api)?(?:{_SECRET_WORDS})"
_SECRET_OPTION = re.compile(rf"--?{_SECRET_NAME}", re.IGNORECASE)
_VALUE = r"""(?:"[^"]*"|'[^']*'|\S+)"""
_ASSIGNED = re.compile(rf"(?<![A-Za-z0-9])({_SECRET_NAME}['\"]?\s*[=:]\s*){_VALUE}", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer\s+)\S+", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_KNOWN = re.compile(
    r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_-]{8,}"
    r"|\beyJ[\w-]+\.[\w-]+\.[\w-]+"
)
"""Tokens of Hugging Face, OpenAI, GitHub, GitLab, Slack and AWS, and JSON Web Tokens."""


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """A process of this host.

    ``cores`` is the average number of cores that it kept busy since the previous reading, null at
    the first one; ``memory_bytes`` is its resident memory. ``command`` has its arguments without
    secrets. ``missing`` says why values are null.
    """

    pid: int
    name: str | None = None
    user: str | None = None
    command: str | None = None
    cores: float | None = None
    memory_bytes: int | None = None
    age_seconds: float | None = None
    missing: str = ""


class GpuProcess(ProcessState, frozen=True, kw_only=True):
    """A process on a GPU; one on several GPUs has a row for each.

    ``kind`` is ``compute``, ``graphics`` or ``both``. ``sm_share`` is the share of time in which a
    kernel of this process ran. ``gpu_instance`` is its MIG instance.
    """

    gpu: int
    kind: str
    gpu_memory_bytes: int | None = None
    sm_share: float | None = None
    gpu_instance: int | None = None


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance that this user may use."""

    gpu: int
    gpu_instance: int | None
    name: str
    memory_used_bytes: int | None
    memory_total_bytes: int | None


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU; ``missing`` maps names of null values, and ``processes``, to the reason.

    ``memory_busy`` is the share of time in which its memory was read or written.
    """

    sample: DeviceSample
    bus_id: str | None = None
    performance_state: str | None = None
    memory_busy: float | None = None
    fan_share: float | None = None
    ecc_errors: int | None = None
    mig_instances: list[MigInstance] = []
    missing: dict[str, str] = {}


class DiskUse(msgspec.Struct, frozen=True, kw_only=True):
    """The file system of a folder; ``free_bytes`` is what this user can still write."""

    path: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    missing: str = ""


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """The host; ``cpu`` is the busy share of all cores, ``core_shares`` that of each one.

    ``cpu_quota`` (cores) and ``memory_limit_bytes`` are limits of this process's control group.
    """

    cores: int
    cpu: float | None
    core_shares: list[float | None]
    load_average: list[float]
    memory_used_bytes: int
    memory_total_bytes: int
    swap_used_bytes: int
    swap_total_bytes: int
    disks: dict[str, DiskUse]
    uptime_seconds: float
    cpu_quota: float | None = None
    memory_limit_bytes: int | None = None


class MachineState(msgspec.Struct, frozen=True, kw_only=True):
    """``processes`` are the busiest of the host; ``no_gpus`` is empty, or why there are none."""

    t_ns: int
    gpus: list[GpuState]
    no_gpus: str
    driver: str | None
    cuda: str | None
    gpu_processes: list[GpuProcess]
    processes: list[ProcessState]
    process_count: int
    host: HostState


def command_text(arguments: Sequence[str]) -> str:
    """Join the arguments of a process, shortened and without secrets.

    Arguments can hold tokens, and a screen is shared or copied more easily than ``ps`` is run. The
    values of options and variables that are named like secrets are replaced, and tokens of known
    shapes; a secret that is a bare word of another shape is not recognised.
    """
    words: list[str] = []
    is_secret = False
    for argument in arguments:
        if is_secret and not argument.startswith("-"):
            words.append(HIDDEN)
        else:
            words.append(_without_secrets(argument))
        is_secret = _SECRET_OPTION.fullmatch(argument) is not None
    if words and words[0].startswith("/"):
        words[0] = words[0].rpartition("/")[2] or words[0]
    text = " ".join(" ".join(words).split())
    return text if len(text) <= MAX_COMMAND_CHARS else f"{text[: MAX_COMMAND_CHARS - 1]}…"


def _without_secrets(argument: str) -> str:
    argument = _BEARER.sub(rf"\1{HIDDEN}", argument)
    argument = _ASSIGNED.sub(rf"\1{HIDDEN}", argument)
    return _KNOWN.sub(HIDDEN, _IN_URL.sub(HIDDEN, argument))
