"""A sample of the devices and the host. Null means "n/a", never zero."""

from __future__ import annotations

import time

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
