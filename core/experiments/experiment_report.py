"""The JSON report of an experiment."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.compare.compared_records import last_experiment, verdict_of
from sysbench.core.compare.comparison import Factor, differing
from sysbench.core.compare.conditions import (
    MAX_REPEATS,
    Condition,
    accepted_rounds,
    conditions_of,
)
from sysbench.core.compare.gate_rule import Gate, gate_of, undecided
from sysbench.core.compare.interval import IN_TURN
from sysbench.core.compare.verdict import Verdict, headline
from sysbench.core.errors import NotFoundError, WorkerFailed
from sysbench.core.experiments.experiment import (
    Experiment,
    ExperimentDirectory,
    ExperimentEnd,
    find_experiment,
)
from sysbench.core.experiments.experiment_runner import (
    experiment_rounds,
)
from sysbench.core.experiments.plan import Method, Plan
from sysbench.core.formatting import counted
from sysbench.core.record.record import Record
from sysbench.core.record.timing import Energy, Round
from sysbench.core.runs.run_directory import load_record


class RoundsOf(msgspec.Struct, frozen=True, kw_only=True):
    """One side of an experiment.

    Attributes:
        run: Id of the run that has the rounds.
        spec: All keys of its spec.
        loss_start: Loss of the very first step; null without one.
        rounds: All its rounds in this experiment, those that do not count included.
        energy: Of a step, over all rounds of its run that count; null if it was not measured.
    """

    run: str
    spec: dict[str, Any]
    loss_start: float | None
    rounds: list[Round]
    energy: Energy | None = None


class ExperimentReport(msgspec.Struct, frozen=True, kw_only=True):
    """Present state of an experiment.

    Attributes:
        ending: How it ended, or ``running``.
        seconds: Duration of its last process; null without an ending.
        verdict: B against A, on the complete blocks.
        blocks: Complete blocks of four rounds.
        pairs: Complete pairs of processes that took turns.
        method: How rounds were measured, see `Experiment`; ``why_blocks`` is why not in pairs.
        metric: What is compared of two commands, ``steps`` or ``wall``; empty of two specs.
        plan: Forecast before the start; null without one.
        factors: Settings and facts of the machine in which the two differ.
        conditions: State of the machine during the rounds.
        repeat: Command that repeats the experiment.
        resume: Command that continues this one; empty if it is complete.
    """

    id: str
    created_ns: int
    is_live: bool
    ending: str
    detail: str
    seconds: float | None
    headline: str
    verdict: Verdict
    gate: Gate | None
    blocks: int
    pairs: int
    method: Method
    why_blocks: str
    metric: str
    seed: int
    max_minutes: float
    plan: Plan | None
    a: RoundsOf
    b: RoundsOf
    factors: list[Factor]
    conditions: list[Condition]
    repeat: str
    resume: str


def experiment_report(directory: ExperimentDirectory, *, swapped: bool = False) -> ExperimentReport:
    """Report an experiment that runs, ended, or was killed; raises DamagedFileError.

    ``swapped`` judges its A against its B, without its gate.
    """
    is_live = directory.is_live()
    experiment = directory.experiment()
    records = load_record(directory.run("A")), load_record(directory.run("B"))
    if swapped:
        # A gate bounds the slowdown of the experiment's B only.
        experiment, records = msgspec.structs.replace(experiment, gate=None), records[::-1]
    return _report(experiment, directory.ended(), records, is_live=is_live)


def shared_experiment(a: Record, b: Record, root: Path | None = None) -> ExperimentDirectory | None:
    """Return the last experiment that measured both runs, unless it was deleted."""
    rounds_a, rounds_b = (record.timing.rounds if record.timing else [] for record in (a, b))
    name = last_experiment(rounds_a, rounds_b)
    if name:
        with suppress(NotFoundError):
            return find_experiment(name, root)
    return None


def _report(
    experiment: Experiment,
    ended: ExperimentEnd | None,
    records: tuple[Record, Record],
    *,
    is_live: bool,
) -> ExperimentReport:
    a, b = records
    side_a, side_b = _side(a, experiment.id), _side(b, experiment.id)
    verdict = verdict_of(a, b, smallest=experiment.smallest)
    ending = "running" if is_live else ended.ending if ended else "killed"
    can_go_on = not is_live and (ended is None or ended.can_go_on)
    resume = f"sysbench-tui ab --resume {shlex.quote(experiment.id)}" if can_go_on else ""
    if verdict.verdict == "not decidable" and verdict.basis not in IN_TURN:
        # Without a complete block or pair the advice is to measure both in turn, as this one does.
        verdict = msgspec.structs.replace(
            verdict, next=f"`{resume}` continues it" if resume else ""
        )
    detail = ended.detail if ended else "its process was killed; its rounds are stored"
    return ExperimentReport(
        id=experiment.id,
        created_ns=experiment.created_ns,
        is_live=is_live,
        ending=ending,
        detail="" if is_live else detail,
        seconds=ended.seconds if ended else None,
        headline=headline(verdict),
        verdict=verdict,
        gate=_gate(records, verdict, experiment.gate, ended),
        blocks=verdict.rounds_a // 2 if verdict.basis == "interleaved rounds" else 0,
        pairs=verdict.rounds_a if verdict.basis == "duet pairs" else 0,
        method=experiment.method,
        why_blocks=experiment.why_blocks,
        metric=experiment.metric,
        seed=experiment.seed,
        max_minutes=experiment.max_minutes,
        plan=experiment.plan,
        a=side_a,
        b=side_b,
        factors=differing(a, b),
        conditions=[
            *conditions_of(side_a.rounds, side_b.rounds, on_gpu=_is_on_gpu(a) or _is_on_gpu(b)),
            *_neighbours_that_stayed(side_a.rounds, side_b.rounds),
        ],
        repeat=f"sysbench-tui ab {shlex.quote(a.id)} {shlex.quote(b.id)}{_options(experiment)}",
        resume=resume,
    )


def _gate(
    records: tuple[Record, Record],
    verdict: Verdict,
    margin: float | None,
    ended: ExperimentEnd | None,
) -> Gate | None:
    if margin is None:
        return None
    if ended is not None and ended.ending == "failed":
        return undecided(margin, ended.detail, "")
    try:
        return gate_of(*records, verdict, margin)
    except WorkerFailed as error:
        return undecided(margin, str(error), "")


def _side(record: Record, experiment: str) -> RoundsOf:
    return RoundsOf(
        run=record.id,
        spec=record.spec,
        loss_start=record.timing.loss_start if record.timing else None,
        rounds=experiment_rounds(record, experiment),
        energy=record.timing.energy if record.timing else None,
    )


def _is_on_gpu(record: Record) -> bool:
    return str(record.spec.get("device", "")).startswith("cuda")


def _neighbours_that_stayed(a: list[Round], b: list[Round]) -> list[Condition]:
    rows = accepted_rounds([*a, *b])
    if not rows:
        return []
    of_a = sum(row in a for row in rows)
    text = (
        f"{counted(len(rows), 'round')} count despite another process that stayed through "
        f"{MAX_REPEATS} repeats"
    )
    return [
        Condition(
            name="neighbour stayed", a=str(of_a), b=str(len(rows) - of_a), text=text, warns=True
        )
    ]


def _options(experiment: Experiment) -> str:
    default = Experiment(id="", created_ns=0, a="", b="", seed=0)
    options = [f"--seed {experiment.seed}"]
    if experiment.smallest != default.smallest:
        options.append(f"--smallest {100 * experiment.smallest:g}%")
    if experiment.gate is not None:
        options.append(f"--gate {100 * experiment.gate:g}%")
    if experiment.method == "blocks" and not experiment.why_blocks:
        options.append("--one-at-a-time")
    if experiment.metric:
        options.append(f"--metric {experiment.metric}")
    if experiment.max_minutes != default.max_minutes:
        options.append(f"--max-minutes {experiment.max_minutes:g}")
    return "".join(f" {option}" for option in options)
