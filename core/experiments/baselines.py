"""Named baselines: copies of runs' records that later runs are judged against.

``baselines/NAME.json`` in the data folder, or any file. A baseline outlives its run.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.compare.compared_records import counted_ms, verdict_of
from sysbench.core.compare.comparison import Factor, differing, differing_facts
from sysbench.core.compare.gate_rule import Gate, check_timed, gate_of, undecided
from sysbench.core.compare.interval import IN_TURN
from sysbench.core.compare.verdict import MIN_EFFECT, Verdict, headline
from sysbench.core.errors import DamagedFileError, NotFoundError, SpecError, SysbenchError
from sysbench.core.experiments.noise import known_noise
from sysbench.core.formatting import did_you_mean, percent
from sysbench.core.machine.read_environment import cpu_model, workers_package
from sysbench.core.record.environment import machine, other_facts
from sysbench.core.record.record import SCHEMA, Record
from sysbench.core.spec.passes import MAX_ROUNDS
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.storage import (
    UNREADABLE_JSON,
    baselines_folder,
    has_folder,
    make_folder,
    read_json,
    write_atomically,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_ALLOWED = "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first"


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A record under a name.

    Attributes:
        run: Id of the run that it was copied from.
        digest: SHA-256 of everything else in it; empty in older files.
    """

    name: str
    saved_ns: int
    run: str
    machine: dict[str, str | int | None]
    record: Record
    schema: int = SCHEMA
    digest: str = ""

    @property
    def rounds_ms(self) -> list[float]:
        return counted_ms(self.record.timing) if self.record.timing else []

    @property
    def spec(self) -> RunSpec:
        """Return the measured spec; SpecError if it is of another version of this program."""
        return parse_spec(self.record.spec)


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the list of baselines; a damaged one has its name and the problem."""

    name: str
    path: str
    baseline: Baseline | None = None
    problem: str = ""


def check_name(name: str) -> str:
    """Return the name, or raise SpecError if it cannot be a file's name."""
    if not NAME.fullmatch(name):
        raise SpecError("NAME", name, NAME_ALLOWED)
    return name


def baseline_path(name: str, root: Path | None = None) -> Path:
    return baselines_folder(root) / f"{check_name(name)}.json"


def save_baseline(
    name: str,
    record: Record,
    *,
    file: Path | None = None,
    force: bool = False,
    root: Path | None = None,
) -> Path:
    """Copy a run's record under a name, and return its file.

    Args:
        record: Record of a run that was timed and has ended.
        file: Path to write instead of the file in the data folder.
        force: Replace an existing baseline.

    Raises:
        SpecError: The name is invalid, the baseline exists, or no round of the run counts.
        WorkerFailed: The run failed.
        OSError: The file cannot be written.
    """
    path = _file_of(name, file, root)
    if record.status == "running":
        raise SpecError("RUN", record.id, "one that has ended: this one still runs")
    check_timed(record)
    if record.timing is None or not counted_ms(record.timing):
        raise SpecError("RUN", record.id, "one with a step time: no round of this one counts")
    if path.exists() and not force:
        raise SpecError("NAME", name, f"not taken yet; --force replaces {path}")
    baseline = Baseline(
        name=name,
        saved_ns=time.time_ns(),
        run=record.id,
        machine=machine(record.environment),
        record=record,
    )
    if file is None:
        make_folder(path.parent)
    baseline = msgspec.structs.replace(baseline, digest=_digest(msgspec.json.encode(baseline)))
    write_atomically(path, msgspec.json.format(msgspec.json.encode(baseline), indent=2))
    return path


def load_baseline(name: str, *, file: Path | None = None, root: Path | None = None) -> Baseline:
    """Read a baseline, from ``file`` if it is not in the data folder.

    Raises NotFoundError, and DamagedFileError also if it was changed after it was saved.
    """
    path = _file_of(name, file, root)
    baseline = _read(path)
    if baseline.name != name:
        raise NotFoundError(f"{path} contains the baseline {baseline.name!r}, not {name!r}")
    return baseline


def list_baselines(root: Path | None = None) -> list[Listed]:
    folder = baselines_folder(root)
    paths = sorted(folder.glob("*.json")) if has_folder(folder) else []
    return [_listed(path, root) for path in paths if NAME.fullmatch(path.stem)]


