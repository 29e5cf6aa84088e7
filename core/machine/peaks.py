"""The table of GPUs, and a device's roof: from ``--peak``, measured rates, or the table.

A device that was not measured, and that is not in ``profiles/gpus.toml`` under its full name, has
no roof.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.formatting import BINARY_UNITS, did_you_mean
from sysbench.core.record.environment import Roof

VENDOR = re.compile(r"^(NVIDIA|Tesla)\s+|\s+\(null GPU\)$", re.IGNORECASE)
"""Vendor prefix of a GPU's name, and the suffix of the null GPU of tests."""
GIVEN = "given with --peak"
WIDEST, TF32 = "fp32", "tf32"
REMEDY = "measure it with `sysbench-tui doctor --measure`, or set --peak TFLOPS[,GB/S]"


class CardMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variant of a GPU by the memory that it reports, in the file's units."""

    name: str
    nvml_mib: int
    source: str
    cuda_mib: int | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of ``profiles/gpus.toml``, in the file's units.

    Peaks are SMs × FLOP per clock × clock: of the tensor cores in 16 bit, and of the plain cores in
    float32, whose boost clock may differ.
    """

    names: list[str]
    sms: int
    clock_mhz: int
    flops_per_clock: int
    tflops: dict[str, float]
    memory_mhz: int
    bus_bits: int
    bandwidth: float
    source: str
    fp32_clock_mhz: int = 0
    fp32_flops_per_clock: int = 0
    capability: str = ""
    cards: dict[str, CardMemory] = {}


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """A peak from the user: dense TFLOP/s of the run's precision, and GB/s or null."""

    tflops: float
    gigabytes_per_second: float | None = None


def parse_peak(text: str) -> Peak:
    """Parse ``"989.4"`` or ``"989.4,3350"``: TFLOP/s, and GB/s of the memory; raises SpecError."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < n < math.inf for n in numbers):
        raise SpecError("--peak", text, "TFLOP/s, or TFLOP/s,GB/s, such as 989.4,3350")
    return Peak(tflops=numbers[0], gigabytes_per_second=numbers[1] if numbers[1:] else None)


@cache
def gpus() -> dict[str, Gpu]:
    text = (resources.files("sysbench.profiles") / "gpus.toml").read_text("utf-8")
    return {key: msgspec.convert(entry, Gpu) for key, entry in tomllib.loads(text).items()}


def find_gpu(name: str) -> Gpu | None:
    return _by_name().get(_plain(name))


@cache
def _by_name() -> dict[str, Gpu]:
    return {_plain(name): gpu for gpu in gpus().values() for name in gpu.names}


def _plain(name: str) -> str:
    return " ".join(VENDOR.sub("", name.strip()).casefold().split())


def memory_bandwidth(clock_mhz: float, bus_bits: float) -> float:
    """Return the bytes/s of a double data rate memory, two bits a clock on each line."""
    return 2 * clock_mhz * 1e6 * bus_bits / 8


def roof_of(
    device: str,
    precision: str,
    peak_key: str,
    environment: Mapping[str, Any],
    given: Peak | None = None,
) -> tuple[Roof | None, str]:
    """Return the roof of a run, or None and the reason.

    ``given`` takes precedence over the measured rates in the environment's group ``rates``, these
    over the device's facts, and these over the table, which has ``peak_key``.
    """
    name = str(_group(environment, "device").get("name") or "")
    gpu = find_gpu(name) if device.startswith("cuda") else None
    quoted = gpu.tflops.get(peak_key) if gpu else None
    rates, why_no_rates = _rates(device, environment)
    measured = _group(rates, "products").get(peak_key)
    attention_flops = None
    if given is None and peak_key == WIDEST and gpu is not None and TF32 in gpu.tflops:
        attention_flops = gpu.tflops[TF32] * 1e12
    bandwidth, bandwidth_source = _bandwidth(device, name, environment, gpu)
    quoted_bandwidth = None
    if given is None and rates.get("bandwidth"):
        quoted_bandwidth = bandwidth
        bandwidth, bandwidth_source = rates["bandwidth"], _measured_here(rates)
    if given is not None:
        if given.gigabytes_per_second is not None:
            bandwidth, bandwidth_source = given.gigabytes_per_second * 1e9, GIVEN
        peak_flops, source = given.tflops * 1e12, GIVEN
    elif measured:
        peak_flops, source = measured, _measured_here(rates)
        if gpu is not None and quoted is not None:
            source += f"; {quoted:g} TFLOP/s by {gpu.source}"
    elif gpu is not None and quoted is not None:
        peak_flops, source = quoted * 1e12, f"dense {precision} of {name}, {gpu.source}"
    else:
        return None, why_no_rates or _why_none(device, name, precision, gpu)
    return (
        Roof(
            precision=precision,
            peak_flops=peak_flops,
            peak_source=source,
            bandwidth=bandwidth,
            bandwidth_source=bandwidth_source,
            quoted_flops=quoted * 1e12 if quoted is not None and given is None else None,
            quoted_bandwidth=quoted_bandwidth,
            attention_flops=attention_flops,
        ),
        "",
    )


def _rates(device: str, environment: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the measured rates, or none and the reason; empty if the device was not measured.

    A CPU's rates depend on the number of threads, so a run with another number has no roof.
    """
    rates = _group(environment, "rates")
    if "error" in rates:
        return {}, str(rates["error"])
    threads = rates.get("threads")
    run_threads = _group(environment, "settings").get("threads")
    if device == "cpu" and threads and run_threads is not None and str(run_threads) != str(threads):
        return {}, f"the rates were measured with {threads} threads, this run has {run_threads}"
    return rates, ""


