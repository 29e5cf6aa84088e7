"""Run a study on a cluster: submit cells as jobs and read their results.

The run directories are the only state. A later runner follows the jobs of an earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

import msgspec

from sysbench.core.errors import ClusterError, DamagedFileError
from sysbench.core.machine.interpreter import ready_python
from sysbench.core.predict.dry_run_client import Estimator
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory, create_run, load_record, runs_folder
from sysbench.core.studies.forecast import Forecaster
from sysbench.core.studies.slurm import JobState, Slurm
from sysbench.core.studies.study_directory import FINAL_STATUSES, CellEntry, StudyDirectory, unique
from sysbench.core.studies.study_grid import Cell
from sysbench.core.studies.study_runner import (
    CellEnded,
    CellsElsewhere,
    CellStarted,
    EndReason,
    StudyEnded,
    StudyEvent,
    StudyStarted,
    adopt,
    cell_entry,
    cells_to_run,
    predict_cell,
)

POLL_SECONDS = 3.0
"""Interval of queue polls, which load the scheduler for all users."""

LAG_SECONDS = 60.0
"""Maximum delay of a shared file system: NFS caches folders. A job that left the queue gets this
time before its run counts as cut short."""

SILENCE_SECONDS = 900.0
"""Time without an answer from the scheduler before the runner gives up."""


def run_on(
    place: Slurm,
    directory: StudyDirectory,
    cells: Sequence[Cell],
    *,
    cancel: Cancellation | None = None,
    retry: bool = False,
    poll_seconds: float = POLL_SECONDS,
    lag_seconds: float = LAG_SECONDS,
) -> Iterator[StudyEvent]:
    """Run the cells as jobs, yielding events until the last one left the queue.

    A cell that has a job is followed, not submitted again. A cell whose job ended without a value
    is submitted by the next start. Jobs survive this process.

    Raises:
        DeviceBusyError: Another runner works on this study.
        ClusterError: Nothing could be submitted, or the scheduler is silent; jobs go on.
    """
    cancel = cancel or Cancellation()
    with directory.hold():
        follower = _Follower(place, directory, unique(cells), cancel, poll_seconds, lag_seconds)
        yield from follower.run(retry=retry)


@dataclass
class _Follower:
    place: Slurm
    directory: StudyDirectory
    cells: Sequence[Cell]
    cancel: Cancellation
    poll_seconds: float
    lag_seconds: float
    waiting: dict[str, Cell] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    gone: dict[str, float] = field(default_factory=dict)
    done: int = 0

    def run(self, *, retry: bool) -> Iterator[StudyEvent]:
        yield from self._take_up()
        under_way = {cell.id for cell in self.waiting.values()}
        to_run = cells_to_run(self.directory, self.cells, retry=retry)
        todo = [cell for cell in to_run if cell.id not in under_way]
        self.done = len(self.cells) - len(todo) - len(self.waiting)
        total = len(self.cells)
        yield StudyStarted(total=total, done=self.done, seconds=None, is_least=False)
        if self.waiting:
            yield CellsElsewhere(count=len(self.waiting), words="in the queue since before")
        jobs = [cell for cell in todo if not cell.is_predicted]
        if predicted := [cell for cell in todo if cell.is_predicted]:
            ready_python()
        if jobs and not self.cancel.is_set():
            yield CellsElsewhere(count=len(jobs), words=self._submit(jobs))
        yield from self._predict(predicted)
        yield from self._follow()
        reason: EndReason = "finished" if self.done == total else "unfinished"
        if self.cancel.is_set():
            reason = "cancelled"
        yield StudyEnded(reason=reason, done=self.done, total=total)

    def _predict(self, cells: Sequence[Cell]) -> Iterator[StudyEvent]:
        """Predict cells in this process, while the jobs wait."""
        forecaster = Forecaster()
        with closing(Estimator(is_cancelled=self.cancel.is_set)) as estimator:
            for cell in cells:
                if self.cancel.is_set():
                    return
                entry = yield from predict_cell(
                    self.directory, cell, forecaster, estimator, self.cancel, self.done + 1
                )
                self.done += entry.status in FINAL_STATUSES
                yield CellEnded(
                    cell=cell, entry=entry, done=self.done, total=len(self.cells), seconds_left=None
                )

    def _take_up(self) -> Iterator[StudyEvent]:
        """Store results of ended jobs, and return what is still running."""
        jobs = self.place.jobs()
        entries = self.directory.entries()
        running = {
            entry.run: cell
            for cell in self.cells
            if (entry := entries.get(cell.id)) is not None
            and entry.status == "running"
            and self.directory.run_of(entry) is not None
        }
        self.waiting = {id: cell for id, cell in running.items() if id in jobs}
        ended = [self._run(id) for id in running if id not in jobs]
        late = sum(map(self._is_fresh, ended))
        if late:
            yield CellsElsewhere(count=late, words="left the queue just now, without an end yet")
        until = time.monotonic() + self.lag_seconds
        while any(map(self._is_fresh, ended)) and time.monotonic() < until:
            if self.cancel.wait(self.poll_seconds):
                break

        def is_live(run: RunDirectory) -> bool:
            return run.id in jobs or self._is_fresh(run)

        adopt(self.directory, self.cells, is_live, teaches=False)
        for run in ended:
            _remove_unstarted(run)

    def _is_fresh(self, run: RunDirectory) -> bool:
        """Return whether the run may have an end that is not visible here yet."""
        if has_ended(run):
            return False
        try:
            written = run.events_path.stat().st_mtime
        except OSError:  # it never started
            return False
        # Clocks of machines may differ in both directions.
        return abs(time.time() - written) < self.lag_seconds

    def _submit(self, cells: Sequence[Cell]) -> str:
        runs: list[RunDirectory] = []
        for cell in cells:
            assert cell.spec is not None  # refused cells are not run
            run = create_run(cell.spec, cell.passes, self.directory.root)
            # Written before the job is queued, so that a later runner knows every job.
            self.directory.append(CellEntry(cell=cell.id, status="running", run=run.id))
            runs.append(run)
        try:
            words = self.place.submit(runs)
        except BaseException:
            # Some arrays may be queued already, also one whose sbatch timed out.
            with suppress(ClusterError):  # unknown state: remove nothing
                queued = self.place.jobs()
                for run in runs:
                    if run.id not in queued:
                        _remove_unstarted(run)
            raise
        self.waiting |= {run.id: cell for run, cell in zip(runs, cells, strict=True)}
        return words

    def _follow(self) -> Iterator[StudyEvent]:
        heard = time.monotonic()
        is_cancelled = False
        while self.waiting:
            if self.cancel.is_set() and not is_cancelled:
                self.place.cancel()
                is_cancelled = True
            try:
                jobs = self.place.jobs()
                heard = time.monotonic()
            except ClusterError:
                # Jobs may go on while the scheduler is silent.
                if time.monotonic() - heard > SILENCE_SECONDS:
                    raise
            else:
                yield from self._look(jobs)
            if not self.waiting:
                break
            if is_cancelled:
                time.sleep(self.poll_seconds)
            else:
                self.cancel.wait(self.poll_seconds)

    def _look(self, jobs: Mapping[str, JobState]) -> Iterator[StudyEvent]:
        for id, cell in list(self.waiting.items()):
            state = jobs.get(id)
            if state == "running" and id not in self.begun:
                self.begun.add(id)
                yield CellStarted(cell=cell, run=id, number=1 + self.cells.index(cell))
            if state is not None:
                continue
            run, now = self._run(id), time.monotonic()
            has_end = has_ended(run)
            if not has_end and self.cancel.is_set():
                # The next start reads its results, if any.
                _remove_unstarted(run)
                del self.waiting[id]
                continue
            if not has_end and now - self.gone.setdefault(id, now) < self.lag_seconds:
                continue
            del self.waiting[id]
            entry = self._entry(cell, run)
            self.directory.append(entry)
            self.done += entry.status in FINAL_STATUSES
            yield CellEnded(
                cell=cell, entry=entry, done=self.done, total=len(self.cells), seconds_left=None
            )

    def _entry(self, cell: Cell, run: RunDirectory) -> CellEntry:
        try:
            record = load_record(run)
        except DamagedFileError as error:
            why = f"{self.place.job_of(run.id)} left nothing that can be read: {error}"
            return CellEntry(cell=cell.id, status="killed", run=run.id, detail=why)
        entry = cell_entry(cell, record, teaches=False)
        if entry.status not in FINAL_STATUSES:
            why = "; ".join(filter(None, (self.place.job_of(run.id), entry.detail)))
            entry = msgspec.structs.replace(entry, detail=why)
        return entry

    def _run(self, id: str) -> RunDirectory:
        return RunDirectory(runs_folder(self.directory.root) / id)


def adopt_ended(directory: StudyDirectory, cells: Sequence[Cell]) -> None:
    """Store values of jobs that ended since a runner last looked, without asking the scheduler;
    raises DeviceBusyError while a runner is at work, and OSError."""
    with directory.hold():
        adopt(directory, cells, lambda run: not has_ended(run), teaches=False)


def has_ended(run: RunDirectory) -> bool:
    """Return whether the supervisor wrote its end, without rebuilding anything."""
    try:
        return run.record().status != "running"
    except DamagedFileError:
        return False


def _remove_unstarted(run: RunDirectory) -> None:
    """Remove the directory of a run whose job never started, so that its cell waits again."""
    try:
        if [path.name for path in run.path.iterdir()] != [run.header_path.name]:
            return
        run.header_path.unlink()
        run.path.rmdir()
    except FileNotFoundError:
        pass  # it was deleted
