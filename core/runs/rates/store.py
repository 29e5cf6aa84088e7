"""The measured rates of this machine's devices, a file each: ``rates/KEY.jsonl``."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import msgspec

from ...errors import DamagedFileError
from ...formatting import counted, format_count
from ...machine.devices import sample_of
from ...machine.doctor.check import Check
from ...machine.environment import cpu_model
from ...machine.telemetry.sample import DeviceSample
from ...record.rates import PRODUCT, DeviceRates
from ...storage import UNREADABLE_JSON, home, make_folder, read_regular, write_atomically

DAY_NS = 86_400 * 10**9
OLD_DAYS = 90
"""Age from which rates are worth measuring again."""


def device_key(device: str, sample: DeviceSample | None) -> str:
    """The device's name in the data folder; a GPU keeps it in any slot, and it is no serial."""
    if sample is not None and sample.uuid:
        return "gpu-" + _hash(sample.uuid)
    if device == "cpu":
        return "cpu-" + _hash(cpu_model())
    return device.replace(":", "-")


def _hash(text: str) -> str:
    return hashlib.sha256(f"sysbench-tui {text}".encode()).hexdigest()[:16]


def rates_path(key: str, root: Path | None = None) -> Path:
    """The file of a device."""
    return (root or home()) / "rates" / f"{key}.jsonl"


def kept_rates(key: str, root: Path | None = None) -> list[DeviceRates]:
    """Every measurement of a device, the oldest first.

    Raises:
        DamagedFileError: The file cannot be read as such.
    """
    path = rates_path(key, root)
    try:
        lines = read_regular(path).splitlines()
        return [msgspec.json.decode(line, type=DeviceRates) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path}: {error}; delete it and measure again") from error


def keep_rates(rates: DeviceRates, root: Path | None = None) -> None:
    """Append a measurement to its device's file."""
    path = rates_path(rates.key, root)
    make_folder(path.parent)
    rows = [*kept_rates(rates.key, root), rates]
    write_atomically(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def last_rates(device: str, root: Path | None = None) -> DeviceRates | None:
    """The newest measurement of ``cpu`` or ``cuda:N``; None where it never was measured.

    Raises:
        DamagedFileError: Its file cannot be read.
    """
    rows = kept_rates(device_key(device, sample_of(device)), root)
    return rows[-1] if rows else None


def measured_facts(device: str, root: Path | None = None) -> dict[str, Any]:
    """The device's newest rates as the group ``rates`` of an environment; none without any.

    ``products`` has FLOP/s by the precision's key among the peaks, ``bandwidth`` bytes/s. A
    file that cannot be read leaves ``error`` alone.
    """
    try:
        rates = last_rates(device, root)
    except DamagedFileError as error:
        return {
            "rates": {"error": f"the measured rates cannot be read: {error.__class__.__name__}"}
        }
    if rates is None:
        return {}
    names = dict.fromkeys(name for values in rates.rounds for name in values)
    products = {
        name.removeprefix(PRODUCT): rates.median(name) for name in names if name.startswith(PRODUCT)
    }
    facts = {
        "taken": day(rates),
        "torch": rates.torch,
        "products": products,
        "bandwidth": rates.bandwidth,
        "beside_others": rates.beside_others,
    }
    return {"rates": facts | ({"threads": rates.threads} if device == "cpu" else {})}


def day(rates: DeviceRates) -> str:
    """Date of the measurement, ``2026-11-22``, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(rates.taken_ns / 1e9))


def rates_check(device: str, torch: str | None, now_ns: int, root: Path | None = None) -> Check:
    """The device's rates as a check of ``doctor``.

    Args:
        device: ``cpu`` or ``cuda:N``.
        torch: Version of torch that runs would use; None without torch.
        now_ns: Unix epoch.
        root: Home (default: the user's).
    """
    again = "`sysbench-tui doctor --measure`, about a minute a device"
    name = "measured rates"
    try:
        rates = last_rates(device, root)
    except DamagedFileError as error:
        return Check(
            name=name,
            status="warning",
            found=str(error),
            costs="roofs and MFU cannot use them",
            remedy=f"delete the file, then {again}",
        )
    if rates is None:
        roof = "only --peak gives one" if device == "cpu" else "they follow the data sheet"
        return Check(
            name=name,
            status="missing",
            found="not measured on this device",
            costs=f"roofs and MFU do not know what it really reaches: {roof}",
            remedy=again,
        )
    products = [rates.median(kind) for kind in rates.rounds[-1] if kind.startswith(PRODUCT)]
    best = max((value for value in products if value is not None), default=0.0)
    found = f"{format_count(best)}FLOP/s at most, measured on {day(rates)}"
    doubts = []
    days = max(0, now_ns - rates.taken_ns) // DAY_NS
    if days > OLD_DAYS:
        doubts.append(f"they are {counted(days, 'day')} old")
    if rates.beside_others:
        doubts.append(f"other work was under way, load average {rates.load_average:.1f}")
    if torch and rates.torch != torch:
        doubts.append(f"they were measured with torch {rates.torch}, here is {torch}")
    if not doubts:
        return Check(name=name, status="ok", found=found)
    return Check(
        name=name,
        status="warning",
        found=found,
        costs=f"roofs and MFU may rest on what no longer holds: {' and '.join(doubts)}",
        remedy=again,
    )
