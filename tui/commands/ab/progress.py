"""An experiment's rounds as progress on stderr: a live picture, or plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ....core.analysis.verdict.power import ROUNDS_A_BLOCK
from ....core.analysis.verdict.text import headline, interval_line
from ....core.analysis.verdict.verdict import Verdict
from ....core.record.events import (
    FirstStepTimed,
    Noticed,
    PassEnded,
    StageEntered,
    StepsTimed,
    WarmupSettled,
)
from ....core.record.timing import Round
from ....core.runs.ab.experiment import Experiment, ExperimentDirectory, Side
from ....core.runs.ab.runner import Judged, Progress, RoundFinished, RoundStarting, Stopped
from ....core.tables.cells import literal
from ...text import STAGE_WORDS, elapsed, median_text, milliseconds, outcome_glyph
from ..report.comparison import picture_line

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

REPAINT_SECONDS = 0.5
BAR_CELLS = 24


class AbProgress:
    """Shows an experiment until the context ends; with ``quiet`` only on a terminal."""

    def __init__(self, directory: ExperimentDirectory, *, quiet: bool) -> None:
        self._view = AbView(directory.experiment())
        self._quiet = quiet
        self._live: Live | None = None
        self._painted = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, item: Progress) -> None:
        """Take one item into the display."""
        said = self._view.take(item)
        if self._live is None:
            if said and not self._quiet:
                print(literal(said), file=sys.stderr, flush=True)
            return
        is_turn = isinstance(item, RoundStarting | RoundFinished | Judged)
        if is_turn or time.monotonic() - self._painted >= REPAINT_SECONDS:
            self._painted = time.monotonic()
            self._live.update(_picture(self._view.lines()), refresh=True)


class AbView:
    """An experiment as its progress tells it."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._began = time.monotonic()
        self._block = 0
        self._marks: dict[int, str] = {}
        self._verdict: Verdict | None = None
        self._now = ""

    def take(self, item: Progress) -> str:
        """Take an item in; the line that a pipe gets for it, or an empty one."""
        match item:
            case RoundStarting():
                self._start(item.block)
                # Rounds of the block that an earlier process measured are not told.
                self._marks = dict.fromkeys(range(item.position), "finished")
                self._marks[item.position] = "running"
                self._now = f"again: {item.again}" if item.again else "starting"
                return f"{self._place(item.side)}  {self._now}" if item.again else ""
            case RoundFinished():
                row = item.round
                self._start(row.block or 0)
                self._marks[row.position or 0] = row.outcome if row.counts else "waiting"
                return f"{self._place(item.side)}  {_figure(row)}"
            case Judged():
                self._verdict = item.verdict
                return f"{'':<12} {self._judgement()}"
            case Stopped():
                return f"{item.ended.ending}: {item.ended.detail}"
            case Noticed():
                self._now = item.message
                return item.message
            case StageEntered():
                self._now = STAGE_WORDS.get(item.stage, item.stage)
            case FirstStepTimed():
                self._now = f"first step {milliseconds(item.step_ms)}"
            case WarmupSettled():
                self._now = f"warm-up over after {item.steps} steps"
            case StepsTimed():
                steps = item.first_index + len(item.step_ms)
                self._now = f"step {steps}: {median_text(item.median_ms, item.half_width)}"
            case PassEnded() if item.outcome != "finished":
                self._now = item.detail
            case _:
                pass
        return ""

    def lines(self) -> list[tuple[str, str]]:
        """The picture: blocks, the rounds of the present one, the interval, the verdict."""
        order = self._experiment.order(self._block)
        rounds = "  ".join(
            f"{side} {outcome_glyph(self._marks.get(position, 'waiting'))}"
            for position, side in enumerate(order)
        )
        clock = elapsed(time.monotonic() - self._began)
        lines = [
            (f"block {self._block + 1}   {rounds}   {clock}", "bold"),
            (f"  {self._bar()}  {self._now}", ""),
        ]
        if self._verdict is not None:
            lines.append((f"  {picture_line(interval_line(self._verdict))}", "cyan"))
            lines.append((f"  {headline(self._verdict)}", ""))
            lines.append((f"  {self._verdict.next}", "dim"))
        return lines

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
            share, words = done / most, f"{done} of at most {most} rounds"
        else:
            spent = time.monotonic() - self._began
            share, words = spent / (60 * self._experiment.max_minutes), f"{done} rounds"
        full = round(min(1.0, share) * BAR_CELLS)
        return f"{'█' * full}{'░' * (BAR_CELLS - full)}  {words}"

    def _judgement(self) -> str:
        if self._verdict is None:
            return ""
        following = f"; {self._verdict.next}" if self._verdict.next else ""
        return f"{headline(self._verdict)}{following}"


def _figure(row: Round) -> str:
    """A round's median, or why it has none that counts."""
    if row.counts:
        return milliseconds(row.median_ms)
    return f"does not count: {row.disturbed or row.outcome}"


def _picture(lines: list[tuple[str, str]]) -> Group:
    from rich.console import Group
    from rich.text import Text

    return Group(
        *(
            Text(literal(text), style=style, no_wrap=True, overflow="ellipsis")
            for text, style in lines
        )
    )
