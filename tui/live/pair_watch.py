"""Follow two compared runs or files, and the experiment that measures the runs, on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sysbench.core.compare.compared_records import Look, looks_of
from sysbench.core.compare.comparison import Comparison, compare
from sysbench.core.compare.conditions import Condition, conditions_of
from sysbench.core.compare.difference import DifferenceSide
from sysbench.core.compare.verdict import Verdict
from sysbench.core.errors import DamagedFileError
from sysbench.core.experiments.experiment import ExperimentDirectory, list_experiments
from sysbench.core.experiments.experiment_report import (
    ExperimentReport,
    experiment_report,
    shared_experiment,
)
from sysbench.core.experiments.noise import known_noise
from sysbench.core.inspection.compared_sides import ComparedSource, compare_sides, read_sides
from sysbench.core.record.record import Record
from sysbench.core.record.timing import Round
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.tui.live.run_watch import file_stamp

Stamp = tuple[object, ...]

MAX_RECENT = 20
"""Newest experiments to search for a live one."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs or files to compare, and the experiment that measures the runs, if just started."""

    a: ComparedSource
    b: ComparedSource
    experiment: ExperimentDirectory | None = None

    @property
    def experiment_id(self) -> str:
        return self.experiment.id if self.experiment else ""

    @property
    def names(self) -> tuple[str, str]:
        a, b = (x.id if isinstance(x, RunDirectory) else str(x) for x in (self.a, self.b))
        return a, b

    @property
    def runs(self) -> tuple[RunDirectory, RunDirectory] | None:
        """Both runs; None if a side is a file."""
        if isinstance(self.a, RunDirectory) and isinstance(self.b, RunDirectory):
            return self.a, self.b
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Both sides as they are on disk, and the comparison of B with A.

    Attributes:
        sides: Both with their rows by layer; null for two runs, whose rows are read later.
        directory: The experiment that measured both, or None.
        report: Its report, with the sides of the pair.
        can_go_on: Whether `ab --resume` can add rounds; not for those of the noise doctor.
        verdict: B against A; in an experiment only complete blocks count.
        rounds_a: Rounds of A that the verdict uses.
        looks: After each complete block or pair of the experiment.
    """

    a: Record
    b: Record
    comparison: Comparison
    verdict: Verdict
    directory: ExperimentDirectory | None = None
    report: ExperimentReport | None = None
    can_go_on: bool = False
    rounds_a: Sequence[Round] = ()
    rounds_b: Sequence[Round] = ()
    looks: Sequence[Look] = ()
    conditions: Sequence[Condition] = ()
    sides: tuple[DifferenceSide, DifferenceSide] | None = None


class PairWatch:
    """Polling costs a few stat calls while nothing changes; call `read` in a thread."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.directory = pair.experiment
        self._stamp: Stamp = ()

    @property
    def is_live(self) -> bool:
        return self.directory is not None and self.directory.is_live()

    def has_changed(self) -> bool:
        """Whether files or the experiment's process changed since the last call."""
        files = [
            source.record_path if isinstance(source, RunDirectory) else source
            for source in (self.pair.a, self.pair.b)
        ]
        if self.directory is not None:
            files += [self.directory.path / name for name in ("experiment.json", "ending.json")]
        stamp = (*map(file_stamp, files), self.is_live)
        previous, self._stamp = self._stamp, stamp
        return stamp != previous

    def live_side(self) -> str:
        runs = self.pair.runs
        if not self.is_live or runs is None:
            return ""
        return "A" if runs[0].is_live() else "B" if runs[1].is_live() else ""

    def began_seconds(self) -> float | None:
        """Start of the experiment's live process, in seconds since the epoch."""
        if self.directory is None:
            return None
        try:
            return self.directory.lock_path.stat().st_mtime
        except FileNotFoundError:
            return None

    def read(self) -> Reading:
        """Read and compare both sides; raises SysbenchError."""
        if self.pair.runs is None:
            return self._read_files()
        a, b = map(load_record, self.pair.runs)
        root = self.pair.runs[0].path.parent.parent
        directory = self.directory or shared_experiment(a, b, root)
        rounds_a, rounds_b = watched_rounds(a), watched_rounds(b)
        looks = looks_of(rounds_a, rounds_b)
        if directory is None:
            comparison = compare(a, b, known_noise(a, b, root))
            report, can_go_on, verdict = None, False, comparison.step
            on_gpu = any(str(run.spec.get("device")).startswith("cuda") for run in (a, b))
            conditions = conditions_of(rounds_a, rounds_b, on_gpu=on_gpu)
        else:
            experiment = directory.experiment()
            # The pair may have the opposite order of the experiment.
            swapped = (experiment.a, experiment.b) == (b.id, a.id)
            report = experiment_report(directory, swapped=swapped)
            can_go_on = experiment.purpose == "ab" and bool(report.resume)
            # Interleaved rounds provide their own spread.
            comparison = compare(a, b, smallest=experiment.smallest)
            verdict, conditions = report.verdict, report.conditions
            rounds_a, rounds_b = report.a.rounds, report.b.rounds
            if not looks:
                what = "pair of rounds" if experiment.method == "duet" else "block of four rounds"
                why = f"no {what} is complete"
                verdict = Verdict(verdict="not decidable", why=why, smallest=experiment.smallest)
        return Reading(
            a=a,
            b=b,
            directory=directory,
            report=report,
            can_go_on=can_go_on,
            comparison=comparison,
            verdict=verdict,
            rounds_a=rounds_a,
            rounds_b=rounds_b,
            looks=looks,
            conditions=conditions,
        )

    def _read_files(self) -> Reading:
        sides = read_sides(self.pair.a, self.pair.b)
        comparison, _ = compare_sides(*sides)
        return Reading(
            a=sides[0].record,
            b=sides[1].record,
            comparison=comparison,
            verdict=comparison.step,
            sides=sides,
        )


def watched_rounds(record: Record) -> list[Round]:
    """Return the rounds of a run; a run timed by one process counts as one round."""
    timing = record.timing
    if timing is None:
        return []
    if timing.rounds:
        return timing.rounds
    only = Round(
        index=1,
        started_ns=record.created_ns,
        outcome="finished",
        median_ms=timing.step.median_ms,
        steps=timing.step.n,
    )
    return [only]


def live_pair() -> Pair | None:
    for directory in recent_experiments():
        with suppress(DamagedFileError):
            if directory.is_live():
                return pair_of(directory)
    return None


def recent_experiments(root: Path | None = None) -> Iterator[ExperimentDirectory]:
    """Yield the newest experiments, except those of the noise doctor."""
    for directory in list_experiments(root)[:MAX_RECENT]:
        with suppress(DamagedFileError):
            if directory.experiment().purpose == "ab":
                yield directory


def pair_of(directory: ExperimentDirectory) -> Pair:
    """Return the two runs of an experiment; raises DamagedFileError."""
    return Pair(directory.run("A"), directory.run("B"), directory)