def _measured_here(rates: Mapping[str, Any]) -> str:
    beside = ", with other work running" if rates.get("beside_others") else ""
    return f"measured on this device on {rates.get('taken')}{beside}"


def _bandwidth(
    device: str, name: str, environment: Mapping[str, Any], gpu: Gpu | None
) -> tuple[float | None, str]:
    """Return bytes/s and their source: the device's memory clock and bus width, else the table."""
    if device.startswith("cuda") and " MIG " not in name:  # a slice has a part of it
        for facts in _memories(name, environment):
            clock, bits = facts.get("memory_clock_max_mhz"), facts.get("memory_bus_bits")
            if clock and bits:
                return memory_bandwidth(clock, bits), f"the device: 2 × {clock} MHz × {bits} bit"
    if gpu is not None:
        return gpu.bandwidth * 1e9, gpu.source
    return None, ""


def _memories(name: str, environment: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield facts on the device's memory from torch, then from NVML; GPUs of one name are alike."""
    yield _group(environment, "device")
    for key, facts in _group(environment, "nvidia").items():
        if key.startswith("device") and isinstance(facts, Mapping) and facts.get("name") == name:
            yield facts


def _group(environment: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    group = environment.get(name)
    return group if isinstance(group, Mapping) else {}


def _why_none(device: str, name: str, precision: str, gpu: Gpu | None) -> str:
    if not device.startswith("cuda"):
        return f"no peak is known for a CPU: {REMEDY}"
    if not name:
        return f"the device did not report its name: {REMEDY}"
    if gpu is None:
        return f"{name} is not in the table of peaks: {REMEDY}"
    return f"the table has no {precision} peak for {name}: {REMEDY}"


FAMILY = re.compile(r"^(GeForce|Tesla)\s+", re.IGNORECASE)
SOLD_AS = 1.08
"""Tolerance for the decimal gigabytes in which GPUs are sold: 80 GB may be up to 85.9e9 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCard:
    """A GPU of the table; the driver's bytes, that CUDA cannot use, are None if not published."""

    key: str
    name: str
    capability: str
    memory_bytes: int
    driver_bytes: int | None
    source: str


@cache
def known_cards() -> dict[str, KnownCard]:
    """Return the GPUs by key, those with the most memory first."""
    mib = BINARY_UNITS["MiB"]
    cards = [
        KnownCard(
            key=key,
            name=card.name,
            capability=gpu.capability,
            memory_bytes=card.nvml_mib * mib,
            driver_bytes=None if card.cuda_mib is None else (card.nvml_mib - card.cuda_mib) * mib,
            source=card.source,
        )
        for gpu in gpus().values()
        for key, card in gpu.cards.items()
    ]
    return {card.key: card for card in sorted(cards, key=lambda card: -card.memory_bytes)}


def find_card(text: str) -> KnownCard:
    """Find a GPU by its key or by the driver's name; SpecError with suggestions if there is none.

    Case, spaces, hyphens and the vendor do not matter: ``RTX 4090`` is ``rtx4090``.
    """
    cards, wanted = known_cards(), _bare_name(text)
    for card in cards.values():
        if wanted in (_bare_name(card.key), _bare_name(card.name)):
            return card
    raise SpecError("--card", text, f"{_hint(wanted)}known: {', '.join(cards)}")


def sold_as(capacity_bytes: int) -> list[KnownCard]:
    """Return the GPUs that are sold with this number of decimal bytes, such as 80e9."""
    return [
        card
        for card in known_cards().values()
        if capacity_bytes <= card.memory_bytes <= SOLD_AS * capacity_bytes
    ]


def _hint(wanted: str) -> str:
    keys = {_bare_name(key): key for key in known_cards()}
    matches = [key for plain, key in keys.items() if wanted and plain.startswith(wanted)]
    if matches:
        return f"did you mean {' or '.join(matches)}? "
    rows = {_bare_name(name) for key, gpu in gpus().items() for name in (key, *gpu.names)}
    if wanted and any(row.startswith(wanted) for row in rows):
        return "the table has no GPU with that memory: set --capacity; "
    return did_you_mean(wanted, known_cards())


def _bare_name(text: str) -> str:
    bare = FAMILY.sub("", VENDOR.sub("", text.strip()))
    return re.sub(r"[\s_-]+", "", bare).casefold()
