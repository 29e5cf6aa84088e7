"""Collect the samples of a run and summarise those of the measured device."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import fsum
from typing import Any, Literal, NamedTuple

import msgspec

from sysbench.core.machine.devices import nvml_index
from sysbench.core.machine.sample import MIN_INTERVAL_SECONDS, UNSEEN, DeviceSample, Sample
from sysbench.core.record.events import ClockMoved, TelemetrySampled
from sysbench.core.record.record import Telemetry
from sysbench.core.record.timing import Energy, limiting_reasons

FOREIGN_IDS = "NVML has process ids of the host here, which do not tell the run's own from others"
DEVICE_FIELDS = (
    "utilization",
    "sm_active",
    "tensor_active",
    "dram_active",
    "memory_used_bytes",
    "power_watts",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_celsius",
)

Series = dict[str, list[float]]
Answers = list[tuple[int, DeviceSample]]
"""Samples of one device while it answered, with their ``t_ns``."""


class SampleLog:
    """All samples so far, in order, and the reason why they have no summary; else empty.

    ``device_index`` is the measured device's in NVML; None on the CPU, or if NVML cannot identify
    it.
    """

    def __init__(self, device: str) -> None:
        self.samples: list[Sample] = []
        self.device_index: int | None = None
        self.missing = "no sample was taken"
        self._device = device
        self._clock_moved = False

    def take(self, event: TelemetrySampled) -> str:
        """Add a sample. Return the reason if measurements are no longer of the run's device."""
        sample = msgspec.convert(event.sample, Sample)
        index = event.device_index
        if index is msgspec.UNSET:  # of an older version, which used its reader's variables
            index = nvml_index(self._device, sample.devices)
        if self.device_index is None:  # that of a command is known once its processes use it
            self.device_index = index
        self.samples.append(sample)
        if not self._clock_moved:
            self.missing = ""
        if index in (None, self.device_index) or self.device_index is None:
            return ""
        return f"measured on GPU {index}, earlier rounds on GPU {self.device_index}"

    def move_clock(self, event: ClockMoved) -> str:
        """Invalidate times of samples so far, and return the reason."""
        moved = f"the clock was set by {event.seconds:+.0f} s, or the machine slept"
        self._clock_moved, self.missing = True, f"{moved}: sample times are uncertain"
        return moved

    def energy(
        self,
        spans: Sequence[tuple[int, int, int]],
        device: str,
        tokens: float | None,
    ) -> Energy | str:
        """Return the energy of a step, or the reason why it is unknown.

        ``spans`` are first and last ``t_ns`` of measured steps, and their number; ``tokens`` those
        of a step.
        """
        if self.missing or not spans:
            return self.missing or "no step was measured"
        powers = [
            mean_power(self.samples, self.device_index, (begin, end), on_cpu=device == "cpu")
            for begin, end, _ in spans
        ]
        known = [power for power in powers if power is not None]
        if not known:
            return self._why_no_energy(spans, device)
        pairs = [(power, span) for power, span in zip(powers, spans, strict=True) if power]
        joules = fsum(power.watts * (end - begin) / 1e9 for power, (begin, end, _) in pairs)
        step = joules / sum(steps for _, (_, _, steps) in pairs)
        seconds = fsum(power.seconds for power in known)
        by_counter = all(power.source == "counter" for power in known)
        return Energy(
            joules_per_step=step,
            joules_per_token=step / tokens if tokens else None,
            source="counter" if by_counter else "sampled power",
            seconds=seconds,
            uncertainty=len(known) * COUNTER_SECONDS / seconds if by_counter else None,
        )

    def _why_no_energy(self, spans: Sequence[tuple[int, int, int]], device: str) -> str:
        if device == "cpu":
            if all(sample.host.energy_joules is None for sample in self.samples):
                return "the processor's energy counter (RAPL) cannot be read"
        elif self.device_index is None:
            return "NVML cannot identify the GPU"
        elif not any(
            gpu.energy_joules is not None or gpu.power_watts is not None
            for _, gpu in _answers(self.samples, self.device_index)
        ):
            return "the GPU reports neither energy nor power"
        seconds = max((end - begin) / 1e9 for begin, end, _ in spans)
        return (
            f"the measured steps took {seconds:.2g} s; energy needs samples that are at least "
            f"{MIN_ENERGY_SECONDS:g} s apart"
        )

    def summary(
        self, between: Sequence[tuple[int, int]], own_pids: frozenset[int]
    ) -> Telemetry | None:
        if self.missing:
            return None
        on_cuda = self._device != "cpu"
        return summarise(self.samples, self.device_index, between, own_pids, on_cuda=on_cuda)


