"""A study on disk: its definition, and the run of each cell.

``study.json`` the expanded study · ``cells.jsonl`` a line when a cell starts and when it ends,
append-only · ``study.lock`` held by a runner. The runs are in the library; deleting one there
empties its cell.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.experiments.baselines import list_baselines
from sysbench.core.experiments.experiment import list_experiments
from sysbench.core.machine.interpreter import ready_python, require_chosen
from sysbench.core.machine.peaks import find_card
from sysbench.core.predict.layout_plan import Layout
from sysbench.core.record.blocks import PassName
from sysbench.core.record.events import Outcome
from sysbench.core.record.record import Record
from sysbench.core.runs.job_directory import JobDirectory, end_torn_line
from sysbench.core.runs.run_directory import RunDirectory, is_run_id, load_record, runs_folder
from sysbench.core.storage import (
    UNREADABLE_JSON,
    begun_studies,
    make_folder,
    open_to_append,
    read_json,
    read_regular,
    studies_folder,
)
from sysbench.core.studies.formula import PredictedRecord
from sysbench.core.studies.schema import Study
from sysbench.core.studies.study_grid import Cell

T = TypeVar("T")
CellStatus = Outcome | Literal["running", "waiting", "refused", "too-large", "predicted"]
"""``waiting`` did not run yet or was cut short by a crash; ``refused`` cannot run; ``too-large``
would exceed the machine's memory; ``predicted`` is not run."""

FINAL_STATUSES: tuple[CellStatus, ...] = (
    *("finished", "oom", "failed", "too-large", "refused", "predicted"),
)
"""Statuses that count as values: not run again unless requested."""


_RENAMED = {
    '"is_label":': '"label":',
    '"distributed.exposed.mean_ms / distributed.step.mean_ms"': '"measures.exposed_fraction"',
    '"distributed.communication.mean_ms - distributed.transfer.mean_ms"': '"measures.hidden_ms"',
    '"timing.phases.backward.mean_ms + timing.phases.optimizer.mean_ms"': (
        '"measures.backward_and_optimizer_ms"'
    ),
    '"memory.modules[module=blocks].activation_bytes / '
    'memory.modules[module=model].activation_bytes"': '"measures.saved_in_blocks_fraction"',
    '"{mean:.2f} ± {std:.2f}"': '"{:.2f}"',
}
"""Keys, formulas and formats that earlier versions wrote to ``study.json``."""


class CellEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of ``cells.jsonl``: a cell that started or ended.

    ``start_seconds`` are the seconds of one pass outside its steps, or of a prediction.
    """

    cell: str
    status: CellStatus
    run: str = ""
    t_ns: int = msgspec.field(default_factory=time.time_ns)
    detail: str = ""
    seconds: float | None = None
    median_ms: float | None = None
    peak_bytes: int | None = None
    kind: str = ""
    work: float = 0.0
    passes: tuple[PassName, ...] = ()
    start_seconds: float | None = None
    predicted: Layout | None = None


class StudyDirectory(JobDirectory):
    kind = "study"
    working = "is run"
    module = "sysbench.core.studies.study_runner"
    lock_name = "study.lock"

    @property
    def study_path(self) -> Path:
        return self.path / "study.json"

    @property
    def cells_path(self) -> Path:
        return self.path / "cells.jsonl"

    def study(self) -> Study:
        """Read ``study.json``; raises DamagedFileError."""
        try:
            data = read_json(self.study_path)
            for old, new in _RENAMED.items():
                data = data.replace(old.encode(), new.encode())
            return msgspec.json.decode(data, type=Study)
        except (OSError, *UNREADABLE_JSON) as error:
            raise DamagedFileError(f"{self.study_path}: {error}") from error

    def start(self, *options: str) -> int:
        python = self.python()
        ready_python(None if python is None else require_chosen(python))
        return super().start(*options)

    def append(self, entry: CellEntry) -> None:
        append_line(self.cells_path, entry)

    def entries(self) -> dict[str, CellEntry]:
        """Return the newest entry of each cell by id; raises DamagedFileError.

        A cell whose line a crash tore runs again.
        """
        return {entry.cell: entry for entry in read_lines(self.cells_path, CellEntry)}

    def python(self) -> str | None:
        """Interpreter of its newest run; empty for this program's, None without a run.

        Raises DamagedFileError.
        """
        for entry in sorted(self.entries().values(), key=lambda entry: -entry.t_ns):
            if (run := self.run_of(entry)) is not None:
                return run.header().python
        return None

    def run_of(self, entry: CellEntry) -> RunDirectory | None:
        """Return the run of an entry; None if it was deleted, or its id is missing or a path."""
        if not is_run_id(entry.run):
            return None
        run = RunDirectory(runs_folder(self.root) / entry.run)
        return run if run.header_path.is_file() else None


def append_line(path: Path, value: msgspec.Struct) -> None:
    """Append a line of JSON durably; a torn last line is closed first."""
    with open_to_append(path) as file:
        end_torn_line(file.fileno())
        file.write(msgspec.json.encode(value) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, kind: type[T]) -> Iterator[T]:
    """Decode the lines of a file that may not exist yet, without unreadable ones.

    Raises DamagedFileError if the file cannot be read.
    """
    try:
        lines = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise DamagedFileError(f"{path}: {error}") from error
    for line in lines:
        with suppress(*UNREADABLE_JSON):
            yield msgspec.json.decode(line, type=kind)


def directory_of(study: Study, root: Path | None = None) -> StudyDirectory:
    """Return the directory of a study, also if it does not exist yet."""
    return StudyDirectory(studies_folder(root) / f"{study.name}-{study.identity}")


def with_begun_rounds(study: Study, root: Path | None = None) -> Study:
    """Return the study with at least as many rounds as it was started with."""
    try:
        begun = directory_of(study, root).study().repeat
    except DamagedFileError:
        begun = 0  # not begun
    return msgspec.structs.replace(study, repeat=max(study.repeat, begun))


def open_study(study: Study, root: Path | None = None) -> StudyDirectory:
    directory = directory_of(study, root)
    make_folder(directory.path)
    study = with_begun_rounds(study, root)
    directory.write(directory.study_path.name, study)
    return directory


def list_studies(root: Path | None = None) -> list[StudyDirectory]:
    return [StudyDirectory(path) for path in begun_studies(root)]


def find_study(name: str, root: Path | None = None) -> StudyDirectory:
    """Return the newest directory of a study by name, or by whole or partial id; raises
    NotFoundError."""
    studies = list_studies(root)
    named = [directory for directory in studies if directory.id.rpartition("-")[0] == name]
    by_prefix = [directory for directory in studies if directory.id.startswith(name)]
    for directory in (*named, *by_prefix):
        return directory
    started = ", ".join(directory.id for directory in studies[:6]) or "none"
    raise NotFoundError(
        f"study {name!r} was not started here: start it with `sysbench-tui study {name}`; "
        f"started: {started}"
    )


class StudyProgress(msgspec.Struct, frozen=True, kw_only=True):
    statuses: dict[str, CellStatus]
    is_live: bool = False

    @property
    def counts(self) -> Counter[CellStatus]:
        return Counter(self.statuses.values())

    @property
    def total(self) -> int:
        """Number of cells; cells that share a run count once."""
        return len(self.statuses)

    @property
    def done(self) -> int:
        return sum(self.counts[status] for status in FINAL_STATUSES)

    @property
    def running(self) -> str | None:
        return next((id for id, status in self.statuses.items() if status == "running"), None)


def progress_in(
    directory: StudyDirectory,
    cells: Sequence[Cell],
    entries: Mapping[str, CellEntry] | None = None,
) -> StudyProgress:
    """Return the status of every cell; a started cell without an end waits, unless the study is
    live."""
    newest = directory.entries() if entries is None else entries
    is_live = directory.is_live()

    def status(cell: Cell) -> CellStatus:
        entry = newest.get(cell.id)
        if cell.spec is None:
            return "refused"
        if entry is None or (entry.run and directory.run_of(entry) is None):
            return "waiting"
        return "waiting" if entry.status == "running" and not is_live else entry.status

    statuses = {cell.id: status(cell) for cell in unique(cells)}
    return StudyProgress(statuses=statuses, is_live=is_live)


def records_of(
    directory: StudyDirectory,
    cells: Iterable[Cell],
    prune: Callable[[Record], Record] = lambda record: record,
) -> dict[str, Record]:
    """Read and prune the records of ended cells by the cell's id, without unreadable ones and those
    of another spec."""
    entries = directory.entries()
    records: dict[str, Record] = {}
    for cell in cells:
        entry = entries.get(cell.id)
        if entry is None or entry.status == "running" or cell.id in records:
            continue
        if entry.predicted is not None:
            records[cell.id] = _predicted_record(cell, entry, entry.predicted)
            continue
        if (run := directory.run_of(entry)) is None:
            continue
        try:
            record = load_record(run)
        except DamagedFileError:
            continue  # the cell stays visibly without a value
        if cell.spec is not None and record.identity == cell.spec.identity:
            records[cell.id] = prune(record)
    return records


def _predicted_record(cell: Cell, entry: CellEntry, layout: Layout) -> PredictedRecord:
    assert cell.spec is not None  # refused cells are not predicted
    return PredictedRecord(
        id="",
        identity=cell.identity,
        status="finished",
        created_ns=entry.t_ns,
        spec=msgspec.structs.asdict(cell.spec),
        parameters=0 if cell.spec.is_own else cell.spec.dimensions.parameters,
        environment={"device": {"name": find_card(cell.card).name}} if cell.card else {},
        predicted=layout,
    )


def with_reasons(cells: Iterable[Cell], entries: Mapping[str, CellEntry]) -> list[Cell]:
    """Return the cells, those that could not be predicted with the reason."""

    def settled(cell: Cell) -> Cell:
        entry = entries.get(cell.id)
        if entry is None or not cell.is_predicted or entry.status not in FINAL_STATUSES:
            return cell
        return msgspec.structs.replace(cell, refused=cell.refused or entry.detail)

    return list(map(settled, cells))


def unique(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells without those that share a run with an earlier one."""
    return list({cell.id: cell for cell in cells}.values())


def uses_of(run_id: str, root: Path | None = None) -> list[str]:
    """Return the experiments, studies and baselines of a run, with what its loss costs."""
    words = []
    for experiment in list_experiments(root):
        with suppress(DamagedFileError):
            decided = experiment.experiment()
            if run_id in (decided.a, decided.b):
                words.append(f"experiment {experiment.id}, which loses the rounds of a side")
    for study in list_studies(root):
        with suppress(DamagedFileError):
            if any(entry.run == run_id for entry in study.entries().values()):
                words.append(f"study {study.id}, which runs its cell again")
    words += [
        f"baseline {listed.name}, which keeps its own copy"
        for listed in list_baselines(root)
        if listed.baseline is not None and listed.baseline.run == run_id
    ]
    return words
