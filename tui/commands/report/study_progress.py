"""A study's events as progress on stderr: a bar with what is left, or plain lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from ....core.formatting import counted
from ....core.machine.null_gpu import WORDS, is_null
from ....core.record.environment import device_name
from ....core.record.events import DeviceDescribed
from ....core.studies.run.runner import (
    CellAdvanced,
    CellEnded,
    CellsElsewhere,
    CellStarted,
    StudyEnded,
    StudyEvent,
    StudyStarted,
)
from ....core.tables.cells import literal
from ...text import elapsed, forecast_text, milliseconds

BAR_CELLS = 24


class StudyProgress:
    """Shows events until the context ends; nothing with ``quiet``."""

    def __init__(self, *, quiet: bool) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._quiet = quiet and not self._is_terminal
        self._bar = ""
        self._is_null = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._draw("")

    def show(self, event: StudyEvent) -> None:
        """Take one event into the display."""
        if self._quiet:
            return
        match event:
            case StudyStarted():
                left = f"{event.total - event.done} to run"
                if event.seconds is not None:
                    left += f", {forecast_text(event.seconds, is_least=event.is_least)}"
                self._say(f"{event.total} cells, {event.done} have their value; {left}")
            case CellsElsewhere():
                self._say(f"{counted(event.count, 'cell')}: {event.words}")
            case CellStarted():
                self._is_null = False
                self._draw(f"cell {event.number}  {literal(event.cell.words)}")
                if not self._is_terminal:
                    self._say(f"cell {event.number}  {literal(event.cell.words)}")
            case CellAdvanced(event=DeviceDescribed(facts=facts)):
                self._is_null = self._is_null or is_null(device_name(facts))
            case CellEnded():
                figures = _figures(event, is_null=self._is_null)
                self._say(f"{event.status:<9} {literal(event.cell.words)}{figures}")
                self._draw(_bar(event))
            case StudyEnded():
                self._say(f"{event.reason}: {event.done} of {event.total} cells have their value")

    def _say(self, text: str) -> None:
        bar = self._bar
        self._draw("")
        print(text, file=sys.stderr, flush=True)
        self._draw(bar)

    def _draw(self, bar: str) -> None:
        """Replace the last line; only a terminal has one."""
        if self._is_terminal and bar != self._bar:
            sys.stderr.write(f"\r\x1b[2K{bar}")
            sys.stderr.flush()
        self._bar = bar


def _bar(event: CellEnded) -> str:
    share = event.done / event.total if event.total else 1.0
    full = round(share * BAR_CELLS)
    bar = "█" * full + "░" * (BAR_CELLS - full)
    left = "" if event.seconds_left is None else f"  {elapsed(event.seconds_left)} left"
    return f"{bar} {event.done}/{event.total}{left}"


def _figures(event: CellEnded, *, is_null: bool) -> str:
    entry = event.entry
    if entry.status not in ("finished", "running") and entry.detail:
        return f"  {literal(entry.detail)}"
    if entry.median_ms is None:
        return ""
    return f"  {WORDS if is_null else milliseconds(entry.median_ms)}"
