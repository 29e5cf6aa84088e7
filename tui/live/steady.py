"""Figures that stand still until they change by more than they jitter.

Every change of the strip goes over the wire and draws the eye. A machine that does the same as a
second ago reads 97, 99 and 98 %: the strip then says what it said before.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from ...core.machine.telemetry.sample import DeviceSample, HostSample, Sample

SETTLED = 10
"""Readings in a row that print alike, after which they are shown however near they are."""

GIB = 2**30
SHARE = (0.01, 0.03)
JITTER = {
    "cpu": SHARE,
    "utilization": SHARE,
    "sm_active": SHARE,
    "tensor_active": SHARE,
    "dram_active": SHARE,
    "memory_used_bytes": (0.1 * GIB, 0.1 * GIB),
    "power_watts": (1.0, 5.0),
    "sm_clock_mhz": (1.0, 15.0),
    "temperature_celsius": (1.0, 2.0),
}
"""By field: the step in which it is printed, and the least change that is shown at once.

Three points of a share are three ticks of the kernel's clock on one core, of a second's hundred;
15 MHz are a step of an NVIDIA clock.
"""

Read = TypeVar("Read", DeviceSample, HostSample)


class _Figure:
    """One figure as shown, and how often the reading has printed as it does now."""

    def __init__(self) -> None:
        self.shown: float | None = None
        self._printed: int | None = None
        self._times = 0

    def take(self, value: float | None, step: float, least: float) -> float | None:
        """The figure to show for this reading."""
        printed = None if value is None else round(value / step)
        self._times = self._times + 1 if printed == self._printed else 1
        self._printed = printed
        settled = self._times >= SETTLED
        if value is None or self.shown is None or settled or abs(value - self.shown) >= least:
            self.shown = value
        return self.shown


class Steady:
    """The figures of one host and its devices, as they are shown."""

    def __init__(self) -> None:
        self._figures: dict[tuple[int | None, str], _Figure] = {}

    def of(self, sample: Sample) -> Sample:
        """The sample with the figures to show.

        Each is a reading that was taken, and nearer than its jitter to the newest.
        """
        devices = [self._steadied(gpu, gpu.index) for gpu in sample.devices]
        return replace(sample, host=self._steadied(sample.host, None), devices=devices)

    def _steadied(self, read: Read, device: int | None) -> Read:
        held = {
            name: self._figures.setdefault((device, name), _Figure()).take(
                getattr(read, name), *jitter
            )
            for name, jitter in JITTER.items()
            if name in read.__struct_fields__
        }
        return replace(read, **held)
