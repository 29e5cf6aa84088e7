"""What happens while a study runs, in the past tense."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..record.events import AnyEvent
from .run.grid import Cell
from .run.state import CellStatus, Entry


class StudyStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The runner knows what there is to do.

    Attributes:
        seconds: A forecast of all of it.
        is_least: Of some cells only what starting takes is known, not their steps.
    """

    total: int
    done: int
    seconds: float
    is_least: bool


class CellStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's run begins; ``number`` counts from 1 over all cells of the study."""

    cell: Cell
    run: str
    number: int


class CellAdvanced(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the run of the present cell."""

    cell: Cell
    event: AnyEvent


class CellEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A cell has its value; ``seconds_left`` is the forecast of the rest."""

    cell: Cell
    entry: Entry
    done: int
    total: int
    seconds_left: float

    @property
    def status(self) -> CellStatus:
        """How it ended."""
        return self.entry.status


class StudyEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The runner stopped: all done, asked to, or out of the time it was given."""

    reason: Literal["finished", "cancelled", "out-of-time"]
    done: int
    total: int


StudyEvent = StudyStarted | CellStarted | CellAdvanced | CellEnded | StudyEnded
