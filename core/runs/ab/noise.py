"""The machine's own noise, measured by comparing a spec with itself: ``noise.json``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...errors import DamagedFileError
from ...storage import home, write_atomically


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One source of noise.

    Attributes:
        name: Such as ``between processes``.
        share: Its size as a share of the step time; null where it cannot be told here.
        how: How the figure was found, or why there is none.
    """

    name: str
    share: float | None
    how: str


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may lower the noise, tried out.

    Attributes:
        name: What was done, such as ``pin to cores 0-3``.
        before: Spread between processes without it, as a share; null where it was not tried.
        after: Spread with it.
        detail: Its effect, or why it was not tried; with the command that repeats it.
    """

    name: str
    before: float | None = None
    after: float | None = None
    detail: str


class NoiseFloor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the figures of one spec lie apart on one device of this machine.

    Attributes:
        device: Name of the device.
        measured_ns: Time of the measurement, Unix epoch.
        subject: The spec in words.
        identity: Of the spec.
        rounds: Processes that it rests on.
        between: Standard deviation between processes, as a share.
        drift: Largest change between the first and the last part of the measurement that its
            rounds do not exclude, as a share.
        inside: Median half-width of the interval inside a process, as a share.
        residuals: Log deviations of the rounds in the order of measuring, for the power of later
            comparisons.
        sources: The noise by source.
        remedies: What was tried against it.
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
    sources: list[Source] = []
    remedies: list[Remedy] = []


def noise_path(root: Path | None = None) -> Path:
    """The file of all devices' floors."""
    return (root or home()) / "noise.json"


def noise_floors(root: Path | None = None) -> dict[str, NoiseFloor]:
    """The floors by device; none where nothing was measured.

    Raises:
        DamagedFileError: The file cannot be read as such.
    """
    path = noise_path(root)
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[NoiseFloor])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"{path}: {error}; delete it and measure again") from error
    return {row.device: row for row in rows}


def keep_noise_floor(floor: NoiseFloor, root: Path | None = None) -> None:
    """Write a device's floor in place of its last one."""
    rows = {**noise_floors(root), floor.device: floor}
    data = msgspec.json.format(msgspec.json.encode(list(rows.values())), indent=2)
    write_atomically(noise_path(root), data)
