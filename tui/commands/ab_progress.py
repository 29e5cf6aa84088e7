"""An experiment's progress: the rounds of the present block, the interval, the verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sysbench.core.compare.power import ROUNDS_A_BLOCK
from sysbench.core.compare.verdict import Verdict
from sysbench.core.compare.verdict_text import headline, interval_line
from sysbench.core.experiments.experiment import Experiment, Side
from sysbench.core.experiments.experiment_runner import (
    ExperimentEvent,
    Judged,
    RoundFinished,
    RoundStarting,
    Stopped,
)
from sysbench.core.record.events import (
    FirstStepTimed,
    Noticed,
    PassEnded,
    StageEntered,
    StepsTimed,
    WarmupSettled,
)
from sysbench.core.record.timing import Round
from sysbench.tui.commands.comparison_report import picture_line
from sysbench.tui.commands.progress import BAR_CELLS, Fold, describe
from sysbench.tui.text import STAGE_WORDS, elapsed, milliseconds, outcome_glyph
from sysbench.tui.widgets.traces import gauge


class ExperimentFold(Fold[ExperimentEvent]):
    """An experiment: its rounds and its verdict so far."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._began = time.monotonic()
        self._block = 0
        self._marks: dict[int, str] = {}
        self._verdict: Verdict | None = None
        self._now = ""

    def take(self, event: ExperimentEvent) -> str:
        match event:
            case RoundStarting():
                self._start(event.block)
                # Rounds of the block that an earlier process measured come without events.
                self._marks = dict.fromkeys(range(event.position), "finished")
                self._marks[event.position] = "running"
                self._now = f"again: {event.again}" if event.again else "starting"
                return f"{self._place(event.side)}  {self._now}" if event.again else ""
            case RoundFinished():
                row = event.round
                self._start(row.block or 0)
                self._marks[row.position or 0] = row.outcome if row.counts else "waiting"
                return f"{self._place(event.side)}  {_figure(row)}"
            case Judged():
                self._verdict = event.verdict
                following = f"; {event.verdict.next}" if event.verdict.next else ""
                return f"{'':<12} {headline(event.verdict)}{following}"
            case Stopped():
                return f"{'failed: ' * (event.ended.ending == 'failed')}{event.ended.detail}"
            case Noticed():
                self._now = event.message
                return event.message
            case StageEntered():
                self._now = STAGE_WORDS.get(event.stage, event.stage)
            case FirstStepTimed() | WarmupSettled() | StepsTimed():
                self._now = describe(event)
            case PassEnded() if event.outcome != "finished":
                self._now = event.detail
            case _:
                pass
        return ""

    def scrolls(self, _: ExperimentEvent) -> bool:
        return False

    def picture(self, _: int) -> Iterator[tuple[str, str]]:
        rounds = "  ".join(
            f"{side} {outcome_glyph(self._marks.get(position, 'waiting'))}"
            for position, side in enumerate(self._experiment.order(self._block))
        )
        yield f"block {self._block + 1}   {rounds}   {elapsed(self._spent())}", "bold"
        yield f"  {self._bar()}  {self._now}", ""
        if self._verdict is not None:
            yield f"  {picture_line(interval_line(self._verdict))}", "cyan"
            yield f"  {headline(self._verdict)}", ""
            yield f"  {self._verdict.next}", "dim"

    def _spent(self) -> float:
        return time.monotonic() - self._began

    def _start(self, block: int) -> None:
        if block != self._block:
            self._block, self._marks = block, {}

    def _place(self, side: Side) -> str:
        return f"block {self._block + 1:<3} {side}"

    def _bar(self) -> str:
        """Rounds that are done, of those that the plan allows; without a plan of the time."""
        plan, done = self._experiment.plan, ROUNDS_A_BLOCK * self._block
        done += sum(mark == "finished" for mark in self._marks.values())
        if plan is not None and plan.blocks:
            most = ROUNDS_A_BLOCK * plan.blocks
            return f"{gauge(done / most, BAR_CELLS)}  {done} of at most {most} rounds"
        share = self._spent() / (60 * self._experiment.max_minutes)
        return f"{gauge(share, BAR_CELLS)}  {done} rounds"


def _figure(row: Round) -> str:
    """A round's median, or why it has none that counts."""
    if row.counts:
        return milliseconds(row.median_ms)
    return f"does not count: {row.disturbed or row.outcome}"
