"""Measure rates of devices, store them in ``rates/KEY.jsonl``, and compare them."""

from __future__ import annotations

import hashlib
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.compare.bounds import FALSE_RATE
from sysbench.core.compare.interval import separate
from sysbench.core.compare.verdict import Verdict, judge
from sysbench.core.errors import DamagedFileError, WorkerFailed
from sysbench.core.formatting import counted, format_count
from sysbench.core.machine.children import LineChild
from sysbench.core.machine.devices import locked_devices, sample_of
from sysbench.core.machine.doctor_check import Check
from sysbench.core.machine.interpreter import ready_python
from sysbench.core.machine.machine_reader import Sampler
from sysbench.core.machine.peaks import find_gpu
from sysbench.core.machine.read_environment import cpu_model
from sysbench.core.machine.sample import DeviceSample, Sample
from sysbench.core.record.device_rates import (
    KINDS,
    PRODUCT,
    DeviceRates,
    Load,
    RateAnswer,
    RateHost,
    RateMissing,
    RateRequest,
    RateTimed,
    Unit,
)
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.storage import UNREADABLE_JSON, home, make_folder, read_regular, write_atomically

DAY_NS = 86_400 * 10**9
OLD_DAYS = 90
"""Age from which rates are worth measuring again."""
MIN_DIFFERENCE = 0.02
"""Smallest difference of two rates that is reported."""


def device_key(device: str, sample: DeviceSample | None) -> str:
    """Return the device's name in the data folder, independent of a GPU's slot."""
    if sample is not None and sample.uuid:
        return "gpu-" + _hash(sample.uuid)
    return "cpu-" + _hash(cpu_model()) if device == "cpu" else device.replace(":", "-")


def _hash(text: str) -> str:
    return hashlib.sha256(f"sysbench-tui {text}".encode()).hexdigest()[:16]


def rates_path(key: str) -> Path:
    return home() / "rates" / f"{key}.jsonl"


def kept_rates(key: str) -> list[DeviceRates]:
    """Return every measurement of a device, oldest first; raises DamagedFileError."""
    path = rates_path(key)
    try:
        lines = read_regular(path).splitlines()
        return [msgspec.json.decode(line, type=DeviceRates) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path}: {error}; delete it and measure again") from error


