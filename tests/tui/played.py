"""A run that was measured once and is played again: it is live, and ends when a test says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sysbench.core.record.events import AnyEvent, StageEntered, StepsTimed
from sysbench.core.runs.run_directory import RunDirectory

FROZEN = Path(__file__).parents[1] / "fixtures" / "tiny-cpu"


class PlayedRun:
    """The frozen run, as far as it was played.

    Attributes:
        run: Its directory; it has a record only after `end`.
    """

    def __init__(self, home: Path, name: str = "20261121-120000-tiny-cpu0") -> None:
        target = home / "runs" / name
        shutil.copytree(FROZEN, target)
        self.run = RunDirectory(target)
        self._events = list(zip(self.run.tail().read(), self._lines(), strict=True))
        self.run.events_path.write_bytes(b"")
        self._record = self.run.record_path.read_bytes()
        self.run.record_path.unlink()

    def _lines(self) -> list[bytes]:
        return self.run.events_path.read_bytes().splitlines(keepends=True)

    def play(self, last: Callable[[AnyEvent], bool] = lambda event: False) -> None:
        """Let events happen up to the first one that is asked for, else all that are left."""
        while self._events:
            event, line = self._events.pop(0)
            with self.run.events_path.open("ab") as file:
                file.write(line)
            if last(event):
                return

    def end(self) -> None:
        """Let it end with its record."""
        self.run.record_path.write_bytes(self._record)
        self.play()


def timed(event: AnyEvent) -> bool:
    """Steps were timed."""
    return isinstance(event, StepsTimed)


def measures(event: AnyEvent) -> bool:
    """A pass began to measure."""
    return isinstance(event, StageEntered) and event.stage == "measure"


def played_live(home: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedRun:
    """The frozen run, live in a test's home until it is ended."""
    played = PlayedRun(home)
    monkeypatch.setattr(
        RunDirectory,
        "is_live",
        lambda run: run.id == played.run.id and not run.record_path.exists(),
    )
    return played
