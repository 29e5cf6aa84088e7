"""Cells that run elsewhere: jobs end, die, outlive their runner, and are taken up by the next."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from sysbench.core.errors import ClusterError
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory, list_runs
from sysbench.core.studies.cluster_runner import run_on
from sysbench.core.studies.schema import Axis, Point, Study, StudyColumn, TableLayout
from sysbench.core.studies.slurm import JobState, Slurm
from sysbench.core.studies.study_directory import StudyDirectory, open_study
from sysbench.core.studies.study_grid import Cell, expand
from sysbench.core.studies.study_report import study_report
from sysbench.core.studies.study_runner import (
    CellEnded,
    CellsElsewhere,
    CellStarted,
    StudyEnded,
    StudyEvent,
)
from sysbench.tui.cli import main
from tests import factories

COLUMN = StudyColumn(name="ms", value="timing.step.median_ms")
STUDY = Study(
    name="far",
    title="",
    axes=(
        Axis(
            name="context",
            points=tuple(Point(label=str(n), settings={"context": n}) for n in (32, 48, 64)),
        ),
    ),
    tables=(TableLayout(name="t", title="", rows=("context",), columns=(COLUMN,)),),
    fixed={"device": "cuda:0"},
    elsewhere=True,
)


class Queue(Slurm):
    """A place whose jobs wait until a test ends them; it acts at every look at the queue."""

    def __init__(self, act: Callable[[Queue], None] = lambda queue: None) -> None:
        self.act = act
        self.states: dict[str, JobState] = {}
        self.submitted: list[str] = []
        self.is_silent = False
        self.is_full = False
        self.cancelled = 0
        self.root: Path | None = None

    def submit(self, runs: Sequence[RunDirectory]) -> str:
        if self.is_full:
            raise ClusterError("sbatch queued nothing: no such partition")
        self.submitted += [run.id for run in runs]
        self.states |= {run.id: "waiting" for run in runs}
        self.root = runs[0].path.parent.parent
        return "the queue"

    def jobs(self) -> dict[str, JobState]:
        self.act(self)
        if self.is_silent:
            self.is_silent = False
            raise ClusterError("squeue does not answer")
        return dict(self.states)

    def job_of(self, run: str) -> str:
        return f"job {self.submitted.index(run)}"

    def cancel(self) -> None:
        self.cancelled += 1
        self.states.clear()

    def begin(self, id: str) -> None:
        self.states[id] = "running"
        self._run(id).events_path.write_text("")

    def finish(self, id: str, median_ms: float = 5.0) -> None:
        run = self._run(id)
        spec = run.header().spec
        timing = factories.timing(factories.spread(median_ms))
        environment = {"cluster": {"node": "a1b2c3"}}
        run.write_record(factories.record(spec, id=id, timing=timing, environment=environment))
        del self.states[id]

    def _run(self, id: str) -> RunDirectory:
        assert self.root is not None
        return RunDirectory(self.root / "runs" / id)


def finish_all(queue: Queue) -> None:
    for id in list(queue.states):
        queue.finish(id)


@pytest.fixture
def directory(sysbench_home: Path) -> StudyDirectory:
    return open_study(STUDY, sysbench_home)


@pytest.fixture
def cells(sysbench_home: Path) -> list[Cell]:
    return expand(STUDY)


def followed(
    queue: Queue,
    directory: StudyDirectory,
    cells: Sequence[Cell],
    cancel: Cancellation | None = None,
) -> list[StudyEvent]:
    """All events, without waiting between two looks."""
    return list(run_on(queue, directory, cells, cancel=cancel, poll_seconds=0.0, lag_seconds=0.0))


def statuses(directory: StudyDirectory) -> Counter[str]:
    return Counter(study_report(directory).progress.statuses.values())


def end_of(events: Sequence[StudyEvent]) -> StudyEnded:
    end = events[-1]
    assert isinstance(end, StudyEnded)
    return end


def test_devices_of_other_machines_are_not_looked_for_here(cells: list[Cell]) -> None:
    assert [cell.spec and cell.spec.device for cell in cells] == ["cuda:0"] * 3


def test_each_cell_is_a_job_and_its_run_the_value(
    directory: StudyDirectory, cells: list[Cell]
) -> None:
    queue = Queue(finish_all)
    events = followed(queue, directory, cells)
    assert end_of(events).reason == "finished"
    assert sum(isinstance(event, CellEnded) for event in events) == 3
    report = study_report(directory)
    (table,) = report.tables
    assert [row["ms"] for row in table.mappings()] == [5.0] * 3
    assert {row["machine"] for row in table.mappings()} == {"a1b2c3"}
    again = followed(queue, directory, cells)
    assert end_of(again).reason == "finished" and len(queue.submitted) == 3


def test_a_cell_whose_job_died_is_submitted_by_the_next_start(
    directory: StudyDirectory, cells: list[Cell]
) -> None:
    def one_dies(queue: Queue) -> None:
        if queue.states:
            dead = queue.submitted[1]
            queue.begin(dead)
            del queue.states[dead]
            finish_all(queue)

    queue = Queue(one_dies)
    events = followed(queue, directory, cells)
    assert end_of(events).reason == "unfinished"
    (entry,) = (entry for entry in directory.entries().values() if entry.status == "killed")
    assert entry.detail.startswith("job 1")
    queue.act = finish_all
    assert end_of(followed(queue, directory, cells)).reason == "finished"
    assert len(queue.submitted) == 4
    assert statuses(directory) == {"finished": 3}


def test_jobs_outlive_their_runner_and_are_followed_by_the_next(
    directory: StudyDirectory, cells: list[Cell]
) -> None:
    queue = Queue()
    events = run_on(queue, directory, cells, poll_seconds=0.0, lag_seconds=0.0)
    while not isinstance(next(events), CellsElsewhere):
        pass
    events.close()  # type: ignore[attr-defined]
    ended, waiting, running = queue.submitted
    queue.finish(ended)
    queue.begin(running)
    looks = iter(range(10))
    queue.act = lambda queue: finish_all(queue) if next(looks) > 1 else None
    later = followed(queue, directory, cells)
    assert queue.submitted == [ended, waiting, running]
    (taken_up,) = (event for event in later if isinstance(event, CellsElsewhere))
    assert taken_up.count == 2
    assert [event.run for event in later if isinstance(event, CellStarted)] == [running]
    assert end_of(later).done == 3
    assert statuses(directory) == {"finished": 3}
    # Times of another machine forecast none of this one.
    assert not any(entry.kind for entry in directory.entries().values())


def test_a_silent_scheduler_says_nothing_on_the_jobs(
    directory: StudyDirectory, cells: list[Cell]
) -> None:
    looks = iter(range(10))

    def silent_once(queue: Queue) -> None:
        look = next(looks)
        queue.is_silent = look == 1
        if look == 3:
            finish_all(queue)

    events = followed(Queue(silent_once), directory, cells)
    assert end_of(events).reason == "finished"


def test_cancelling_ends_the_jobs_and_leaves_no_empty_runs(
    directory: StudyDirectory, cells: list[Cell]
) -> None:
    cancel = Cancellation()
    queue = Queue()
    seen: list[StudyEvent] = []
    for event in run_on(queue, directory, cells, cancel=cancel, poll_seconds=0.0, lag_seconds=0.0):
        seen.append(event)
        if isinstance(event, CellsElsewhere):
            queue.finish(queue.submitted[0])
            queue.begin(queue.submitted[1])
            cancel.set()
    assert end_of(seen).reason == "cancelled" and queue.cancelled == 1
    assert {run.id for run in list_runs(directory.root)} == set(queue.submitted[:2])
    assert statuses(directory) == {"finished": 1, "waiting": 2}


def test_a_refused_submission_leaves_nothing(directory: StudyDirectory, cells: list[Cell]) -> None:
    queue = Queue()
    queue.is_full = True
    with pytest.raises(ClusterError, match="no such partition"):
        followed(queue, directory, cells)
    assert list_runs(directory.root) == []
    assert statuses(directory) == {"waiting": 3}
    queue.is_full, queue.act = False, finish_all
    assert end_of(followed(queue, directory, cells)).done == 3


def test_times_of_another_machine_forecast_none_of_this_one(
    directory: StudyDirectory, cells: list[Cell]
) -> None:
    followed(Queue(finish_all), directory, cells)
    assert not any(entry.kind for entry in directory.entries().values())
    assert {forecast.seconds for forecast in study_report(directory).forecasts.values()} == {None}


def test_an_array_that_sbatch_does_not_confirm_is_followed_if_it_is_queued(
    directory: StudyDirectory, cells: list[Cell]
) -> None:
    class TimesOut(Queue):
        def submit(self, runs: Sequence[RunDirectory]) -> str:
            super().submit(runs)
            raise ClusterError("sbatch: Socket timed out")

    queue = TimesOut()
    with pytest.raises(ClusterError, match="timed out"):
        followed(queue, directory, cells)
    queue.act = finish_all
    assert end_of(followed(queue, directory, cells)).reason == "finished"
    assert len(queue.submitted) == len(list_runs(directory.root)) == 3


def test_a_run_that_left_no_end_is_waited_for_before_it_counts_as_killed(
    directory: StudyDirectory, cells: list[Cell]
) -> None:
    """As where a shared file system shows the last file of another node late."""
    looks = iter(range(100))

    def leave(queue: Queue) -> None:
        look = next(looks)
        if look == 2:
            for id in queue.submitted:
                queue.begin(id)
            queue.states.clear()
        elif look == 5:
            for id in queue.submitted:
                queue.states[id] = "running"
                queue.finish(id)

    queue = Queue(leave)
    events = list(run_on(queue, directory, cells, poll_seconds=0.0, lag_seconds=60.0))
    assert end_of(events).reason == "finished"
    assert {entry.status for entry in directory.entries().values()} == {"finished"}


def test_what_ended_while_nobody_followed_is_shown(
    directory: StudyDirectory, cells: list[Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    queue = Queue()
    events = run_on(queue, directory, cells, poll_seconds=0.0, lag_seconds=0.0)
    while not isinstance(next(events), CellsElsewhere):
        pass
    assert main(["study", "show", "far", "--json"]) == 0
    busy = json.loads(capsys.readouterr().out)
    events.close()  # type: ignore[attr-defined]
    queue.finish(queue.submitted[1])
    assert main(["study", "show", "far", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [cell["status"] for cell in busy["cells"]] == ["running"] * 3
    assert [cell["status"] for cell in shown["cells"]] == ["waiting", "finished", "waiting"]


def test_a_cell_that_is_predicted_is_no_job(sysbench_home: Path) -> None:
    worlds = Axis(
        name="world",
        points=tuple(Point(label=text, settings={"world": text}) for text in ("dp=1", "dp=2")),
    )
    by_world = msgspec.structs.replace(STUDY.tables[0], rows=("world",))
    study = msgspec.structs.replace(STUDY, axes=(worlds,), tables=(by_world,))
    directory = open_study(study, sysbench_home)
    queue, cells = Queue(finish_all), expand(directory.study())
    events = followed(queue, directory, cells)
    assert end_of(events).reason == "finished" and len(queue.submitted) == 1
    entry = directory.entries()[cells[1].id]
    assert entry.status == "refused" and not entry.run
    assert entry.detail == "card = '': a GPU such as h100: the memory of cuda:0 is unknown"
    (table,) = study_report(directory).tables
    assert table.column("state") == ["measured", entry.detail]