def _listed(path: Path, root: Path | None) -> Listed:
    try:
        baseline = load_baseline(path.stem, root=root)
    except SysbenchError as error:
        return Listed(name=path.stem, path=str(path), problem=str(error))
    return Listed(name=path.stem, path=str(path), baseline=baseline)


def delete_baseline(name: str, root: Path | None = None) -> Path:
    """Remove a baseline, also a damaged one, and return its file; raises NotFoundError."""
    path = baseline_path(name, root)
    try:
        path.unlink()
    except FileNotFoundError:
        raise _not_there(path) from None
    return path


def _file_of(name: str, file: Path | None, root: Path | None) -> Path:
    check_name(name)
    return file or baseline_path(name, root)


def _read(path: Path) -> Baseline:
    try:
        data = read_json(path)
        baseline = msgspec.json.decode(data, type=Baseline)
    except FileNotFoundError:
        raise _not_there(path) from None
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path} is not a baseline: {error}") from error
    if max(baseline.schema, baseline.record.schema) > SCHEMA:
        raise DamagedFileError(f"{path} is of a later version, this one reads schema {SCHEMA}")
    times = baseline.rounds_ms
    if baseline.record.timing is not None:
        times = [*times, baseline.record.timing.step.median_ms]
    if not baseline.rounds_ms or not all(ms > 0 and math.isfinite(ms) for ms in times):
        raise DamagedFileError(f"{path} is not a baseline: it has no step time above zero")
    if baseline.digest and baseline.digest != _digest(data):
        raise DamagedFileError(f"{path} was changed after it was saved: save the baseline again")
    return baseline


def _digest(data: bytes) -> str:
    """Hash the content without the digest itself, whatever the layout and the order of keys."""
    content = msgspec.json.decode(data, type=dict[str, Any])
    content.pop("digest", None)
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def _not_there(path: Path) -> NotFoundError:
    hint = did_you_mean(path.stem, [file.stem for file in path.parent.glob("*.json")])
    return NotFoundError(
        f"no baseline {path.stem!r}, there is no {path}; {hint}"
        "`sysbench-tui baseline list` shows all, `baseline save` makes one"
    )


MACHINE_FACTS = ("device_name", "torch", "threads")
"""Facts that identify the machine, unless the user allows them to differ."""


