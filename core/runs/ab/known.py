"""Noise that the library knows: the spread of a spec's earlier processes on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from ...analysis.verdict.interval import LEAST_KNOWN
from ...analysis.verdict.power import normal_residuals
from ...analysis.verdict.records import Known, counted_ms
from ...errors import SysbenchError
from ...formatting import percent
from ...record.environment import device_name, threads, torch_version
from ...record.record import Record
from ..builder import load_record
from ..library import Library
from .noise import NoiseFloor, noise_floors

MOST_RUNS = 50


def known_noise(a: Record, b: Record, root: Path | None = None) -> Known:
    """Everything that this machine's runs say on the noise of two runs.

    Nothing is known of runs from another machine.

    Args:
        a: The run to judge against.
        b: The run that is judged.
        root: Home (default: the user's).

    Raises:
        DamagedFileError: The file of the noise floors cannot be read.
    """
    floor = _floor_of(a, root) or _floor_of(b, root)
    a_ms = known_medians(a, root)
    alike = a.identity == b.identity and _machine(a) == _machine(b)
    return Known(
        a_ms=a_ms,
        # The processes of one spec are one sample, not two.
        b_ms=() if alike else known_medians(b, root),
        floor=floor.between if floor else 0.0,
        drift=floor.drift if floor else 0.0,
    )


def known_medians(record: Record, root: Path | None = None) -> tuple[float, ...]:
    """Step medians of all finished processes of the record's spec on this machine, in ms.

    Another torch, device or number of threads is another machine.
    """
    return tuple(
        median
        for other in runs_of(record.identity, str(record.spec.get("model", "")), root)
        if other.timing is not None and _machine(other) == _machine(record)
        for median in counted_ms(other.timing)
    )


def runs_of(identity: str, model: str, root: Path | None = None) -> list[Record]:
    """Timed runs of a spec, newest first, at most `MOST_RUNS`; unreadable ones are skipped.

    Args:
        identity: Of the spec.
        model: Its preset, by which the library is searched.
        root: Home (default: the user's).
    """
    library = Library(root)
    records: list[Record] = []
    for entry in library.entries(model):
        if entry.identity != identity or entry.median_ms is None or entry.live:
            continue
        with suppress(SysbenchError):  # it was deleted or damaged since it was listed
            records.append(load_record(library.open(entry.id)))
        if len(records) == MOST_RUNS:
            break
    return records


class NoiseKnown(msgspec.Struct, frozen=True, kw_only=True):
    """Noise between rounds that a plan is made with.

    Attributes:
        residuals: Log deviations of rounds.
        spread: Their standard deviation, as a share.
        source: Sentence part that names the rounds.
    """

    residuals: tuple[float, ...]
    spread: float
    source: str


def noise_to_plan_with(
    medians_ms: tuple[float, ...], floor: NoiseFloor | None
) -> NoiseKnown | None:
    """The noise of the spec's own earlier processes; else of the machine; None if neither is known.

    Args:
        medians_ms: Step medians of the spec's earlier processes.
        floor: The device's noise floor.
    """
    if len(medians_ms) >= LEAST_KNOWN:
        spread = stdev(medians_ms) / fmean(medians_ms)
        return NoiseKnown(
            residuals=tuple(normal_residuals(spread)),
            spread=spread,
            source=f"±{percent(spread, 2)} between {len(medians_ms)} earlier processes of A",
        )
    if floor is None:
        return None
    return NoiseKnown(
        residuals=tuple(floor.residuals),
        spread=floor.between,
        source=f"±{percent(floor.between, 2)} between {floor.rounds} processes of "
        f"{floor.subject}, this machine's noise floor",
    )


def _floor_of(record: Record, root: Path | None) -> NoiseFloor | None:
    name = device_name(record.environment)
    return noise_floors(root).get(name) if name else None


def _machine(record: Record) -> tuple[object, ...]:
    environment = record.environment
    return device_name(environment), torch_version(environment), threads(environment)