COUNTER_SECONDS = 0.1
"""Greatest age of an energy counter: NVML's is renewed every 20 to 100 ms."""
MIN_ENERGY_SECONDS = 10 * COUNTER_SECONDS


class MeanPower(NamedTuple):
    """Power between the first and the last sample of a time, which are ``seconds`` apart."""

    watts: float
    seconds: float
    source: Literal["counter", "sampled power"]


def mean_power(
    samples: Iterable[Sample],
    device_index: int | None,
    between: tuple[int, int],
    *,
    on_cpu: bool = False,
) -> MeanPower | None:
    """Return the power of a GPU or of the processor packages, by the counter if there is one.

    Else it is the integral over power readings. None if the samples are less than
    `MIN_ENERGY_SECONDS` apart.
    """
    inside = [sample for sample in samples if _within(sample, between)]
    rows: list[tuple[int, float | None, float | None]]
    if on_cpu:
        rows = [(sample.t_ns, sample.host.energy_joules, None) for sample in inside]
    else:
        answers = _answers(inside, device_index)
        rows = [(t_ns, gpu.energy_joules, gpu.power_watts) for t_ns, gpu in answers]
    counter = [(t_ns, joules) for t_ns, joules, _ in rows if joules is not None]
    sensor = [(t_ns, watts) for t_ns, _, watts in rows if watts is not None]
    if (seconds := _seconds_of(counter)) and all(a[1] <= b[1] for a, b in pairwise(counter)):
        return MeanPower((counter[-1][1] - counter[0][1]) / seconds, seconds, "counter")
    if seconds := _seconds_of(sensor):
        joules = fsum((b[0] - a[0]) / 1e9 * (a[1] + b[1]) / 2 for a, b in pairwise(sensor))
        return MeanPower(joules / seconds, seconds, "sampled power")
    return None


def _seconds_of(readings: Sequence[tuple[int, float]]) -> float | None:
    """Seconds between the first and the last reading; None if they are too few."""
    seconds = (readings[-1][0] - readings[0][0]) / 1e9 if readings else 0.0
    return seconds if seconds >= MIN_ENERGY_SECONDS else None


def summarise(
    samples: Sequence[Sample],
    device_index: int | None,
    between: Sequence[tuple[int, int]] = (),
    own_pids: frozenset[int] = frozenset(),
    *,
    on_cuda: bool = False,
) -> Telemetry:
    """Return minimum, median, maximum and n of each series, and the other processes.

    Series carry the names and units of `DeviceSample` after ``device0.``; the host's are
    ``host.cpu_percent`` and ``host.memory_used_bytes``. ``device0.energy_watts`` is power from the
    energy counter between two samples: ``power_watts`` is a sensor that some GPUs read a quarter of
    the time, the counter misses less. All samples count unless ``between`` has parts.
    """
    counted = [
        sample
        for sample in samples
        if not between or any(_within(sample, times) for times in between)
    ]
    answers = _answers(counted, device_index)
    of_host: Series = {
        "host.cpu_percent": [100 * s.host.cpu for s in counted if s.host.cpu is not None],
        "host.memory_used_bytes": [s.host.memory_used_bytes for s in counted],
    }
    series = of_host | _device_series(f"device{device_index}", answers)
    empty = {key: "not reported, or too few samples" for key in series if not series[key]}
    if _has_foreign_ids(answers, own_pids):
        empty["other_processes"] = FOREIGN_IDS
    reasons = [reason for _, device in answers for reason in device.clock_reasons or ()]
    return Telemetry(
        interval_seconds=MIN_INTERVAL_SECONDS,
        samples=len(counted),
        series={key: _spread(values) for key, values in series.items() if values},
        clock_reasons=limiting_reasons(reasons),
        other_processes=_others(answers, own_pids),
        missing=empty | _absence(counted, device_index, answers, on_cuda=on_cuda),
    )


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """State of the device while one process measured on it; clock and temperature are medians.

    ``tenants`` are other processes seen on the device then, as ``name (pid)``. The driver is
    asked for them every few seconds, so shorter ones may be missed.
    """

    sm_clock_mhz: float | None
    temperature_celsius: float | None
    clock_reasons: list[str]
    tenants: list[str]


