"""Show the progress of a command on stderr: a live picture, or plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from sysbench.core.compare.verdict import Verdict, headline, interval_line
from sysbench.core.experiments.experiment import Experiment, Side
from sysbench.core.experiments.experiment_runner import (
    ExperimentEvent,
    Judged,
    RoundFinished,
    RoundStarting,
    Stopped,
)
from sysbench.core.formatting import counted, format_bytes, milliseconds
from sysbench.core.inspection.inspection import Progressed
from sysbench.core.record.events import (
    AnyEvent,
    FirstStepTimed,
    Noticed,
    PassEnded,
    PassStarted,
    RunStarted,
    StageEntered,
    StepsTimed,
    TelemetrySampled,
    WarmupSettled,
    WarmupStepTimed,
    WorkStepped,
)
from sysbench.core.record.timing import AUTO_WARMUP, Round
from sysbench.core.studies.study_directory import CellEntry
from sysbench.core.studies.study_runner import (
    CellEnded,
    CellsElsewhere,
    CellStarted,
    StudyEnded,
    StudyEvent,
    StudyStarted,
)
from sysbench.core.tables.cells import literal
from sysbench.core.tables.context import settings_line
from sysbench.tui.commands.output import say
from sysbench.tui.commands.text_lines import picture_line
from sysbench.tui.live.run_watch import LiveView
from sysbench.tui.text import (
    STAGE_WORDS,
    decoding_text,
    elapsed,
    forecast_text,
    layout_facts,
    median_text,
    outcome_glyph,
)
from sysbench.tui.widgets.traces import block_rows, gauge

if TYPE_CHECKING:
    from rich.live import Live


E = TypeVar("E")

SLOW_STEP_MS = 2000.0
"""A step from which on warm-up is silent for long."""
REPAINT_SECONDS = 0.5
QUIET_SECONDS = 2.0
"""Minimum seconds between two lines about steps."""
BAR_CELLS = 24


class Fold(Generic[E]):
    """State of a job after the events so far, as the display shows it."""

    def take(self, event: E) -> str:
        """Apply an event; return a line about it, or an empty string."""
        raise NotImplementedError

    def picture(self, width: int) -> Iterator[tuple[str, str]]:
        """Yield the lines of the live picture with their styles."""
        yield from ()

    def scrolls(self, event: E) -> bool:
        """Whether a terminal also shows the event's line above the picture."""
        return True


class Progress(Generic[E]):
    """Shows a fold until the context ends.

    Repaints at most twice per second, so as not to disturb the measurement.

    Args:
        json: Stdout is for JSON. A pipe then gets no progress, since stderr may be the same pipe.
    """

    def __init__(self, fold: Fold[E], *, json: bool) -> None:
        self._fold = fold
        self._is_terminal = sys.stderr.isatty()
        self._is_enabled = self._is_terminal or not json
        self._live: Live | None = None
        self._painted = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, event: E) -> None:
        if not self._is_enabled:
            return
        text = self._fold.take(event)
        if text and (not self._is_terminal or self._fold.scrolls(event)):
            self.say(text)
        if text or time.monotonic() - self._painted >= REPAINT_SECONDS:
            self._paint()

    def say(self, text: str) -> None:
        """Write a line; do nothing if the reader has closed the pipe."""
        if not self._is_enabled:
            return
        try:
            if self._live is not None:
                self._live.console.print(literal(text), soft_wrap=True)
            else:
                print(literal(text), file=sys.stderr, flush=True)
        except OSError:
            self._is_enabled = False

    def _paint(self) -> None:
        if not self._is_terminal:
            return
        from rich.console import Console, Group  # lazy: a pipe needs no rich
        from rich.live import Live  # lazy: a pipe needs no rich
        from rich.text import Text  # lazy: a pipe needs no rich

        self._painted = time.monotonic()
        console = (
            self._live.console
            if self._live
            else Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
        )
        lines = [
            Text(literal(text), style=style, no_wrap=True, overflow="ellipsis")
            for text, style in self._fold.picture(console.width)
        ]
        if self._live is None and lines:
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        if self._live is not None:
            self._live.update(Group(*lines), refresh=True)


