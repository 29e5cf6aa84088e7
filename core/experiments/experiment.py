"""An experiment on disk: two specs compared by interleaved rounds.

``experiment.json`` the decisions made before it began, with the forecast · ``ending.json`` how it
ended, absent while it runs · ``experiment.lock`` held while it runs. The rounds are in the two runs
of the library, so a killed experiment continues where it was.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from sysbench.core.compare.power import ROUNDS_A_BLOCK, ROUNDS_A_PAIR
from sysbench.core.compare.verdict import MIN_EFFECT, Verdict
from sysbench.core.errors import DamagedFileError, NotFoundError, SpecError
from sysbench.core.experiments.plan import Method, Plan, why_not_pairs
from sysbench.core.machine.interpreter import ready_python
from sysbench.core.record.job import Metric
from sysbench.core.runs.job_directory import JobDirectory, job_with_id, new_job_folder
from sysbench.core.runs.run_directory import (
    RunDirectory,
    create_run,
    find_run,
    is_run_id,
    runs_folder,
)
from sysbench.core.spec.passes import check_passes
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import experiment_folders, experiments_folder

Side = Literal["A", "B"]
Purpose = Literal["ab", "noise"]
Ending = Literal["decided", "out-of-time", "out-of-rounds", "failed", "cancelled", "killed"]
"""``failed``: a round did not finish; ``killed``: its process left no ending."""
ORDERS: tuple[tuple[Side, ...], ...] = (("A", "B", "B", "A"), ("B", "A", "A", "B"))
"""Orders of a block; both cancel a linear drift."""
PAIR_ORDERS: tuple[tuple[Side, ...], ...] = (("A", "B"), ("B", "A"))
"""Orders of the turns of a pair."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions made before an experiment: ``experiment.json``.

    Attributes:
        a: Id of the run that collects A's rounds.
        b: Id of B's run.
        smallest: Smallest difference that matters, as a share.
        gate: Slowdown that a gate allows, as a share; null without a gate.
        max_minutes: Minutes after which no new block or pair starts; resets on resume.
        method: How rounds are measured; ``blocks`` in experiments of versions without pairs.
        why_blocks: Why not in pairs; empty if they are.
        metric: What is compared of two commands; empty of two specs, and until the first round of a
            command has shown whether it has steps.
        folder: Working directory of commands.
        purpose: ``ab``, or ``noise`` for rounds of the noise doctor.
        plan: The forecast before the start, to compare with the outcome; null without one.
    """

    id: str
    created_ns: int
    a: str
    b: str
    seed: int
    smallest: float = MIN_EFFECT
    gate: float | None = None
    max_minutes: float = 15.0
    purpose: Purpose = "ab"
    plan: Plan | None = None
    method: Method = "blocks"
    why_blocks: str = ""
    metric: Metric | Literal[""] = ""
    folder: str = ""

    def order(self, block: int) -> tuple[Side, ...]:
        """Return the sides of a block's four rounds, or of a pair, in an order drawn for each."""
        orders = PAIR_ORDERS if self.method == "duet" else ORDERS
        return random.Random(f"{self.seed}/{block}").choice(orders)

    @property
    def block_rounds(self) -> int:
        return ROUNDS_A_PAIR if self.method == "duet" else ROUNDS_A_BLOCK

    @property
    def block_word(self) -> str:
        return "pair" if self.method == "duet" else "block"

    def run_of(self, side: Side) -> str:
        return self.a if side == "A" else self.b


class ExperimentEnd(msgspec.Struct, frozen=True, kw_only=True):
    """End of an experiment: ``ending.json``.

    Attributes:
        seconds: Duration of the experiment's last process; a resumed one had others before.
    """

    ending: Ending
    detail: str
    verdict: Verdict
    seconds: float = 0.0

    @property
    def can_go_on(self) -> bool:
        return self.ending in ("out-of-time", "failed", "cancelled", "killed")


