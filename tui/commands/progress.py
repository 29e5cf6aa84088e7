"""The progress of a command on stderr: a live picture on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from sysbench.core.record.events import (
    AnyEvent,
    FirstStepTimed,
    Noticed,
    PassEnded,
    PassStarted,
    RunStarted,
    StepsTimed,
    TelemetrySampled,
    WarmupSettled,
    WorkStepped,
)
from sysbench.core.tables.cells import literal
from sysbench.core.tables.context import settings_line
from sysbench.tui.live.run_watch import LiveView
from sysbench.tui.text import (
    STAGE_WORDS,
    elapsed,
    median_text,
    milliseconds,
    outcome_glyph,
)
from sysbench.tui.widgets.traces import block_rows, gauge

if TYPE_CHECKING:
    from rich.live import Live

E = TypeVar("E")

REPAINT_SECONDS = 0.5
QUIET_SECONDS = 2.0
"""Least seconds between two plain lines about steps."""
BAR_CELLS = 24


class Fold(Generic[E]):
    """The state of some work after the events so far, as a display shows it."""

    def take(self, event: E) -> str:
        """Fold an event in; returns the line that it is worth, or an empty one."""
        raise NotImplementedError

    def picture(self, width: int) -> Iterator[tuple[str, str]]:
        """Lines of the live picture, each with its style."""
        yield from ()

    def scrolls(self, event: E) -> bool:
        """Whether a terminal shows the event's line above the picture too."""
        return True


class Progress(Generic[E]):
    """Shows a fold until the context ends.

    Repaints at most twice a second without a new line, so as not to disturb the measurement.

    Args:
        fold: What is shown.
        json: Stdout is for JSON. A pipe then gets no progress, since stderr may be the same pipe.
    """

    def __init__(self, fold: Fold[E], *, json: bool) -> None:
        self._fold = fold
        self._is_terminal = sys.stderr.isatty()
        self._speaks = self._is_terminal or not json
        self._live: Live | None = None
        self._painted = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, event: E) -> None:
        """Take one event into the display."""
        if not self._speaks:
            return
        text = self._fold.take(event)
        if text and (not self._is_terminal or self._fold.scrolls(event)):
            self.say(text)
        if text or time.monotonic() - self._painted >= REPAINT_SECONDS:
            self._paint()

    def say(self, text: str) -> None:
        """Write a line at once; none once the reader has left, since the work goes on."""
        if not self._speaks:
            return
        try:
            if self._live is not None:
                self._live.console.print(literal(text), soft_wrap=True)
            else:
                print(literal(text), file=sys.stderr, flush=True)
        except OSError:
            self._speaks = False

    def _paint(self) -> None:
        if not self._is_terminal:
            return
        from rich.console import Console, Group  # slow, and of no use in a pipe
        from rich.live import Live
        from rich.text import Text

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


class RunFold(Fold[AnyEvent]):
    """A run: its passes, the step times, the newest fact."""

    def __init__(self) -> None:
        self._view = LiveView()
        self._now_ns = 0
        self._spoke_ns = 0
        self._said = ""

    def take(self, event: AnyEvent) -> str:
        view = self._view
        self._now_ns = max(self._now_ns, event.t_ns)
        if not isinstance(event, TelemetrySampled):
            view.take(event)
        text = describe(event)
        if isinstance(event, StepsTimed):
            if event.t_ns - self._spoke_ns < QUIET_SECONDS * 1e9:
                return ""
            self._spoke_ns = event.t_ns
        if isinstance(event, PassStarted | PassEnded):
            text = ": ".join(filter(None, (view.round_text, text)))
        if not text or text == self._said:
            return ""
        self._said = text
        return f"{view.current or 'run':<7} {text}"

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
        """The done share of the current pass, 0 where it is not known."""
        view = self._view
        if view.progress is not None:
            _, done, total = view.progress
            return done / total if total else 0.0
        if view.current != "timing" or not view.step_count:
            return 0.0
        if steps := int(view.spec["steps"]):
            return view.step_count / steps
        # The interval narrows with the root of the number of steps.
        goal, width = float(view.spec["until"]), view.half_width
        return (goal / width) ** 2 if width else 1.0


def describe(event: AnyEvent) -> str:
    """One line about an event; empty for an event that needs none."""
    match event:
        case RunStarted():
            model = event.spec.get("model")
            return f"{event.run} started: {model} · {settings_line(event.spec)}"
        case PassStarted():
            return f"started, process {event.pid}"
        case FirstStepTimed():
            return f"first step {milliseconds(event.step_ms)}"
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
