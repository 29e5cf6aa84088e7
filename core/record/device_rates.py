"""Rates that a device reached in measurements of its own, apart from any model."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

Unit = Literal["FLOP/s", "B/s", "s"]

PRODUCT = "product "
"""Start of the name of a rate of matrix products; the precision's key among the peaks follows."""


class RateKind(msgspec.Struct, frozen=True):
    """A quantity that is measured on every device that has it.

    Attributes:
        name: Its name in tables and JSON.
        unit: Of its value; of ``s`` less is better, of the others more.
        is_traffic: Whether it is a rate of the device's memory, of which the best is its roof.
        dtype: Of a product's operands, in torch's words; empty for other kinds.
        is_rounded: Whether the products round float32 operands to TF32.
        capability: Compute capability from which a GPU has it.
        on_cpu: Whether a CPU can have it.
    """

    name: str
    unit: Unit
    is_traffic: bool = False
    dtype: str = ""
    is_rounded: bool = False
    capability: tuple[int, int] = (0, 0)
    on_cpu: bool = True


KINDS = [
    # Square matrix products.
    RateKind("product fp32", "FLOP/s", dtype="float32"),
    RateKind(
        "product tf32",
        "FLOP/s",
        dtype="float32",
        is_rounded=True,
        capability=(8, 0),
        on_cpu=False,
    ),
    RateKind("product bf16", "FLOP/s", dtype="bfloat16", capability=(8, 0)),
    RateKind("product fp16", "FLOP/s", dtype="float16"),
    RateKind("memory read", "B/s", is_traffic=True),
    RateKind("memory write", "B/s", is_traffic=True),
    RateKind("memory copy", "B/s", is_traffic=True),  # one array read, one written
    RateKind("memory triad", "B/s", is_traffic=True),  # two arrays read, one written
    RateKind("host to device", "B/s"),  # out of pinned memory
    RateKind("device to host", "B/s"),
    RateKind("launch", "s"),  # an operator on one element, issued back to back
    RateKind("launch and wait", "s"),
    RateKind("peer copy", "B/s"),  # to the slowest of the other devices
    RateKind("all-reduce", "B/s"),  # bus bandwidth over all devices that are measured
]
"""Every rate, in the order of measuring and of the table."""

BUSY = 0.5
"""Load average for each host thread from which other work counts."""

UNITS: dict[str, Unit] = {kind.name: kind.unit for kind in KINDS}
TRAFFIC = [kind.name for kind in KINDS if kind.is_traffic]


class RateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement of one process.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        peers: The other devices that it is measured with.
        seconds: Least time of each measurement.
        threads: Host threads of operators; null for torch's own choice.
    """

    device: str
    peers: list[str] = []
    seconds: float
    threads: int | None = None


class RateTimed(msgspec.Struct, frozen=True, kw_only=True, tag="rate"):
    """One rate of one process.

    Attributes:
        name: Of the kind.
        value: The best median over the amounts and ways of work that were tried, in the unit of
            the kind.
        work: The amount of work of that best one, and its operator where several were tried.
        began_ns: Unix epoch.
        ended_ns: Unix epoch.
    """

    name: str
    value: float
    work: str
    began_ns: int
    ended_ns: int


class RateMissing(msgspec.Struct, frozen=True, kw_only=True, tag="missing"):
    """A rate that this process could not measure, and the reason."""

    name: str
    reason: str


class RateHost(msgspec.Struct, frozen=True, kw_only=True, tag="host"):
    """The torch that measures, and its host threads."""

    torch: str
    threads: int


RateAnswer = RateTimed | RateMissing | RateHost


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The device while it multiplied matrices, by NVML at most twice a second.

    Null where NVML did not say. ``reasons`` are what held the clock in any sample.
    """

    sm_clock_mhz: float | None = None
    sm_clock_least_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    reasons: list[str] = []
    samples: int = 0


class DeviceRates(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one device on one day, from several fresh processes.

    Attributes:
        key: Names the device in the data folder, by a hash of its serial number.
        device: ``cpu`` or ``cuda:N`` of that day.
        name: As the driver or the system calls it.
        taken_ns: Unix epoch.
        torch: Version that measured.
        threads: Host threads of operators.
        rounds: A process each: value by name of the rate, in the kind's unit.
        work: The amount of work behind the last round's value, by name.
        load: The device under load; null for a CPU.
        load_average: Of the host over the minute before.
        missing: Reason by name of a rate, or by ``load``.
    """

    key: str
    device: str
    name: str
    taken_ns: int
    torch: str
    threads: int
    rounds: list[dict[str, float]]
    work: dict[str, str]
    load: Load | None = None
    load_average: float = 0.0
    missing: dict[str, str] = {}

    def values(self, name: str) -> list[float]:
        """The rate's value in each process that has it."""
        return [values[name] for values in self.rounds if name in values]

    def median(self, name: str) -> float | None:
        """Median over the processes; None where none has it."""
        values = self.values(name)
        return statistics.median(values) if values else None

    def products(self) -> dict[str, float]:
        """FLOP/s of matrix products by the precision's key among the peaks."""
        medians = {kind.name: self.median(kind.name) for kind in KINDS if kind.dtype}
        return {
            name.removeprefix(PRODUCT): median
            for name, median in medians.items()
            if median is not None
        }

    @property
    def beside_others(self) -> bool:
        """Whether other work kept the host's processors busy; its rates are then too low."""
        return self.load_average > BUSY * max(self.threads, 1)

    @property
    def bandwidth(self) -> float | None:
        """The device's memory at its best, in bytes/s: the highest of the rates of traffic."""
        known = [value for name in TRAFFIC if (value := self.median(name)) is not None]
        return max(known, default=None)
