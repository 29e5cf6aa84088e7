"""Keep displayed figures constant until they change by more than their jitter.

Every change of the strip draws the eye and is sent to the terminal.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from sysbench.core.machine.sample import DeviceSample, HostSample, Sample

GIB = 2**30
MIN_CHANGES = {
    "cpu": 0.03,
    "utilization": 0.03,
    "sm_active": 0.03,
    "tensor_active": 0.03,
    "dram_active": 0.03,
    "memory_used_bytes": 0.1 * GIB,
    "power_watts": 5.0,
    "sm_clock_mhz": 15.0,
    "temperature_celsius": 2.0,
}
"""Minimum change by field. 3 % is three ticks of the kernel's clock of 100 Hz on one core; 15 MHz
is a step of an NVIDIA clock. A change to 0 is always shown."""

Read = TypeVar("Read", DeviceSample, HostSample)


class Hysteresis:
    def __init__(self) -> None:
        self._shown: dict[tuple[int | None, str], float | None] = {}

    def apply(self, sample: Sample) -> Sample:
        devices = [self._of(gpu, gpu.index) for gpu in sample.devices]
        return replace(sample, host=self._of(sample.host, None), devices=devices)

    def _of(self, read: Read, device: int | None) -> Read:
        for name in MIN_CHANGES.keys() & {*read.__struct_fields__}:
            value, shown = getattr(read, name), self._shown.get((device, name))
            if not value or shown is None or abs(value - shown) >= MIN_CHANGES[name]:
                self._shown[device, name] = value
        return replace(read, **{n: v for (d, n), v in self._shown.items() if d == device})
