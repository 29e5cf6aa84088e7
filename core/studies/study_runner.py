"""Run the cells of a study in turn; each is an ordinary run.

``python -P -m sysbench.core.studies.study_runner DIRECTORY`` runs a directory without output.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec

from sysbench.core.errors import DamagedFileError, ModelError, SpecError, WorkerFailed
from sysbench.core.machine.interpreter import ready_python, require_chosen, use_python
from sysbench.core.predict.allocator_settings import parse_allocator_settings
from sysbench.core.predict.dry_run_client import Estimator, ExactPrediction, TrainingVariant
from sysbench.core.predict.fit_grid import AvailableMemory
from sysbench.core.predict.layout_plan import Layout, PlayedRanks, layout_of
from sysbench.core.record.record import Record
from sysbench.core.runs.job_directory import Cancellation, work_until_signal
from sysbench.core.runs.run_directory import RunDirectory, create_run, load_record
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.passes import parse_passes
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.core.studies.forecast import (
    Forecaster,
    cell_kind,
    past_entries,
    predicted_kind,
    steps_seconds,
    total_seconds,
    work_of,
)
from sysbench.core.studies.slurm import refuse_while_queued
from sysbench.core.studies.study_directory import (
    FINAL_STATUSES,
    CellEntry,
    StudyDirectory,
    progress_in,
    unique,
)
from sysbench.core.studies.study_grid import Cell, expand


class StudyStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The runner starts.

    Attributes:
        seconds: Forecast of the cells to run, if known.
        is_least: True if some cells have no forecast.
    """

    total: int
    done: int
    seconds: float | None
    is_least: bool


class CellsElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """Cells that were submitted to a cluster by any runner; ``words`` says where."""

    count: int
    words: str


class CellStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's run starts; ``number`` counts from 1 over all cells. ``run`` is empty for a cell
    that is predicted."""

    cell: Cell
    run: str
    number: int


class CellEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A cell has its value; ``seconds_left`` is the forecast of the rest, if known."""

    cell: Cell
    entry: CellEntry
    done: int
    total: int
    seconds_left: float | None


EndReason = Literal["finished", "cancelled", "out-of-time", "unfinished"]


class StudyEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The runner stopped: done, cancelled, at its time limit, or with cells without a value."""

    reason: EndReason
    done: int
    total: int


StudyEvent = StudyStarted | CellsElsewhere | CellStarted | CellEnded | StudyEnded


def run_study(
    directory: StudyDirectory,
    cells: Sequence[Cell],
    *,
    cancel: Cancellation | None = None,
    max_minutes: float | None = None,
    retry: bool = False,
) -> Iterator[StudyEvent]:
    """Run the cells in order, yielding events; every pass is a fresh process.

    Cells with a value are not run again. OOM and failures are values; a run cut short by a crash,
    a signal or a full disk is not. Closing the generator early leaves the current cell without one.
    Cells of several ranks, or of a card, are predicted in one process.

    Args:
        max_minutes: Time limit; a cell that is forecast to exceed it is not started.

    Raises:
        DeviceBusyError: Another runner works on this study, or its cells have jobs on a cluster.
        InterpreterError: Workers cannot run in the chosen interpreter.
        SpecError: A pass that this machine cannot run.
    """
    cancel = cancel or Cancellation()
    with directory.hold():
        refuse_while_queued(directory)
        cells = unique(cells)
        adopt(directory, cells)
        todo = cells_to_run(directory, cells, retry=retry)
        for cell in todo:
            if not cell.is_predicted:
                parse_passes(cell.passes)
        if todo:
            ready_python()
        forecaster = Forecaster(past_entries(directory.root))
        end = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
        total, done = len(cells), len(cells) - len(todo)
        seconds, is_least = total_seconds(map(forecaster.forecast, todo))
        yield StudyStarted(total=total, done=done, seconds=seconds, is_least=is_least)
        reason: EndReason = "finished"
        with closing(Estimator(is_cancelled=cancel.is_set)) as estimator:
            for index, cell in enumerate(todo, 1):
                if end - time.monotonic() < (forecaster.forecast(cell).seconds or 0.0):
                    reason = "out-of-time"
                    break
                if cell.is_predicted:
                    entry = yield from predict_cell(
                        directory, cell, forecaster, estimator, cancel, done + 1
                    )
                else:
                    estimator.close()  # nothing of ours beside a measurement
                    entry = yield from _run_cell(directory, cell, forecaster, cancel, done + 1)
                if entry.status != "cancelled":
                    done += 1
                    left, _ = total_seconds(map(forecaster.forecast, todo[index:]))
                    yield CellEnded(
                        cell=cell, entry=entry, done=done, total=total, seconds_left=left
                    )
                if cancel.is_set():
                    reason = "cancelled"
                    break
        yield StudyEnded(reason=reason, done=done, total=total)


def _run_cell(
    directory: StudyDirectory, cell: Cell, forecaster: Forecaster, cancel: Cancellation, number: int
) -> Generator[StudyEvent, None, CellEntry]:
    assert cell.spec is not None  # refused cells are not run
    forecast = forecaster.forecast(cell)
    if not forecast.is_run:
        why = "not run: this machine has not the memory; memory_limit makes it safe to try"
        peak = forecast.peak_bytes
        entry = CellEntry(cell=cell.id, status="too-large", peak_bytes=peak, detail=why)
        directory.append(entry)
        return entry
    run = create_run(cell.spec, cell.passes, directory.root)
    directory.append(CellEntry(cell=cell.id, status="running", run=run.id))
    yield CellStarted(cell=cell, run=run.id, number=number)
    began = time.monotonic()
    for _ in supervise(run, cancel=cancel):
        pass
    entry = cell_entry(cell, load_record(run), time.monotonic() - began)
    directory.append(entry)
    forecaster.learn(entry)
    return entry


def predict_cell(
    directory: StudyDirectory,
    cell: Cell,
    forecaster: Forecaster,
    estimator: Estimator,
    cancel: Cancellation,
    number: int,
) -> Generator[StudyEvent, None, CellEntry]:
    """Predict the fullest rank of a cell's world. A step that cannot be predicted is a value, too:
    the entry has the reason."""
    assert cell.spec is not None and cell.world is not None  # refused cells are not predicted
    directory.append(CellEntry(cell=cell.id, status="running"))
    yield CellStarted(cell=cell, run="", number=number)
    began = time.monotonic()
    try:
        layout = _fullest_layout(cell.spec, cell.world, forecaster.forecast(cell).room, estimator)
    except (ModelError, SpecError) as error:
        entry = CellEntry(cell=cell.id, status="refused", detail=str(error))
    except WorkerFailed as error:
        status: Literal["cancelled", "failed"] = "cancelled" if cancel.is_set() else "failed"
        entry = CellEntry(cell=cell.id, status=status, detail=str(error))
    else:
        seconds = time.monotonic() - began
        entry = CellEntry(
            cell=cell.id,
            status="predicted",
            seconds=seconds,
            peak_bytes=layout.peak_bytes,
            kind=predicted_kind(cell.spec),
            work=1.0,
            start_seconds=seconds,
            predicted=layout,
        )
    directory.append(entry)
    forecaster.learn(entry)
    return entry


def _fullest_layout(
    spec: RunSpec, world: World, room: AvailableMemory | None, estimator: Estimator
) -> Layout:
    if room is None:
        raise SpecError("card", "", f"a GPU such as h100: the memory of {spec.device} is unknown")

    def play(spec: RunSpec, variant: TrainingVariant) -> ExactPrediction:
        return estimator.predict(spec, room.capability, variant)

    settings = parse_allocator_settings(os.environ)
    return layout_of(spec, world, PlayedRanks(spec, play).fullest(world, room, settings))


def keep_python(directory: StudyDirectory) -> None:
    """Use the interpreter of the study's earlier runs, if any, so that all cells have the same
    torch.

    Raises DamagedFileError, and InterpreterError if it was not chosen on this machine.
    """
    if (python := directory.python()) is not None:
        use_python(require_chosen(python))


def cell_entry(
    cell: Cell, record: Record, seconds: float | None = None, *, teaches: bool = True
) -> CellEntry:
    """Make the entry of an ended run.

    Args:
        seconds: Of all passes; None if unknown.
        teaches: False for times of another machine, which forecasts must ignore.
    """
    assert cell.spec is not None  # refused cells are not run
    failed = next((row for row in record.passes if row.outcome != "finished"), None)
    median_ms = record.timing.step.median_ms if record.timing else None
    start_seconds = None
    if failed is None and seconds is not None:
        steps = steps_seconds(cell.spec, cell.passes, median_ms or 0.0)
        start_seconds = max(0.0, seconds - steps) / len(cell.passes)
    return CellEntry(
        cell=cell.id,
        status=record.status,
        run=record.id,
        detail=failed.detail if failed else "",
        seconds=seconds,
        median_ms=median_ms,
        peak_bytes=record.memory.peak_allocated_bytes if record.memory else None,
        kind=cell_kind(cell.spec) if teaches else "",
        work=work_of(cell.spec) if teaches else 0.0,
        passes=cell.passes,
        start_seconds=start_seconds,
    )


def cells_to_run(directory: StudyDirectory, cells: Sequence[Cell], *, retry: bool) -> list[Cell]:
    """Return cells without a value; with ``retry`` also failed ones."""
    statuses = progress_in(directory, cells).statuses
    final = {*FINAL_STATUSES} - ({"failed"} if retry else set())
    return [cell for cell in cells if statuses[cell.id] not in final]


def adopt(
    directory: StudyDirectory,
    cells: Sequence[Cell],
    is_live: Callable[[RunDirectory], bool] = RunDirectory.is_live,
    *,
    teaches: bool = True,
) -> None:
    """Store the values of runs that ended while no runner followed them."""
    entries = directory.entries()
    for cell in cells:
        entry = entries.get(cell.id)
        if entry is None or entry.status != "running" or cell.spec is None:
            continue
        run = directory.run_of(entry)
        if run is None or is_live(run):
            continue
        try:
            record = load_record(run)
        except DamagedFileError:
            continue  # no result: the cell runs again
        if record.status in FINAL_STATUSES:
            directory.append(cell_entry(cell, record, teaches=teaches))


def _run_all(path: Path, cancel: Cancellation) -> Iterator[StudyEvent]:
    directory = StudyDirectory(path)
    keep_python(directory)
    # A study that ran elsewhere may lack its devices here.
    study = msgspec.structs.replace(directory.study(), elsewhere=False)
    return run_study(directory, expand(study), cancel=cancel)


if __name__ == "__main__":
    sys.exit(work_until_signal(_run_all))
