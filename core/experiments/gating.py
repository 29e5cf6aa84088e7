"""Judge a run against a baseline, or return the reason why the two cannot be compared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from sysbench.core.compare.compared_records import counted_ms, verdict_of
from sysbench.core.compare.comparison import Factor, differing, differing_facts
from sysbench.core.compare.gate_rule import Gate, check_timed, gate_of, undecided
from sysbench.core.compare.interval import IN_TURN
from sysbench.core.compare.verdict import MIN_EFFECT, Verdict, headline
from sysbench.core.errors import SpecError
from sysbench.core.experiments.baselines import Baseline
from sysbench.core.experiments.known import known_noise
from sysbench.core.formatting import percent
from sysbench.core.machine.read_environment import cpu_model, workers_package
from sysbench.core.record.environment import machine, other_facts
from sysbench.core.record.record import Record
from sysbench.core.spec.passes import MAX_ROUNDS
from sysbench.core.spec.profiles import resolve

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
    """Return the judgement if a run cannot be compared; without a record nothing was measured."""
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
        "The baseline's processes ran first, then the run's: a change of the machine in between "
        "looks like a change of the run."
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