def show_events(fold: Fold[E], events: Iterable[E], *, json: bool, job: str = "") -> None:
    """Show the progress of all events.

    Args:
        job: Id of a job that goes on after an interruption.
    """
    try:
        with Progress(fold, json=json) as progress:
            for event in events:
                progress.show(event)
    except KeyboardInterrupt:
        if job:
            say(f"left {job} running", to_stderr=True)
        raise


class RunFold(Fold[AnyEvent]):
    def __init__(self) -> None:
        self._view = LiveView()
        self._now_ns = 0
        self._printed_ns = 0
        self._last_text = ""

    def take(self, event: AnyEvent) -> str:
        view = self._view
        self._now_ns = max(self._now_ns, event.t_ns)
        if not isinstance(event, TelemetrySampled):
            view.take(event)
        text = describe(event)
        if isinstance(event, FirstStepTimed):
            text += self._warmup_ahead(event.step_ms)
        if isinstance(event, StepsTimed):
            if event.t_ns - self._printed_ns < QUIET_SECONDS * 1e9:
                return ""
            self._printed_ns = event.t_ns
        if isinstance(event, PassStarted | PassEnded):
            text = ": ".join(filter(None, (view.round_text, text)))
        if not text or text == self._last_text:
            return ""
        self._last_text = text
        return f"{view.current or 'run':<7} {text}"

    def _warmup_ahead(self, step_ms: float) -> str:
        """Say how long a warm-up of slow steps takes, unless the first one compiled."""
        spec = self._view.spec
        if step_ms < SLOW_STEP_MS or not spec or spec["compile"] != "off":
            return ""
        least, most = AUTO_WARMUP if spec["warmup"] == "auto" else (spec["warmup"],) * 2
        ahead = forecast_text((least - 1) * step_ms / 1e3, is_least=least < most)
        return f"; warm-up takes {ahead} more" if least > 1 else ""

    def scrolls(self, _: AnyEvent) -> bool:
        return False

    def picture(self, width: int) -> Iterator[tuple[str, str]]:
        view = self._view
        passes = " ── ".join(f"{name} {outcome_glyph(s)}" for name, s in view.passes.items())
        yield f"{passes}   {elapsed((self._now_ns - view.began_ns) / 1e9)}", "bold"
        yield f"  {gauge(self._share(), BAR_CELLS)}  {self._stage()}", ""
        recent = list(islice(view.steps_ms, max(0, len(view.steps_ms) - max(10, width - 4)), None))
        if recent:
            yield f"  {block_rows(recent, 1, min(recent), max(recent))[0]}", "cyan"
        yield f"  {view.lines[-1] if view.lines else ''}", "dim"

    def _stage(self) -> str:
        view = self._view
        stage = STAGE_WORDS.get(view.stage, "starting")
        if view.round_text:
            stage = f"{view.round_text}, {stage}"
        if view.progress is not None:
            what, done, total = view.progress
            return f"{stage}: {what} {done} of {total}"
        if view.median_ms is None or view.current != "timing":
            return stage
        return f"{stage}: step {view.step_count}, {median_text(view.median_ms, view.half_width)}"

    def _share(self) -> float:
        """Completed share of the current pass, 0 if unknown."""
        view = self._view
        if view.progress is not None:
            _, done, total = view.progress
            return done / total if total else 0.0
        if view.current != "timing" or not view.step_count:
            return 0.0
        if steps := int(view.spec.get("steps", 0)):
            return view.step_count / steps
        # The interval narrows with the root of the number of steps.
        goal, width = float(view.spec.get("until", 0.0)), view.half_width
        return (goal / width) ** 2 if width else 1.0


def describe(event: AnyEvent) -> str:
    match event:
        case RunStarted():
            model = event.spec.get("model")
            return f"{event.run} started: {model} · {settings_line(event.spec)}"
        case PassStarted():
            return f"started, process {event.pid}"
        case FirstStepTimed():
            return f"first step {milliseconds(event.step_ms)}"
        case WarmupStepTimed() if event.index and event.step_ms >= SLOW_STEP_MS:
            return f"warm-up step {event.index + 1}: {milliseconds(event.step_ms)}"
        case WarmupSettled():
            state = "settled" if event.settled else "did not settle"
            return f"warm-up {state} after {event.steps} steps"
        case StepsTimed():
            steps = event.first_index + len(event.step_ms)
            return f"step {steps}: {median_text(event.median_ms, event.half_width)}"
        case WorkStepped() if event.done == event.total:
            return f"{event.what} done"
        case Noticed():
            return event.message
        case PassEnded():
            return f"{event.detail}, {event.seconds:.1f} s"
        case _:
            return ""


