"""Measured rates of a device against its data sheet, its own past, and its sisters in the box."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..machine.peaks import find_gpu
from ..record.rates import KINDS, PRODUCT, DeviceRates, Load, Unit
from .verdict.bounds import FALSE_RATE
from .verdict.interval import separate
from .verdict.verdict import Verdict, judge

SMALLEST = 0.02
"""Smallest difference of two rates that is told."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A device's rate against the same rate of another device, or of another day.

    Attributes:
        name: Of the rate.
        other: The other device, or the other day.
        verdict: On the time of one unit of work; B is the device itself.
        cause: What NVML reported differently of the two; empty where it shows nothing.
    """

    name: str
    other: str
    verdict: Verdict
    cause: str = ""


class RateRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rate of a device.

    Attributes:
        name: Of the rate.
        unit: Of the values.
        median: Over the processes.
        least: Of the processes.
        most: Of the processes.
        rounds: Processes that have it.
        work: The amount of work that gave the best median.
        quoted: The data sheet's figure; null where it has none.
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
        """The part of the data sheet's figure that was reached."""
        return self.median / self.quoted if self.quoted else None


class RatesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the rates of one device come to.

    Attributes:
        rates: The device's.
        rows: One for each rate that it has.
        past: Against the device on an earlier day.
        sisters: Against other devices of its name.
    """

    rates: DeviceRates
    rows: list[RateRow]
    past: list[Comparison]
    sisters: list[Comparison]


def report_of(
    rates: DeviceRates, *, before: DeviceRates | None, sisters: Sequence[DeviceRates]
) -> RatesReport:
    """Sum up the rates of a device, and test them against those before and beside it.

    A comparison's false rate is 5 % divided by the number of comparisons that are made.

    Args:
        rates: Of the device.
        before: Of the same device on an earlier day; None where there is none.
        sisters: Of other devices of the same name, measured in turn with it.
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
    others = _others(before, sisters)
    tests = sum(len(_common(rates, other)) for _, other in others) or 1
    made = {
        id(other): [
            _comparison(name, label, other, rates, FALSE_RATE / tests)
            for name in _common(rates, other)
        ]
        for label, other in others
    }
    return RatesReport(
        rates=rates,
        rows=rows,
        past=made.get(id(before), []),
        sisters=[comparison for sister in sisters for comparison in made.get(id(sister), [])],
    )


def _others(
    before: DeviceRates | None, sisters: Sequence[DeviceRates]
) -> list[tuple[str, DeviceRates]]:
    past = [("before", before)] if before is not None else []
    return [*past, *((sister.device, sister) for sister in sisters)]


def _common(rates: DeviceRates, other: DeviceRates) -> list[str]:
    """Names of the rates of computing and of memory that both have."""
    return [
        kind.name
        for kind in KINDS
        if (kind.name.startswith(PRODUCT) or kind.is_traffic)
        and rates.values(kind.name)
        and other.values(kind.name)
    ]


def _comparison(
    name: str, label: str, other: DeviceRates, rates: DeviceRates, false_rate: float
) -> Comparison:
    times = [[1 / value for value in side.values(name)] for side in (other, rates)]
    interval = separate(times[0], times[1], false_rate=false_rate)
    verdict = judge(interval, smallest=SMALLEST)
    cause = held_by(rates.load, other.load, label) if verdict.differs else ""
    return Comparison(name=name, other=label, verdict=verdict, cause=cause)


def held_by(load: Load | None, other: Load | None, label: str) -> str:
    """What NVML reported differently of two devices under load, the most telling first."""
    if load is None or other is None:
        return ""
    found = []
    if load.power_limit_watts and other.power_limit_watts:
        limit, others = load.power_limit_watts, other.power_limit_watts
        if limit != others:
            found.append(f"capped at {limit:.0f} W, {label} at {others:.0f} W")
    only_here = [reason for reason in load.reasons if reason not in other.reasons]
    if only_here:
        found.append(f"its clock was held by: {', '.join(only_here)}")
    if load.sm_clock_mhz and other.sm_clock_mhz and load.sm_clock_mhz != other.sm_clock_mhz:
        found.append(
            f"SM clock {load.sm_clock_mhz:.0f} MHz in the median, {label} {other.sm_clock_mhz:.0f}"
        )
    return "; ".join(found)


def sentences(report: RatesReport) -> list[str]:
    """One sentence for every difference that the tests bear out, the largest first."""
    told = [row for row in [*report.past, *report.sisters] if row.verdict.differs]
    told.sort(key=lambda row: -abs(row.verdict.change or 0.0))
    return [_sentence(row) for row in told]


def _sentence(row: Comparison) -> str:
    verdict = row.verdict
    assert verdict.change is not None and verdict.low is not None and verdict.high is not None
    ends = sorted(abs(end) for end in (verdict.low, verdict.high))
    other = row.other if row.other != "before" else "in its last measurement"
    text = (
        f"{row.name}: {verdict.verdict} than {other} by {100 * abs(verdict.change):.3g} % "
        f"({100 * ends[0]:.3g} to {100 * ends[1]:.3g})"
    )
    return f"{text}; {row.cause}." if row.cause else f"{text}."


def _quoted(name: str) -> dict[str, float]:
    """The data sheet's figures by name of the rate; empty for a device that is not listed."""
    gpu = find_gpu(name)
    if gpu is None:
        return {}
    bandwidth = gpu.bandwidth * 1e9
    products = {f"{PRODUCT}{key}": tflops * 1e12 for key, tflops in gpu.tflops.items()}
    traffic = {kind.name: bandwidth for kind in KINDS if kind.is_traffic}
    return products | traffic