def save_rates(rates: DeviceRates) -> None:
    path = rates_path(rates.key)
    make_folder(path.parent)
    rows = [*kept_rates(rates.key), rates]
    write_atomically(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def last_rates(device: str) -> DeviceRates | None:
    """Return the newest measurement of a device; None without one. Raises DamagedFileError."""
    rows = kept_rates(device_key(device, sample_of(device)))
    return rows[-1] if rows else None


def measured_facts(device: str) -> dict[str, Any]:
    """Return the device's newest rates as the group ``rates`` of an environment; empty without any.

    ``products`` has FLOP/s by the precision's key among the peaks, ``bandwidth`` bytes/s. For a
    file that cannot be read there is only ``error``.
    """
    try:
        rates = last_rates(device)
    except DamagedFileError as error:
        why = f"the measured rates cannot be read: {error.__class__.__name__}"
        return {"rates": {"error": why}}
    if rates is None:
        return {}
    facts = {
        "taken": day(rates),
        "torch": rates.torch,
        "products": rates.products(),
        "bandwidth": rates.bandwidth,
        "beside_others": rates.beside_others,
    }
    return {"rates": facts | ({"threads": rates.threads} if device == "cpu" else {})}


def day(rates: DeviceRates) -> str:
    """Return the date of the measurement, ``2026-11-22``, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(rates.taken_ns / 1e9))


def rates_check(device: str, torch: str | None, now_ns: int) -> Check:
    name, again = "measured rates", "`sysbench-tui doctor --measure`, about a minute a device"
    try:
        rates = last_rates(device)
    except DamagedFileError as error:
        costs, remedy = "roofs and MFU cannot use them", f"delete the file, then {again}"
        return Check(name=name, status="warning", found=str(error), costs=costs, remedy=remedy)
    if rates is None:
        roof = "only --peak gives one" if device == "cpu" else "they use the data sheet"
        costs = f"roofline and MFU use no measured rates: {roof}"
        text = "not measured on this device"
        return Check(name=name, status="missing", found=text, costs=costs, remedy=again)
    best = max(rates.products().values(), default=0.0)
    text = f"{format_count(best)}FLOP/s at most, measured on {day(rates)}"
    reasons = []
    days = max(0, now_ns - rates.taken_ns) // DAY_NS
    if days > OLD_DAYS:
        reasons.append(f"they are {counted(days, 'day')} old")
    if rates.beside_others:
        reasons.append(f"other work was running, load average {rates.load_average:.1f}")
    if torch and rates.torch != torch:
        reasons.append(f"they were measured with torch {rates.torch}, here is {torch}")
    if not reasons:
        return Check(name=name, status="ok", found=text)
    costs = f"roofline and MFU may be outdated: {' and '.join(reasons)}"
    return Check(name=name, status="warning", found=text, costs=costs, remedy=again)


class RateComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A device's rate against that of another device, or of the device ``before``.

    ``verdict`` is on the time of one unit of work, with the device itself as B; ``cause`` is a
    difference in NVML's reports, empty if there is none.
    """

    name: str
    other: str
    verdict: Verdict
    cause: str = ""


class RateRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rate of a device over its processes.

    ``work`` is the amount of work with the best median, ``quoted`` the data sheet's figure.
    """

    name: str
    unit: Unit
    median: float
    least: float
    most: float
    rounds: int
    work: str
    quoted: float | None = None

    @property
    def of_quoted(self) -> float | None:
        return self.median / self.quoted if self.quoted else None


class RatesReport(msgspec.Struct, frozen=True, kw_only=True):
    """A device's rates, compared with an earlier day (``past``) and other devices (``sisters``)."""

    rates: DeviceRates
    rows: list[RateRow]
    past: list[RateComparison]
    sisters: list[RateComparison]


def rates_report(
    rates: DeviceRates, *, before: DeviceRates | None, sisters: Sequence[DeviceRates]
) -> RatesReport:
    """Summarise the rates of a device, and test them against earlier ones and other devices.

    A comparison's false rate is 5 % divided by the number of comparisons. ``before`` is of an
    earlier day, ``sisters`` of devices of the same name, measured alternately with it.
    """
    quoted = _quoted(rates.name)
    rows = [
        RateRow(
            name=kind.name,
            unit=kind.unit,
            median=median,
            least=min(values),
            most=max(values),
            rounds=len(values),
            work=rates.work.get(kind.name, ""),
            quoted=quoted.get(kind.name),
        )
        for kind in KINDS
        if (values := rates.values(kind.name)) and (median := rates.median(kind.name)) is not None
    ]
    past = [("before", before)] if before is not None else []
    tests = [
        (label, other, kind.name)
        for label, other in [*past, *((sister.device, sister) for sister in sisters)]
        for kind in KINDS
        if (kind.name.startswith(PRODUCT) or kind.is_traffic)
        and rates.values(kind.name)
        and other.values(kind.name)
    ]
    comparisons = []
    for label, other, name in tests:
        times = [[1 / value for value in side.values(name)] for side in (other, rates)]
        interval = separate(*times, false_rate=FALSE_RATE / len(tests))
        verdict = judge(interval, smallest=MIN_DIFFERENCE)
        cause = _cause(rates.load, other.load, label) if verdict.differs else ""
        comparisons.append(RateComparison(name=name, other=label, verdict=verdict, cause=cause))
    return RatesReport(
        rates=rates,
        rows=rows,
        past=[row for row in comparisons if row.other == "before"],
        sisters=[row for row in comparisons if row.other != "before"],
    )


def _cause(load: Load | None, other: Load | None, label: str) -> str:
    if load is None or other is None:
        return ""
    causes = []
    limits = load.power_limit_watts, other.power_limit_watts
    if all(limits) and limits[0] != limits[1]:
        causes.append(f"capped at {limits[0]:.0f} W, {label} at {limits[1]:.0f} W")
    if only_here := [reason for reason in load.reasons if reason not in other.reasons]:
        causes.append(f"its clock was limited by: {', '.join(only_here)}")
    clocks = load.sm_clock_mhz, other.sm_clock_mhz
    if all(clocks) and clocks[0] != clocks[1]:
        causes.append(f"SM clock {clocks[0]:.0f} MHz in the median, {label} {clocks[1]:.0f}")
    return "; ".join(causes)


def sentences(report: RatesReport) -> list[str]:
    """Return one sentence for every difference that the tests support, the largest first."""
    rows = [row for row in [*report.past, *report.sisters] if row.verdict.differs]
    return [_sentence(row) for row in sorted(rows, key=lambda row: -abs(row.verdict.change or 0.0))]


def _sentence(row: RateComparison) -> str:
    verdict = row.verdict
    assert verdict.change is not None and verdict.low is not None and verdict.high is not None
    low, high = sorted(100 * abs(end) for end in (verdict.low, verdict.high))
    other = row.other if row.other != "before" else "in its last measurement"
    change = f"{100 * abs(verdict.change):.3g} % ({low:.3g} to {high:.3g})"
    cause = f"; {row.cause}" if row.cause else ""
    return f"{row.name}: {verdict.verdict} than {other} by {change}{cause}."


def _quoted(name: str) -> dict[str, float]:
    gpu = find_gpu(name)
    if gpu is None:
        return {}
    products = {f"{PRODUCT}{key}": tflops * 1e12 for key, tflops in gpu.tflops.items()}
    return products | {kind.name: gpu.bandwidth * 1e9 for kind in KINDS if kind.is_traffic}


ROUNDS = 6
"""Minimum rounds per side for a rank test of eight rates, at 5 % together, to find a difference."""
SECONDS = 0.3
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RateRound:
    device: str
    number: int
    rounds: int


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
) -> Iterator[RateRound | RateTimed | DeviceRates]:
    """Measure every rate of every device; at the end yield the `DeviceRates` of each.

    The devices are measured one at a time, each round in a new random order, so that changes of the
    machine affect all of them. On cancellation, only complete rounds count. Raises DeviceBusyError,
    InterpreterError or WorkerFailed.
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
                yield from _round(sides[device], request, cancel, python)
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
