"""A run's events as progress on stderr: a live display, or plain lines in a pipe."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

from ....core.record.events import (
    AnyEvent,
    FirstStepTimed,
    Noticed,
    PassEnded,
    PassStarted,
    RunStarted,
    StepsTimed,
    WarmupSettled,
    WorkStepped,
)
from ....core.tables.cells import literal
from ....core.tables.context import settings_line
from ...text import median_text, milliseconds, round_words
from .output import ProgressLines

QUIET_SECONDS = 2.0
"""Least seconds between two plain lines about steps."""


class Progress(Protocol):
    """Shows events until it is left."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, event: AnyEvent) -> None:
        """Take one event into the display."""


def progress_for(*, json: bool) -> Progress:
    """A display for a terminal, lines for a pipe, and nothing in a pipe with JSON."""
    if sys.stderr.isatty():
        from .live_progress import LiveProgress

        return LiveProgress()
    return Silence() if json else PlainProgress()


class Silence:
    """No progress: stdout and stderr may be one pipe, and that pipe must be pure JSON."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, event: AnyEvent) -> None:
        """Nothing is shown."""


class PlainProgress(Silence):
    """One line for each event, without control characters."""

    def __init__(self) -> None:
        self._pass = "run"
        self._repeat = 1
        self._spoke_ns = 0
        self._said = ""
        self._lines = ProgressLines()

    def show(self, event: AnyEvent) -> None:
        """Write a line if the event is worth one."""
        if isinstance(event, RunStarted):
            self._repeat = event.repeat
        if isinstance(event, PassStarted):
            self._pass = event.name
        text = self._describe(event)
        if isinstance(event, PassStarted | PassEnded) and self._pass == "timing":
            text = ": ".join(filter(None, (round_words(event.round, self._repeat), text)))
        if text and text != self._said:
            self._said = text
            self._lines.say(f"{self._pass:<7} {literal(text)}")

    def _describe(self, event: AnyEvent) -> str:
        if isinstance(event, StepsTimed):
            if event.t_ns - self._spoke_ns < QUIET_SECONDS * 1e9:
                return ""
            self._spoke_ns = event.t_ns
        return describe(event)


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
