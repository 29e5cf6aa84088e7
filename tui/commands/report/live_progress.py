"""The progress of a run on a terminal: its passes, the step times, the newest fact."""

from __future__ import annotations

import sys
from itertools import islice
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ....core.record.events import AnyEvent, PassEnded, PassStarted
from ....core.tables.cells import literal
from ...live.run_watch import LiveView
from ...text import STAGE_WORDS, elapsed, median_text, outcome_glyph

REPAINT_SECONDS = 0.5
_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR_CELLS = 20


class LiveProgress:
    """Repaints at most twice a second, so as not to disturb the measurement."""

    def __init__(self) -> None:
        self._view = LiveView()
        self._painted_ns = 0
        self._live = Live(
            console=Console(file=sys.stderr, highlight=False, markup=False, emoji=False),
            auto_refresh=False,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, event: AnyEvent) -> None:
        """Take an event in, and repaint if the last painting is long enough ago."""
        self._view.take(event)
        is_turn = isinstance(event, PassStarted | PassEnded)
        if is_turn or event.t_ns - self._painted_ns >= REPAINT_SECONDS * 1e9:
            self._painted_ns = event.t_ns
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        view = self._view
        passes = " ── ".join(f"{name} {outcome_glyph(s)}" for name, s in view.passes.items())
        clock = elapsed((view.last_ns - view.began_ns) / 1e9)
        room = max(10, self._live.console.width - 4)
        recent = list(islice(view.steps_ms, max(0, len(view.steps_ms) - room), None))
        return Group(
            _text(f"{passes}   {clock}", "bold"),
            _text(f"  {bar(self._share())}  {self._stage()}", ""),
            _text(f"  {sparkline(recent)}", "cyan"),
            _text(f"  {view.lines[-1] if view.lines else ''}", "dim"),
        )

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


def bar(share: float) -> str:
    """A share of one as a bar of fixed length."""
    filled = round(min(max(share, 0.0), 1.0) * _BAR_CELLS)
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def sparkline(values: list[float]) -> str:
    """One block for each value, scaled from the least to the greatest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)


def _text(text: str, style: str) -> Text:
    return Text(literal(text), style=style, no_wrap=True, overflow="ellipsis")
