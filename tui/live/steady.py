"""Figures that stand still until they change by more than they jitter.

Every change of the strip draws the eye, and is sent. A machine that does the same as a second ago
reads 97, 99 and 98 %.
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
"""By field the least change that is shown: 3 % are three ticks of the kernel's clock, of a second's
hundred on one core; 15 MHz are a step of an NVIDIA clock. A figure that falls to 0 is shown too."""

Read = TypeVar("Read", DeviceSample, HostSample)


class Hysteresis:
    """The figures of one host and its devices, as they are shown."""

    def __init__(self) -> None:
        self._shown: dict[tuple[int | None, str], float | None] = {}

    def apply(self, sample: Sample) -> Sample:
        """Return the sample with the figures to show, each of them once read."""
        devices = [self._of(gpu, gpu.index) for gpu in sample.devices]
        return replace(sample, host=self._of(sample.host, None), devices=devices)

    def _of(self, read: Read, device: int | None) -> Read:
        for name in MIN_CHANGES.keys() & {*read.__struct_fields__}:
            value, shown = getattr(read, name), self._shown.get((device, name))
            if not value or shown is None or abs(value - shown) >= MIN_CHANGES[name]:
                self._shown[device, name] = value
        return replace(read, **{n: v for (d, n), v in self._shown.items() if d == device})
