"""How far a study is: counts of its cells, and the time that is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from .run.forecast import Forecast
from .run.grid import Cell
from .run.state import SETTLED, CellStatus, Entry, StudyDirectory, status_of, unique


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A study at a moment.

    Attributes:
        statuses: Of each cell by its id.
        is_live: Whether a runner is at work.
    """

    statuses: dict[str, CellStatus]
    is_live: bool = False

    @property
    def counts(self) -> Counter[CellStatus]:
        """How many cells have each status."""
        return Counter(self.statuses.values())

    @property
    def total(self) -> int:
        """All cells, those that share a run counted once."""
        return len(self.statuses)

    @property
    def done(self) -> int:
        """Cells that have their value, OOM and failures among them."""
        return sum(self.counts[status] for status in SETTLED)

    @property
    def running(self) -> str | None:
        """The id of the cell that is being measured."""
        return next((id for id, status in self.statuses.items() if status == "running"), None)


def progress_of(
    cells: Sequence[Cell],
    entries: Mapping[str, Entry],
    *,
    is_live: bool = False,
    root: Path | None = None,
) -> Progress:
    """Where these cells are."""
    known = dict(entries)
    return Progress(
        statuses={
            cell.id: status_of(cell, known, is_live=is_live, root=root) for cell in unique(cells)
        },
        is_live=is_live,
    )


def progress_in(directory: StudyDirectory, cells: Sequence[Cell]) -> Progress:
    """Where the cells of a study on disk are."""
    is_live = directory.is_live()
    return progress_of(cells, directory.entries(), is_live=is_live, root=directory.root)


def seconds_left(progress: Progress, forecasts: Mapping[str, Forecast]) -> float:
    """Forecast of the cells without a value."""
    waiting = (id for id, status in progress.statuses.items() if status not in SETTLED)
    return sum(forecasts[id].seconds for id in waiting)
