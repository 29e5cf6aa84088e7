"""State of the sensor strip, and the sampler that feeds it while no run is live."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec.structs import replace

from sysbench.core.formatting import UNKNOWN, percent
from sysbench.core.machine.sample import DeviceSample, HostSample, Sample
from sysbench.tui.text import amount
from sysbench.tui.widgets.traces import block_rows

if TYPE_CHECKING:
    from sysbench.core.machine.machine_reader import Sampler
    from sysbench.tui.live.run_watch import RunWatch

HISTORY = 6
GIB = 2**30


Words = Callable[[float | None, float | None], str]
"""Formats a value, given its full scale."""


class SensorReading(NamedTuple):
    """Value of one series at one time.

    Attributes:
        full: Value of a full bar; None if unknown.
        words: Formats the value on demand, since a run has a thousand samples of ten series.
    """

    name: str
    value: float | None
    full: float | None
    words: Words

    @property
    def text(self) -> str:
        return self.words(self.value, self.full)

    @property
    def full_text(self) -> str:
        return self.words(self.full, None) if self.full else ""


def device_of(sample: Sample, device: str) -> DeviceSample | None:
    """Return the GPU of a spec's ``device``; the first one for ``auto``."""
    if device == "cpu" or not sample.devices:
        return None
    index = int(device.partition(":")[2] or 0)
    return next((gpu for gpu in sample.devices if gpu.index == index), sample.devices[0])


def readings(sample: Sample, device: str = "auto") -> list[SensorReading]:
    gpu = device_of(sample, device)
    host = sample.host
    return [
        *(_gpu_readings(gpu) if gpu else []),
        SensorReading("CPU", host.cpu, 1.0, _share),
        SensorReading("RAM", host.memory_used_bytes, host.memory_total_bytes, _bytes),
    ]


def _gpu_readings(gpu: DeviceSample) -> list[SensorReading]:
    fractions = {"SM": gpu.sm_active, "tensor": gpu.tensor_active, "DRAM": gpu.dram_active}
    rows = [
        SensorReading(name, value, 1.0, _share)
        for name, value in fractions.items()
        if value is not None
    ]
    # "GPU busy" is less informative: it counts time in which any kernel ran.
    return [
        *rows,
        SensorReading("GPU busy", gpu.utilization, 1.0, _share),
        SensorReading("memory", gpu.memory_used_bytes, gpu.memory_total_bytes, _bytes),
        SensorReading("power", gpu.power_watts, gpu.power_limit_watts, of_limit),
        SensorReading("clock", gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, _in("MHz")),
        SensorReading("heat", gpu.temperature_celsius, 100.0, _in("°C")),
    ]


def _share(value: float | None, full: float | None) -> str:
    return percent(value, 0)


def _in(unit: str) -> Words:
    return lambda value, full: units(value, unit)


def _bytes(value: float | None, full: float | None) -> str:
    return amount(value)


def of_limit(watts: float | None, limit: float | None) -> str:
    """``612/700 W``, or without the limit if unknown."""
    return units(watts, "W") if watts is None or not limit else f"{watts:.0f}/{limit:.0f} W"


def units(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f} {unit}"


def of_gib(used: int | None, total: int | None) -> str:
    if used is None or total is None:
        return f"memory {UNKNOWN}"
    return f"{used / GIB:.1f}/{total / GIB:.1f} GiB"


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
    """Keeps figures constant until they change by more than their jitter."""

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


class StripState:
    """Latest sample, recent utilization, and the live run.

    ``latest`` has raw values; the strip shows them with hysteresis.
    """

    def __init__(self) -> None:
        self.latest: Sample | None = None
        self.device = "auto"
        self.watch: RunWatch | None = None
        self._hysteresis = Hysteresis()
        self._shown: Sample | None = None
        self._busy: deque[float | None] = deque(maxlen=HISTORY)

    def take(self, sample: Sample, device: str = "auto") -> None:
        gpu = device_of(sample, device)
        if gpu is None and sample.host.cpu is None:
            # The first sample has no CPU share yet.
            return
        self.latest, self.device = sample, device
        self._shown = shown = self._hysteresis.apply(sample)
        gpu = device_of(shown, device)
        self._busy.append(gpu.utilization if gpu else shown.host.cpu)

    def parts(self) -> list[str]:
        sample = self._shown
        if sample is None:
            return ["reading the sensors …"]
        spark = block_rows(list(self._busy), 1, 0, 1)[0]
        gpu = device_of(sample, self.device)
        if gpu is None:
            return self._host_parts(sample, spark)
        if gpu.lost:
            return [f"GPU {gpu.index} stopped answering (lost)", *self._host_parts(sample, spark)]
        watts = of_limit(gpu.power_watts, gpu.power_limit_watts)
        reasons = " ".join(gpu.clock_reasons or ())
        parts = [
            f"{gpu.name.removeprefix('NVIDIA ')} #{gpu.index}",
            f"busy {spark} {percent(gpu.utilization, 0)}",
            of_gib(gpu.memory_used_bytes, gpu.memory_total_bytes),
            watts,
            f"{units(gpu.sm_clock_mhz, 'MHz')} {reasons}".rstrip(),
            units(gpu.temperature_celsius, "°C"),
        ]
        for name, value in (
            ("SM", gpu.sm_active),
            ("tensor", gpu.tensor_active),
            ("DRAM", gpu.dram_active),
        ):
            if value is not None:
                parts.append(f"{name} {percent(value, 0)}")
        if len(sample.devices) > 1:
            parts.append(f"+{len(sample.devices) - 1} more GPUs")
        return parts

    def _host_parts(self, sample: Sample, spark: str) -> list[str]:
        host = sample.host
        parts = [
            f"CPU {host.cores} cores {spark} {percent(host.cpu, 0)}",
            of_gib(host.memory_used_bytes, host.memory_total_bytes),
        ]
        return [*parts, sample.no_devices] if sample.no_devices else parts


class StripSampler:
    """Starts a sampler at the first request, so that the first frame is not delayed."""

    def __init__(self) -> None:
        self._sampler: Sampler | None = None
        self._newest: deque[Sample] = deque(maxlen=1)

    def latest(self) -> Sample | None:
        """Return the newest unread sample, or None."""
        if self._sampler is None:
            from sysbench.core.machine.machine_reader import (
                Sampler,  # lazy: not for the first screen
            )

            self._sampler = Sampler(self._newest.append, interval_seconds=1.0)
            self._sampler.start()
        return self._newest.pop() if self._newest else None

    def stop(self) -> None:
        """Stop polling; the next `latest` starts again."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
