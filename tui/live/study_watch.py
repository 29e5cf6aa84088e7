"""Follow a study's directory on disk."""

from __future__ import annotations

from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import last_lines
from sysbench.core.studies.cell_values import pruner_for
from sysbench.core.studies.schema import Study
from sysbench.core.studies.study_directory import (
    CellEntry,
    StudyProgress,
    directory_of,
    open_study,
    progress_in,
    records_of,
    unique,
    with_begun_rounds,
)
from sysbench.core.studies.study_grid import Cell, expand
from sysbench.core.studies.study_report import StudyReport, make_report
from sysbench.tui.live.run_watch import RunWatch, file_stamp

Stamp = tuple[int, int, bool]


class StudyWatch:
    """Follows a study, started or not. Polling costs a stat and a lock while nothing changes.

    Attributes:
        cells: Cells as expanded on this machine; cells that share a run appear once.
        changes: Number of times that a cell started or ended.
    """

    def __init__(self, study: Study) -> None:
        self.study = study = with_begun_rounds(study)
        self.cells: list[Cell] = unique(expand(study))
        self.directory = directory_of(study)
        self.entries: dict[str, CellEntry] = {}
        self.progress = StudyProgress(statuses={})
        self.current: RunWatch | None = None
        self.changes = 0
        self._stamp: Stamp | None = None
        self._records: dict[str, Record] = {}
        self._prune = pruner_for(study)
        self.poll()

    @property
    def has_begun(self) -> bool:
        return self.directory.study_path.is_file()

    @property
    def is_over(self) -> bool:
        return self.progress.done == self.progress.total

    def start(self) -> None:
        open_study(self.study, self.directory.root).start()

    def poll(self) -> bool:
        """Read new entries; True if a cell started or ended."""
        is_live = self.directory.is_live()
        stamp = (*file_stamp(self.directory.cells_path), is_live)
        is_new = stamp != self._stamp
        if is_new:
            self._stamp = stamp
            self.changes += 1
            self.entries = self.directory.entries()
            self.progress = progress_in(self.directory, self.cells, self.entries)
            self._follow()
        if self.current is not None:
            self.current.poll()
        return is_new

    def run_of(self, cell: Cell) -> RunDirectory | None:
        entry = self.entries.get(cell.id)
        return self.directory.run_of(entry) if entry else None

    def report(self) -> StudyReport:
        """Build the report; only new records are read."""
        entries = self.entries
        fresh = [
            cell
            for cell in self.cells
            if (entry := entries.get(cell.id))
            and (cell.id not in self._records or self._records[cell.id].id != entry.run)
        ]
        self._records |= records_of(self.directory, fresh, self._prune)
        return make_report(self.directory, self.study, self.cells, self._records)

    def last_log_line(self) -> str:
        lines = last_lines(self.directory.path / "runner.log")
        return next((line for line in reversed(lines) if line.strip()), "")

    def _follow(self) -> None:
        running = self.progress.running
        entry = self.entries.get(running) if running else None
        run = self.directory.run_of(entry) if entry else None
        if run is None:
            self.current = None
        elif self.current is None or self.current.run.id != run.id:
            self.current = RunWatch(run)