class ExperimentFold(Fold[ExperimentEvent]):
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
                if not self._in_pairs:
                    # Rounds that an earlier process measured emit no events.
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
                return f"{'':<{len(self._place('A'))}} {headline(event.verdict)}{following}"
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
        yield f"{self._word} {self._block + 1}   {rounds}   {elapsed(self._spent())}", "bold"
        yield f"  {self._bar()}  {self._now}", ""
        if self._verdict is not None:
            yield f"  {picture_line(interval_line(self._verdict))}", "cyan"
            yield f"  {headline(self._verdict)}", ""
            yield f"  {self._verdict.next}", "dim"

    @property
    def _in_pairs(self) -> bool:
        return self._experiment.method == "duet"

    @property
    def _word(self) -> str:
        return self._experiment.block_word

    def _spent(self) -> float:
        return time.monotonic() - self._began

    def _start(self, block: int) -> None:
        if block != self._block:
            self._block, self._marks = block, {}

    def _place(self, side: Side) -> str:
        return f"{self._word} {self._block + 1:<3} {side}"

    def _bar(self) -> str:
        """Bar of the finished rounds of the plan; without a plan of the elapsed time."""
        plan, block_rounds = self._experiment.plan, self._experiment.block_rounds
        done = block_rounds * self._block
        done += sum(mark == "finished" for mark in self._marks.values())
        most = None if plan is None else plan.pairs if self._in_pairs else plan.blocks
        if most:
            limit = block_rounds * most
            return f"{gauge(done / limit, BAR_CELLS)}  {done} of at most {limit} rounds"
        share = self._spent() / (60 * self._experiment.max_minutes)
        return f"{gauge(share, BAR_CELLS)}  {done} rounds"


def _figure(row: Round) -> str:
    if row.counts:
        return milliseconds(row.median_ms)
    return f"does not count: {row.disturbed or row.outcome}"


class StudyFold(Fold[StudyEvent]):
    def __init__(self) -> None:
        self._now = ""

    def take(self, event: StudyEvent) -> str:
        match event:
            case StudyStarted():
                text = f"{event.done} of {counted(event.total, 'cell')} done"
                if event.done == event.total:
                    return text
                if event.seconds is None:
                    return f"{text}; time left unknown, no similar cell ran here"
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
                return f"{event.entry.status:<9} {event.cell.words}{_figures(event.entry)}"
            case StudyEnded():
                return f"{event.reason}: {event.done} of {counted(event.total, 'cell')} done"
        return ""

    def scrolls(self, event: StudyEvent) -> bool:
        return not isinstance(event, CellStarted)

    def picture(self, _: int) -> Iterator[tuple[str, str]]:
        yield self._now, ""


def _figures(entry: CellEntry) -> str:
    if entry.predicted is not None:
        facts = ", ".join(islice(layout_facts(entry.predicted), 2))
        return f"  {format_bytes(entry.peak_bytes or 0)}, {facts}"
    if entry.status not in ("finished", "running") and entry.detail:
        return f"  {entry.detail}"
    return "" if entry.median_ms is None else f"  {milliseconds(entry.median_ms)}"


class DecodingFold(Fold[Progressed]):
    """Decoding of an imported file, on one line that disappears at the end."""

    def take(self, event: Progressed) -> str:
        self._step = event
        return ""

    def picture(self, _: int) -> Iterator[tuple[str, str]]:
        share = self._step.share
        filled = "" if share is None else f"{gauge(share, BAR_CELLS)}  "
        yield f"  {filled}{decoding_text(self._step)}", ""


def decoding_progress() -> Progress[Progressed]:
    return Progress(DecodingFold(), json=False)
