"""The progress of the noise doctor: a line for each round."""

from __future__ import annotations

import statistics

from ....core.record.events import Noticed
from ....core.runs.ab.runner import ExperimentEvent, RoundFinished, RoundStarting
from ...text import interval, milliseconds
from ..report.progress import Fold


class NoiseFold(Fold[ExperimentEvent]):
    """Rounds of one spec, and how far they differ so far."""

    def __init__(self) -> None:
        self._medians: list[float] = []

    def take(self, event: ExperimentEvent) -> str:
        match event:
            case RoundStarting(again=again) if again:
                return f"again: {again}"
            case RoundFinished():
                return self._round(event)
            case Noticed():
                return event.message
            case _:
                return ""

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
