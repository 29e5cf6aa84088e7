"""Measure the rates of devices, each round in a fresh process, devices in random order."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from sysbench.core.errors import WorkerFailed
from sysbench.core.machine.children import LineChild
from sysbench.core.machine.devices import sample_of
from sysbench.core.machine.interpreter import ready_python
from sysbench.core.machine.node import locked_devices
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.machine.sample import DeviceSample, Sample
from sysbench.core.machine.sampler import Sampler
from sysbench.core.record.device_rates import (
    PRODUCT,
    DeviceRates,
    Load,
    RateAnswer,
    RateHost,
    RateMissing,
    RateRequest,
    RateTimed,
)
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.kept_rates import device_key

ROUNDS = 6
"""Minimum rounds per side for a rank test of eight rates, at 5 % together, to find a difference."""
SECONDS = 0.3
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RateRound:
    """A round of a device started; ``number`` counts from 1."""

    device: str
    number: int
    rounds: int


@dataclass(frozen=True, slots=True)
class RateFound:
    device: str
    rate: RateTimed


@dataclass(slots=True)
class _Side:
    device: str
    sample: DeviceSample | None
    rounds: list[dict[str, float]] = field(default_factory=list)
    work: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    products_ns: list[tuple[int, int]] = field(default_factory=list)
    host: RateHost | None = None


def measure_rates(
    devices: Sequence[str],
    *,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    threads: int | None = None,
    cancel: Cancellation | None = None,
) -> Iterator[RateRound | RateFound | DeviceRates]:
    """Measure every rate of every device; at the end yield the `DeviceRates` of each.

    The devices are measured one at a time, each round in a new random order, so that changes of the
    machine affect all of them. On cancellation, only complete rounds count.

    Raises:
        DeviceBusyError: A run measures on one of them.
        InterpreterError: Workers cannot run in the chosen interpreter.
        WorkerFailed: A process ended without its rates.
    """
    cancel = cancel or Cancellation()
    python = ready_python()
    order = random.Random()
    sides = {device: _Side(device, sample_of(device)) for device in devices}
    samples: list[Sample] = []
    load_average = os.getloadavg()[0]
    with locked_devices(devices), Sampler(samples.append):
        for number in range(1, rounds + 1):
            for device in order.sample(list(devices), len(devices)):
                if cancel.is_set():
                    break
                yield RateRound(device, number, rounds)
                peers = [other for other in devices if other != device]
                request = RateRequest(device=device, peers=peers, seconds=seconds, threads=threads)
                for rate in _round(sides[device], request, cancel, python):
                    yield RateFound(device, rate)
    for side in sides.values():
        if side.rounds:
            yield _rates(side, samples, load_average)


def _round(
    side: _Side, request: RateRequest, cancel: Cancellation, python: str
) -> Iterator[RateTimed]:
    """Yield the rates of one process; they count only if it completes."""
    values: dict[str, float] = {}
    for answer in _answers(request, cancel, python):
        match answer:
            case RateTimed():
                values[answer.name] = answer.value
                side.work[answer.name] = answer.work
                if answer.name.startswith(PRODUCT):
                    side.products_ns.append((answer.began_ns, answer.ended_ns))
                yield answer
            case RateMissing():
                side.missing[answer.name] = answer.reason
            case RateHost():
                side.host = answer
    if not cancel.is_set():
        side.rounds.append(values)


def _answers(request: RateRequest, cancel: Cancellation, python: str) -> Iterator[RateAnswer]:
    child = LineChild("sysbench.core.worker.measure_rates", python)
    try:
        with suppress(BrokenPipeError):  # its end has the reason
            child.send(msgspec.json.encode(request))
        while not child.lines.ended and not cancel.is_set():
            for line in child.lines.read(POLL_SECONDS):
                yield msgspec.json.decode(line, type=RateAnswer)
        if not cancel.is_set() and (code := child.process.wait()) != 0:
            raise WorkerFailed(
                f"the process that measures rates ended with code {code}{child.last_line()}"
            )
    finally:
        child.kill()
        child.process.wait()


def _rates(side: _Side, samples: Sequence[Sample], load_average: float) -> DeviceRates:
    host = side.host or RateHost(torch="", threads=0)
    load, why_no_load = _load(side, samples)
    missing = {name: why for name, why in side.missing.items() if name not in side.rounds[-1]}
    return DeviceRates(
        key=device_key(side.device, side.sample),
        device=side.device,
        name=side.sample.name if side.sample else cpu_model(),
        taken_ns=time.time_ns(),
        torch=host.torch,
        threads=host.threads,
        rounds=side.rounds,
        work=side.work,
        load=load,
        load_average=load_average,
        missing=missing | ({"load": why_no_load} if why_no_load else {}),
    )


def _load(side: _Side, samples: Sequence[Sample]) -> tuple[Load | None, str]:
    """Summarise the device's samples within matrix products; None with the reason."""
    if side.sample is None:
        return None, "no GPU" if side.device == "cpu" else "NVML cannot identify the device"
    within = [
        device
        for sample in samples
        if any(began <= sample.t_ns <= ended for began, ended in side.products_ns)
        for device in sample.devices
        if device.index == side.sample.index and not device.lost
    ]
    if not within:
        return None, "NVML gave no sample within the matrix products"

    def summary(name: str, reduce: Callable[[Iterable[float]], float]) -> float | None:
        values = [getattr(device, name) for device in within]
        known = [value for value in values if value is not None]
        return reduce(known) if known else None

    reasons = [reason for device in within for reason in device.clock_reasons or ()]
    load = Load(
        sm_clock_mhz=summary("sm_clock_mhz", statistics.median),
        sm_clock_least_mhz=summary("sm_clock_mhz", min),
        sm_clock_max_mhz=summary("sm_clock_max_mhz", max),
        power_watts=summary("power_watts", statistics.median),
        power_limit_watts=summary("power_limit_watts", statistics.median),
        temperature_celsius=summary("temperature_celsius", max),
        reasons=list(dict.fromkeys(reasons)),
        samples=len(within),
    )
    return load, ""
