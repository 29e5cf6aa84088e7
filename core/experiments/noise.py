"""The machine's own noise, measured by comparing a spec with itself: ``noise.json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sysbench.core.compare.noise_sources import NoiseSource
from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import counted, percent
from sysbench.core.machine.doctor_check import Check
from sysbench.core.storage import UNREADABLE_JSON, home, make_folder, read_json, write_atomically


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Advice against the noise.

    Only floors of versions that tried remedies have more than ``name`` and ``detail``: the spread
    between processes ``before`` and ``after`` as shares, their ``ratio`` with its interval from
    ``low`` to ``high``, ``rounds`` of either side, and whether they ``decided``.
    """

    name: str
    before: float | None = None
    after: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    decided: bool = False
    detail: str


class NoiseFloor(msgspec.Struct, frozen=True, kw_only=True):
    """Variation of one spec's figures on one device of this machine.

    Attributes:
        between: Standard deviation between processes, as a share.
        drift: Largest change between the first and the last part of the measurement that its rounds
            do not exclude, as a share.
        inside: Median half-width of the interval inside a process, as a share.
        residuals: Log deviations of the rounds in the order of measuring, for the power of later
            comparisons.
        low: Lower end of the 95 % interval of ``between``; null in older files, as ``high``.
        pair: Difference of two single processes that 95 % of pairs stay within, as a share.
        step_ms: Middle of the rounds' medians.
        left_out: Rounds that were disturbed and do not count.
        experiment: Id of the comparison of the spec with itself, with its rounds.
    """

    device: str
    measured_ns: int
    subject: str
    identity: str
    rounds: int
    between: float
    drift: float
    inside: float
    residuals: list[float]
    sources: list[NoiseSource] = []
    remedies: list[Remedy] = []
    low: float | None = None
    high: float | None = None
    pair: float | None = None
    step_ms: float | None = None
    left_out: int = 0
    seconds: float = 0.0
    torch: str = ""
    experiment: str = ""


def noise_path(root: Path | None = None) -> Path:
    return (root or home()) / "noise.json"


def noise_floors(root: Path | None = None) -> dict[str, NoiseFloor]:
    """Return the floors by device; empty if nothing was measured. Raises DamagedFileError."""
    path = noise_path(root)
    try:
        rows = msgspec.json.decode(read_json(path), type=list[NoiseFloor])
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path}: {error}; delete it and measure again") from error
    return {row.device: row for row in rows}


def save_noise_floor(floor: NoiseFloor, root: Path | None = None) -> None:
    rows = {**noise_floors(root), floor.device: floor}
    make_folder(noise_path(root).parent)
    data = msgspec.json.format(msgspec.json.encode(list(rows.values())), indent=2)
    write_atomically(noise_path(root), data)


OLD_DAYS = 30
"""Age from which a floor is worth measuring again."""


def noise_check(device: str, torch: str | None, now_ns: int) -> Check:
    """Check the device's floor for ``doctor``.

    Args:
        device: Name of the device of runs here.
    """
    again = "`sysbench-tui doctor --noise`, 3 minutes"
    try:
        floor = noise_floors().get(device)
    except DamagedFileError as error:
        return Check(
            name="noise floor",
            status="warning",
            found=str(error),
            costs="verdicts cannot use this machine's noise",
            remedy=f"delete the file, then {again}",
        )
    if floor is None:
        return Check(
            name="noise floor",
            status="missing",
            found="not measured on this device",
            costs="the smallest difference that ab can detect is unknown",
            remedy=again,
        )
    days = age_days(floor, now_ns)
    when = f"{counted(days, 'day')} ago" if days else "within a day"
    text = (
        f"±{percent(floor.between, 2)} between {floor.rounds} processes of {floor.subject}, "
        f"measured {when}"
    )
    reasons = []
    if days > OLD_DAYS:
        reasons.append(f"it is older than {OLD_DAYS} days")
    if floor.torch and torch and floor.torch != torch:
        reasons.append(f"it was measured with torch {floor.torch}, here is {torch}")
    if not reasons:
        return Check(name="noise floor", status="ok", found=text)
    return Check(
        name="noise floor",
        status="warning",
        found=text,
        costs=f"forecasts may be outdated: {' and '.join(reasons)}",
        remedy=again,
    )


def age_days(floor: NoiseFloor, now_ns: int) -> int:
    return max(0, now_ns - floor.measured_ns) // (86_400 * 10**9)