class GateSide(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a gate.

    Attributes:
        ci_low_ms: Lower end of its 95 % interval.
        interval_of: ``rounds``, or ``steps`` of one process.
    """

    run: str
    created_ns: int
    median_ms: float
    ci_low_ms: float
    ci_high_ms: float
    interval_of: str
    rounds: int


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A run against a baseline.

    Attributes:
        verdict: The run against the baseline; null if the two cannot be compared.
        a: The baseline's side.
        b: The run's side; null if nothing was measured.
        obstacles: Differences that prevent a comparison.
        differs: Other facts of the two machines that differ.
        drift: Known change between batches of rounds on this machine, as a share, which widens the
            interval; null if unknown or irrelevant.
        note: What the rounds of the two sides cannot show.
    """

    baseline: str
    saved_ns: int
    gate: Gate
    headline: str
    verdict: Verdict | None = None
    a: GateSide
    b: GateSide | None = None
    obstacles: list[Factor] = []
    differs: list[Factor] = []
    drift: float | None = None
    note: str = ""


def foreign_here(baseline: Baseline) -> list[Factor]:
    """Return the facts known before measuring in which this machine differs from the baseline's.

    Of a CUDA device only its absence is known before a worker has seen it.
    """
    spec, environment = baseline.spec, baseline.record.environment
    packages = environment.get("packages") or {}
    current = machine(environment) | {"torch": workers_package("torch")}
    before = machine(environment) | {"torch": packages.get("torch")}
    try:
        resolve(spec)
    except SpecError as error:
        current["device_name"] = f"none: {error}"
    else:
        if not spec.on_cuda and environment.get("cpu"):
            current["device_name"] = cpu_model()
    return [
        Factor(name=name, a=before[name], b=current[name])
        for name in MACHINE_FACTS
        if before[name] is not None and before[name] != current[name]
    ]


def judge_run(
    baseline: Baseline,
    record: Record,
    margin: float,
    *,
    smallest: float = MIN_EFFECT,
    across: Collection[str] = (),
    root: Path | None = None,
) -> Judgement:
    """Judge a run against a baseline.

    Args:
        margin: Slowdown that is allowed, as a share of the baseline's time.
        smallest: Smallest difference that matters, as a share.
        across: Facts of `MACHINE_FACTS` that may differ.

    Raises:
        SpecError: The run is the one that the baseline was saved from.
        WorkerFailed: The run failed before it had a step time.
        DamagedFileError: The file of the noise floors cannot be read.
    """
    if record.id == baseline.run:
        raise SpecError("RUN", record.id, "another run than the one that was saved as baseline")
    check_timed(record)
    before = baseline.record
    rows = differing(before, record)
    differs = differing_facts(other_facts(before.environment), other_facts(record.environment))
    obstacles = _obstacles(before, record, [row for row in rows if row.name not in across])
    if obstacles:
        return not_comparable(baseline, margin, obstacles, record, differs)
    known = known_noise(before, record, root)
    verdict = verdict_of(before, record, known, smallest=smallest)
    names = ("the baseline", "the run")
    gate = gate_of(before, record, verdict, margin, known, names=names)
    if gate.rounds is not None:
        following = f"{gate.next}; {_option(baseline, gate.rounds)}"
        gate = msgspec.structs.replace(gate, next=following)
    return Judgement(
        baseline=baseline.name,
        saved_ns=baseline.saved_ns,
        gate=gate,
        headline=headline(verdict),
        verdict=verdict,
        a=_side(before),
        b=_side(record) if record.timing else None,
        differs=[row for row in rows if row.name in across] + differs,
        drift=known.drift or None if verdict.basis == "separate rounds" else None,
        note=_note(verdict.basis, known.drift),
    )


def _option(baseline: Baseline, rounds: int) -> str:
    option = f"gate with `--repeat {rounds}`"
    if rounds > MAX_ROUNDS:
        return f"more than the {MAX_ROUNDS} of a run, so take a wider margin"
    if len(baseline.rounds_ms) < rounds:
        return f"save a baseline of `run --repeat {rounds}`, then {option}"
    return option


def _obstacles(a: Record, b: Record, rows: list[Factor]) -> list[Factor]:
    if a.identity == b.identity:
        return [row for row in rows if row.name in MACHINE_FACTS]
    if all(row.name in MACHINE_FACTS for row in rows):
        return [*rows, Factor(name="identity", a=a.identity, b=b.identity)]
    return rows


def not_comparable(
    baseline: Baseline,
    margin: float,
    obstacles: list[Factor],
    record: Record | None = None,
    differs: Sequence[Factor] = (),
) -> Judgement:
    names = {row.name for row in obstacles}
    kinds = ["another machine"] if names & set(MACHINE_FACTS) else []
    kinds += ["another spec"] if names - set(MACHINE_FACTS) else []
    what = " and ".join(kinds)
    facts = "; ".join(f"{row.name} {row.a} in the baseline, {row.b} now" for row in obstacles)
    following = "save a baseline of this machine and spec with `sysbench-tui baseline save`"
    if names <= {"torch", "threads"}:
        words = " ".join(f"--across {name}" for name in sorted(names))
        following += f", or compare anyway with `{words}`"
    return Judgement(
        baseline=baseline.name,
        saved_ns=baseline.saved_ns,
        gate=undecided(margin, f"the baseline is of {what}: {facts}", following),
        headline=f"not comparable: {what}",
        a=_side(baseline.record),
        b=_side(record) if record and record.timing else None,
        obstacles=obstacles,
        differs=list(differs),
    )


def _note(basis: str, drift: float) -> str:
    if basis in IN_TURN:
        return ""
    text = (
        "The processes of the baseline and of the run ran at different times: a change of the "
        "machine in between looks like a change of the run."
    )
    if basis != "separate rounds":
        return text
    if drift:
        return f"{text} The interval is wider by this machine's known drift, {percent(drift, 2)}."
    return f"{text} Its drift is not known here; `sysbench-tui doctor --noise` measures it."


def _side(record: Record) -> GateSide:
    timing = record.timing
    if timing is None:
        raise SpecError("RUN", record.id, "one with a step time")
    return GateSide(
        run=record.id,
        created_ns=record.created_ns,
        median_ms=timing.step.median_ms,
        ci_low_ms=timing.step.ci_low_ms,
        ci_high_ms=timing.step.ci_high_ms,
        interval_of=timing.interval_of,
        rounds=len(counted_ms(timing)),
    )
