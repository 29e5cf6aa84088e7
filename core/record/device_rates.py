"""Rates of a device, measured without a model."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

Unit = Literal["FLOP/s", "B/s", "s"]

PRODUCT = "product "
"""Prefix of the rates of matrix products; the precision's key among the peaks follows."""


class RateKind(msgspec.Struct, frozen=True):
    """A quantity that is measured on every device that has it.

    Attributes:
        unit: Less is better for ``s``, more is better for all others.
        is_traffic: Whether it is a rate of the device's memory; the best one is its roof.
        dtype: torch dtype of a product's operands; empty for other kinds.
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
    RateKind("host to device", "B/s"),  # from pinned memory
    RateKind("device to host", "B/s"),
    RateKind("launch", "s"),  # an operator on one element, issued back to back
    RateKind("launch and wait", "s"),
    RateKind("peer copy", "B/s"),  # to the slowest of the other devices
    RateKind("all-reduce", "B/s"),  # bus bandwidth over all measured devices
]
"""In the order of measurement and of the table."""

BUSY = 0.5
"""Load average per host thread from which other work counts."""

UNITS: dict[str, Unit] = {kind.name: kind.unit for kind in KINDS}
TRAFFIC = [kind.name for kind in KINDS if kind.is_traffic]


class RateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measures.

    Attributes:
        peers: The other devices that take part.
        seconds: Minimum time of each measurement.
        threads: Host threads of operators; null for torch's default.
    """

    device: str
    peers: list[str] = []
    seconds: float
    threads: int | None = None


class RateTimed(msgspec.Struct, frozen=True, kw_only=True, tag="rate"):
    """One rate of one process.

    Attributes:
        value: Best median over the amounts and kinds of work that were tried, in the kind's unit.
        work: The amount of work that was best, and its operator if several were tried.
    """

    name: str
    value: float
    work: str
    began_ns: int
    ended_ns: int


class RateMissing(msgspec.Struct, frozen=True, kw_only=True, tag="missing"):
    name: str
    reason: str


class RateHost(msgspec.Struct, frozen=True, kw_only=True, tag="host"):
    torch: str
    threads: int


RateAnswer = RateTimed | RateMissing | RateHost


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """NVML's readings while the device multiplied matrices, at most two per second.

    Null if NVML did not report them. ``reasons`` limited the clock in any sample.
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
    """Rates of one device on one day, from several fresh processes.

    Attributes:
        key: File name of the device in the data folder, from a hash of its serial number.
        device: ``cpu`` or ``cuda:N`` of that day.
        name: Name by the driver or the system.
        rounds: One entry per process: value by name of the rate, in the kind's unit.
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
        return [values[name] for values in self.rounds if name in values]

    def median(self, name: str) -> float | None:
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
        """Whether other work kept the host's processors busy, so that the rates are too low."""
        return self.load_average > BUSY * max(self.threads, 1)

    @property
    def bandwidth(self) -> float | None:
        """Highest rate of memory traffic, bytes/s."""
        known = [value for name in TRAFFIC if (value := self.median(name)) is not None]
        return max(known, default=None)