class ExperimentDirectory(JobDirectory):
    kind = "experiment"
    working = "is measured"
    module = "sysbench.core.experiments.experiment_runner"
    lock_name = "experiment.lock"

    def experiment(self) -> Experiment:
        """Read the decisions; DamagedFileError if absent or unreadable."""
        return self.read("experiment.json", Experiment)

    def ended(self) -> ExperimentEnd | None:
        """Read the end; None while there is none. Raises DamagedFileError."""
        return self.read(_ENDING, ExperimentEnd) if (self.path / _ENDING).exists() else None

    def write_end(self, ended: ExperimentEnd) -> None:
        self.write(_ENDING, ended)

    def clear_end(self) -> None:
        (self.path / _ENDING).unlink(missing_ok=True)

    def start(self, *options: str) -> int:
        """Remove the end and start a detached process; DeviceBusyError if there is one already."""
        with self.hold():
            self.clear_end()
        return super().start(*options)

    def run(self, side: Side) -> RunDirectory:
        """Return the run of a side; DamagedFileError if it was deleted, or if its id is a path."""
        run_id = self.experiment().run_of(side)
        if not is_run_id(run_id):
            raise DamagedFileError(f"experiment {self.id}: {run_id!r} is not a run's id")
        run = RunDirectory(runs_folder(self.root) / run_id)
        if not run.header_path.is_file():
            raise DamagedFileError(
                f"run {run.id} with the rounds of {side} in experiment {self.id} is gone"
            )
        return run


_ENDING = "ending.json"


def create_experiment(
    spec_a: RunSpec,
    spec_b: RunSpec,
    *,
    smallest: float = MIN_EFFECT,
    gate: float | None = None,
    max_minutes: float = 15.0,
    seed: int | None = None,
    purpose: Purpose = "ab",
    plan: Plan | None = None,
    method: Method | None = None,
    metric: Metric | Literal[""] = "",
    pythons: tuple[str | None, str | None] = (None, None),
) -> ExperimentDirectory:
    """Make an experiment and its two runs, still without rounds.

    Args:
        smallest: Smallest difference that matters, as a share.
        gate: Slowdown that a gate allows, as a share.
        max_minutes: Minutes after which no new block or pair starts.
        method: None takes pairs where both sides fit the device.
        metric: Of two commands; empty takes the steps if there are any.
        seed: Of the order; None draws one.
        pythons: Interpreters of the sides' workers (default: the chosen one).

    Raises:
        SpecError: A spec has no steps to time, only one is of a command, or workers cannot run in
            an interpreter.
    """
    for spec in (spec_a, spec_b):  # before either has a run
        check_passes(spec, ["timing"])
    if spec_a.is_job != spec_b.is_job:
        raise SpecError("B", spec_b.model, "two specs, or two commands")
    python_a, python_b = map(ready_python, pythons)
    run_a = create_run(spec_a, ["timing"], python=python_a)
    run_b = create_run(spec_b, ["timing"], python=python_b)
    why_blocks = "" if method else why_not_pairs(spec_a, spec_b)
    created_ns = time.time_ns()
    directory = ExperimentDirectory(new_job_folder(experiments_folder(), created_ns))
    directory.write(
        "experiment.json",
        Experiment(
            id=directory.id,
            created_ns=created_ns,
            a=run_a.id,
            b=run_b.id,
            seed=secrets.randbits(32) if seed is None else seed,
            smallest=smallest,
            gate=gate,
            max_minutes=max_minutes,
            purpose=purpose,
            plan=plan,
            method=method or ("blocks" if why_blocks else "duet"),
            why_blocks=why_blocks,
            metric=metric,
            folder=os.getcwd() if spec_a.is_job else "",
        ),
    )
    return directory


def list_experiments(root: Path | None = None) -> list[ExperimentDirectory]:
    return [ExperimentDirectory(path) for path in experiment_folders(root)]


def find_experiment(text: str, root: Path | None = None) -> ExperimentDirectory:
    """Find an experiment by id, a unique part of one, or ``last``, the newest of `ab`.

    Raises NotFoundError.
    """
    every = list_experiments(root)
    if text == "last":
        for directory in every:
            with suppress(DamagedFileError):
                if directory.experiment().purpose == "ab":
                    return directory
    none = f"no experiment {text!r} under {experiments_folder(root)}; `sysbench-tui ab` makes one"
    return job_with_id(text, every, none)


def experiment_meant(text: str, root: Path | None = None) -> ExperimentDirectory | None:
    """Return the experiment of a text that may also name a run; None if it names a run.

    For a run that a live experiment fills, return the experiment: the run alone neither stops nor
    ends.
    """
    try:
        return _live_experiment_of(find_run(text, root).id, root)
    except NotFoundError:
        with suppress(NotFoundError):
            return find_experiment(text, root)
    return None


def _live_experiment_of(run_id: str, root: Path | None) -> ExperimentDirectory | None:
    for directory in list_experiments(root):
        with suppress(DamagedFileError):
            if directory.is_live() and run_id in (
                directory.experiment().a,
                directory.experiment().b,
            ):
                return directory
    return None
