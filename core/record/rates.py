"""Rates that a device reached in measurements of its own, apart from any model."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

Unit = Literal["FLOP/s", "B/s", "s"]

PRODUCT = "product "
"""Start of the name of a rate of matrix products; the precision's key among the peaks follows."""


class RateKind(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity that is measured on every device that has it.

    Attributes:
        name: Its name in tables and JSON.
        unit: Of its value; of ``s`` less is better, of the others more.
        meaning: What is timed, and what is counted.
        is_traffic: Whether it is a rate of the device's memory, of which the best is its roof.
        dtype: Of a product's operands, in torch's words; empty for other kinds.
        is_rounded: Whether the products round float32 operands to TF32.
        capability: Compute capability from which a GPU has it.
        on_cpu: Whether a CPU can have it.
    """

    name: str
    unit: Unit
    meaning: str
    is_traffic: bool = False
    dtype: str = ""
    is_rounded: bool = False
    capability: tuple[int, int] = (0, 0)
    on_cpu: bool = True


KINDS = [
    RateKind(
        name="product fp32",
        unit="FLOP/s",
        meaning="square matrix products in float32",
        dtype="float32",
    ),
    RateKind(
        name="product tf32",
        unit="FLOP/s",
        meaning="float32 products with TF32 inside",
        dtype="float32",
        is_rounded=True,
        capability=(8, 0),
        on_cpu=False,
    ),
    RateKind(
        name="product bf16",
        unit="FLOP/s",
        meaning="square matrix products in bfloat16",
        dtype="bfloat16",
        capability=(8, 0),
    ),
    RateKind(
        name="product fp16",
        unit="FLOP/s",
        meaning="square matrix products in float16",
        dtype="float16",
    ),
    RateKind(
        name="memory read",
        unit="B/s",
        meaning="one array read once, by a sum or a dot product with itself",
        is_traffic=True,
    ),
    RateKind(name="memory write", unit="B/s", meaning="one array filled", is_traffic=True),
    RateKind(
        name="memory copy", unit="B/s", meaning="an array read and one written", is_traffic=True
    ),
    RateKind(
        name="memory triad", unit="B/s", meaning="two arrays read, one written", is_traffic=True
    ),
    RateKind(name="host to device", unit="B/s", meaning="a copy out of pinned host memory"),
    RateKind(name="device to host", unit="B/s", meaning="a copy into pinned host memory"),
    RateKind(name="launch", unit="s", meaning="an operator on one element, issued back to back"),
    RateKind(name="launch and wait", unit="s", meaning="the same, waited for each time"),
    RateKind(name="peer copy", unit="B/s", meaning="a copy to the slowest of the other devices"),
    RateKind(name="all-reduce", unit="B/s", meaning="bus bandwidth over all devices measured"),
]
"""Every rate, in the order of measuring and of the table."""

BUSY = 0.5
"""Load average for each host thread from which other work counts."""

UNITS: dict[str, Unit] = {kind.name: kind.unit for kind in KINDS}
TRAFFIC = [kind.name for kind in KINDS if kind.is_traffic]


class RateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of one round measures.

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

    @property
    def beside_others(self) -> bool:
        """Whether other work kept the host's processors busy; its rates are then too low."""
        return self.load_average > BUSY * max(self.threads, 1)

    @property
    def bandwidth(self) -> float | None:
        """The device's memory at its best, in bytes/s: the highest of the rates of traffic."""
        known = [value for name in TRAFFIC if (value := self.median(name)) is not None]
        return max(known, default=None)
