"""Rounds of the noise doctor on stderr, a line each."""

from __future__ import annotations

import statistics

from ....core.record.events import Noticed
from ....core.runs.ab.runner import ExperimentEvent, RoundFinished, RoundStarting
from ....core.spec.spec import RunSpec
from ....core.tables.cells import literal
from ...text import interval, milliseconds
from ..report.output import ProgressLines


class RoundProgress:
    """Writes lines; none into a pipe with JSON, which stdout may share."""

    def __init__(self, *, json: bool) -> None:
        self._lines = ProgressLines.beside(json=json)
        self._medians: list[float] = []

    def start(self, spec: RunSpec, minutes: float) -> None:
        """Say what is going to happen."""
        self._lines.say(
            f"{spec.model} on {spec.device} against itself for {minutes:g} minutes; "
            "Ctrl+C ends it, and 8 rounds are enough to keep"
        )

    def show(self, item: ExperimentEvent) -> None:
        """Write a line if the item is worth one."""
        match item:
            case RoundStarting(again=again) if again:
                self._lines.say(f"again: {literal(again)}")
            case RoundFinished():
                self._lines.say(self._round(item))
            case Noticed():
                self._lines.say(literal(item.message))

    def _round(self, finished: RoundFinished) -> str:
        row, medians = finished.round, self._medians
        if not row.counts or row.median_ms is None:
            return f"round of {finished.side} does not count: {row.disturbed or row.outcome}"
        medians.append(row.median_ms)
        text = f"round {len(medians):>3} {finished.side}  {milliseconds(row.median_ms)}"
        text += f"  {interval(row.half_width)} inside" if row.half_width else ""
        if len(medians) < 3:
            return text
        spread = statistics.stdev(medians) / statistics.fmean(medians)
        return f"{text}, {interval(spread)} between {len(medians)}"
