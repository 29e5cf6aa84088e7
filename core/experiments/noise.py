"""Known noise: the machine's own in ``noise.json``, and the spread of a spec's earlier runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean

import msgspec

from sysbench.core.compare.compared_records import Known, counted_ms
from sysbench.core.compare.interval import MIN_KNOWN
from sysbench.core.compare.noise_sources import NoiseSource
from sysbench.core.errors import DamagedFileError, SysbenchError
from sysbench.core.formatting import counted, percent
from sysbench.core.machine.doctor_check import Check
from sysbench.core.record.environment import device_name, machine, node
from sysbench.core.record.record import Record
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import load_record
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
    days = max(0, now_ns - floor.measured_ns) // (86_400 * 10**9)
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


MAX_RUNS = 50


def known_noise(a: Record, b: Record, root: Path | None = None) -> Known:
    """Collect all known noise of two runs; empty for runs from another machine.

    Raises DamagedFileError if the file of the noise floors cannot be read.
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
    """Return step medians of all finished processes of the record's spec on this machine, in ms.

    Another torch, device, number of threads or node of a cluster is another machine.
    """
    return tuple(
        median
        for other in runs_of(
            record.identity, root, of_command=bool(record.timing and record.timing.of_command)
        )
        if other.timing is not None and _machine(other) == _machine(record)
        for median in counted_ms(other.timing)
    )


def runs_of(identity: str, root: Path | None = None, *, of_command: bool = False) -> list[Record]:
    """Return timed runs of a spec, newest first, at most `MAX_RUNS`; unreadable ones are skipped.

    ``of_command`` chooses those that have wall times of a whole command instead of steps.
    """
    library = Library(root)
    records: list[Record] = []
    for entry in library.entries(identity):
        if entry.identity != identity or entry.median_ms is None or entry.live:
            continue
        with suppress(SysbenchError):  # it was deleted or damaged after it was listed
            record = load_record(library.open(entry.id))
            if record.timing is not None and record.timing.of_command == of_command:
                records.append(record)
        if len(records) == MAX_RUNS:
            break
    return records


class NoiseKnown(msgspec.Struct, frozen=True, kw_only=True):
    """Noise between rounds for a plan.

    Attributes:
        residuals: Log deviations of rounds.
        spread: Their standard deviation, as a share.
        source: Sentence part that names the rounds.
    """

    residuals: tuple[float, ...]
    spread: float
    source: str


def noise_to_plan_with(
    runs_a: Sequence[Record], runs_b: Sequence[Record], floor: NoiseFloor | None
) -> NoiseKnown | None:
    """Return the noise of the specs' own earlier processes, else of the machine, else None.

    Of two specs with a known noise the noisier one's is used for both, so that a plan promises too
    little rather than too much. Runs are of this machine, newest first.
    """
    known = [noise for noise in (_own_noise(runs_a, "A"), _own_noise(runs_b, "B")) if noise]
    if known:
        return max(known, key=lambda noise: noise.spread)
    if floor is None:
        return None
    return NoiseKnown(
        residuals=tuple(floor.residuals),
        spread=floor.between,
        source=f"±{percent(floor.between, 2)} between {floor.rounds} processes of "
        f"{floor.subject}, this machine's noise floor",
    )


def _own_noise(runs: Sequence[Record], side: str) -> NoiseKnown | None:
    """Return deviations of rounds from their run's level, in the order of measuring.

    A change from one run to the next is not noise of interleaved rounds. Runs of one process each,
    which have no level of their own, are pooled as one run if there are too few others.
    """
    medians = [counted_ms(record.timing) for record in reversed(runs) if record.timing is not None]
    groups = [run for run in medians if len(run) > 1]
    if sum(len(run) - 1 for run in groups) < MIN_KNOWN - 1:
        groups.append([run[0] for run in medians if len(run) == 1])
    groups = [group for group in groups if group]
    processes = sum(len(group) for group in groups)
    freedom = processes - len(groups)
    if freedom < MIN_KNOWN - 1:
        return None
    deviations: list[float] = []
    for group in groups:
        logs = [math.log(ms) for ms in group]
        level = fmean(logs)
        deviations += [value - level for value in logs]
    # The levels were estimated from the same rounds, which reduces the deviations.
    scale = math.sqrt(processes / freedom)
    spread = math.expm1(math.sqrt(sum(value * value for value in deviations) / freedom))
    return NoiseKnown(
        residuals=tuple(scale * value for value in deviations),
        spread=spread,
        source=f"±{percent(spread, 2)} between {processes} earlier processes of {side}",
    )


def _floor_of(record: Record, root: Path | None) -> NoiseFloor | None:
    name = device_name(record.environment)
    return noise_floors(root).get(name) if name else None


def _machine(record: Record) -> dict[str, str | int | None]:
    return {**machine(record.environment), "node": node(record.environment)}