def conditions(
    samples: Sequence[Sample],
    device_index: int | None,
    *,
    lived: tuple[int, int],
    measured: tuple[int, int],
    own_pids: frozenset[int],
) -> Conditions:
    """Return clocks, temperature and other processes of a device around one measurement."""
    alive = _answers([sample for sample in samples if _within(sample, lived)], device_index)
    counted = [device for t_ns, device in alive if measured[0] <= t_ns <= measured[1]]
    reasons = [reason for device in counted for reason in device.clock_reasons or ()]
    return Conditions(
        sm_clock_mhz=_median(device.sm_clock_mhz for device in counted),
        temperature_celsius=_median(device.temperature_celsius for device in counted),
        clock_reasons=limiting_reasons(reasons),
        tenants=[f"{row['name']} ({row['pid']})" for row in _others(alive, own_pids)],
    )


def _within(sample: Sample, times: tuple[int, int]) -> bool:
    return times[0] <= sample.t_ns <= times[1]


def _answers(samples: Sequence[Sample], device_index: int | None) -> Answers:
    return [
        (sample.t_ns, device)
        for sample in samples
        for device in sample.devices
        if device.index == device_index and not device.lost
    ]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _device_series(name: str, answers: Answers) -> Series:
    if not answers:
        return {}
    series: Series = {}
    for field in DEVICE_FIELDS:
        values = [getattr(device, field) for _, device in answers]
        series[f"{name}.{field}"] = [value for value in values if value is not None]
    counter = [
        (t_ns, device.energy_joules) for t_ns, device in answers if device.energy_joules is not None
    ]
    # The counter restarts when the driver is reloaded: skip such a pair.
    series[f"{name}.energy_watts"] = [
        (after - before) / ((t1 - t0) / 1e9)
        for (t0, before), (t1, after) in pairwise(counter)
        if t1 > t0 and after >= before
    ]
    return series


def _absence(
    samples: list[Sample], index: int | None, answers: Answers, *, on_cuda: bool
) -> dict[str, str]:
    if not samples:
        return {"samples": "no sample in the measured part"}
    if index is None:
        return {"device": _why_unidentified(samples[-1])} if on_cuda else {}
    if any(device.lost for s in samples for device in s.devices if device.index == index):
        return {f"device{index}": "the device was lost: it stopped answering"}
    if not answers:
        reason = samples[-1].no_devices or "the driver does not list this device"
        return {f"device{index}": reason}
    return {}


def _why_unidentified(sample: Sample) -> str:
    if sample.no_devices or not sample.devices:
        return sample.no_devices or "the driver lists no GPU"
    if any(device.mig for device in sample.devices):
        return "NVML counts whole GPUs, and the run had a MIG slice"
    return "the run's GPU is numbered by CUDA_DEVICE_ORDER or hidden, and NVML numbers by the bus"


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "min": min(values),
        "median": statistics.median(values),
        "max": max(values),
        "n": len(values),
    }


def _has_foreign_ids(answers: Answers, own_pids: frozenset[int]) -> bool:
    """Detect process ids of a host, which a container does not see: the run's own is among them."""
    seen = [process for _, device in answers for process in device.processes or ()]
    is_own_seen = any(process.pid in own_pids for process in seen)
    return bool(own_pids) and not is_own_seen and any(row.name == UNSEEN for row in seen)


def _others(answers: Answers, own_pids: frozenset[int]) -> list[dict[str, Any]]:
    others: dict[int, dict[str, Any]] = {}
    is_foreign = _has_foreign_ids(answers, own_pids)
    for _, device in answers:
        for process in device.processes or ():
            if process.pid in own_pids or (is_foreign and process.name == UNSEEN):
                continue
            row = others.setdefault(
                process.pid, {"pid": process.pid, "name": process.name, "memory_bytes": None}
            )
            amounts = [row["memory_bytes"], process.memory_bytes]
            row["memory_bytes"] = max(
                (amount for amount in amounts if amount is not None), default=None
            )
    return list(others.values())
