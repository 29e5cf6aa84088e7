"""A study's progress: a line for each cell, and a bar with the time that is left."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.core.formatting import counted
from sysbench.core.studies.study_runner import (
    CellEnded,
    CellsElsewhere,
    CellStarted,
    StudyEnded,
    StudyEvent,
    StudyStarted,
)
from sysbench.tui.commands.progress import BAR_CELLS, Fold
from sysbench.tui.text import elapsed, forecast_text, milliseconds
from sysbench.tui.widgets.traces import gauge


class StudyFold(Fold[StudyEvent]):
    """A study: its cells as they end."""

    def __init__(self) -> None:
        self._now = ""

    def take(self, event: StudyEvent) -> str:
        match event:
            case StudyStarted():
                text = f"{event.done} of {counted(event.total, 'cell')} done"
                if event.seconds is None or event.done == event.total:
                    return text
                return f"{text}; {forecast_text(event.seconds, is_least=event.is_least)} left"
            case CellsElsewhere():
                return f"{counted(event.count, 'cell')}: {event.words}"
            case CellStarted():
                self._now = f"cell {event.number}  {event.cell.words}"
                return self._now
            case CellEnded():
                left = "" if event.seconds_left is None else f"  {elapsed(event.seconds_left)} left"
                bar = gauge(event.done / event.total if event.total else 1.0, BAR_CELLS)
                self._now = f"{bar} {event.done}/{event.total}{left}"
                return f"{event.status:<9} {event.cell.words}{_figures(event)}"
            case StudyEnded():
                return f"{event.reason}: {event.done} of {counted(event.total, 'cell')} done"
        return ""

    def scrolls(self, event: StudyEvent) -> bool:
        return not isinstance(event, CellStarted)

    def picture(self, _: int) -> Iterator[tuple[str, str]]:
        yield self._now, ""


def _figures(event: CellEnded) -> str:
    entry = event.entry
    if entry.status not in ("finished", "running") and entry.detail:
        return f"  {entry.detail}"
    return "" if entry.median_ms is None else f"  {milliseconds(entry.median_ms)}"
