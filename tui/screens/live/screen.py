"""Live: the running pass with its step times, telemetry and log."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import msgspec
from textual import getters
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from ....core.errors import SysbenchError
from ....core.machine.null_gpu import WORDS, is_null
from ....core.spec.command_line import command_line
from ...live.run_watch import LiveView, RunWatch
from ...text import (
    STAGE_WORDS,
    elapsed,
    fitted_headline,
    interval,
    milliseconds,
    outcome_glyph,
    outcome_text,
    percent,
    significant,
)
from ...widgets.bars.command_line import CommandLine
from ...widgets.charts.drawing import Drawing
from ...widgets.charts.plot import Plot
from ...widgets.charts.telemetry_rows import telemetry_lines
from ..base import WorkScreen
from ..dialogs.ask import ask_before_stopping


class LiveScreen(WorkScreen):
    """Follows the app's run; paints only changes, at most twice a second."""

    CSS_PATH = "screen.tcss"
    BINDING_GROUP_TITLE = "Live"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "stop", "Stop", id="live.stop", tooltip="End the run as cancelled; asks"),
        Binding(
            "d", "leave", "Leave", id="live.leave", tooltip="Leave this screen; the run continues"
        ),
    ]

    AUTO_FOCUS = ""

    plot = getters.query_one(Plot)

    def __init__(self) -> None:
        super().__init__()
        self._shown: RunWatch | None = None
        self._steps_shown: tuple[float | None, ...] = ()
        self._samples_shown: object = None
        self._lines_shown = 0

    def body(self) -> ComposeResult:
        yield Drawing(id="heading")
        yield Static(id="passes", markup=False)
        with Horizontal(id="panels"):
            with Vertical(id="steps", classes="panel") as steps:
                steps.border_title = "Step time"
                yield Static(id="median", markup=False)
                yield Plot(axis=lambda value: significant(value, 3))
                yield Static(id="phases", markup=False)
            with Vertical(id="telemetry", classes="panel") as telemetry:
                telemetry.border_title = "Telemetry"
                yield Drawing(id="series")
        with Vertical(id="log-panel", classes="panel") as log_panel:
            log_panel.border_title = "Log"
            yield Drawing(id="log")
        yield CommandLine()

    def on_mount(self) -> None:
        self.paint()

    def on_screen_resume(self) -> None:
        self.paint()

    def paint(self) -> None:
        super().paint()
        watch = self.app.watch_run
        if watch is None or not self.query("#median"):
            return
        if watch is not self._shown:
            self._begin(watch)
        view = watch.view
        self._set("#passes", passes_line(view, watch.seconds, self.size.width))
        steps = (view.round, view.first_step_ms, len(view.warmup_ms), view.step_count)
        if steps != self._steps_shown:
            self._paint_steps(view)
            self._steps_shown = steps
        newest = view.samples[-1] if view.samples else None
        if newest is not self._samples_shown:
            self._paint_telemetry(view)
            self._samples_shown = newest
        if view.line_count != self._lines_shown:
            self._lines_shown = view.line_count
            lines = list(view.lines)
            self.query_one("#log", Drawing).show(
                lambda width, height: Content("\n".join(lines[-height:]))
            )

    def _begin(self, watch: RunWatch) -> None:
        """Start over with another run than the one shown."""
        self._shown, self._lines_shown = watch, 0
        self._steps_shown, self._samples_shown = (), None
        self.plot.show([])
        spec = msgspec.to_builtins(watch.run.header().spec)
        self.query_one("#heading", Drawing).show(
            lambda width, height: Content(fitted_headline(spec, width))
        )
        self.query_one(CommandLine).show(self.command())

    def _set(self, selector: str, text: Content) -> None:
        """Update a label only if its text has changed."""
        label = self.query_one(selector, Static)
        if label.content != text:
            label.update(text)

    def _paint_steps(self, view: LiveView) -> None:
        self._set("#median", median_line(view))
        self._set("#phases", phases_line(view))
        warm = view.warmup_ms[1:]
        values = [*warm, *view.steps_ms]
        marks = [(0, "warm-up")] if warm else []
        if view.steps_ms:
            marks.append((len(warm), "measured"))
        self.plot.show(values, marks=marks, split=len(warm))

    def _paint_telemetry(self, view: LiveView) -> None:
        self.query_one("#steps").border_title = steps_title(view)
        device = str(view.spec.get("device", "auto"))
        draw = partial(telemetry_lines, list(view.samples), list(view.marks), device)
        self.query_one("#series", Drawing).show(draw)

    def command(self) -> str:
        watch = self.app.watch_run
        if watch is None:
            return super().command()
        header = watch.run.header()
        return command_line(header.spec, header.passes, header.repeat, header.python)

    def explanations(self) -> list[str]:
        return ["timing.step", "timing.phases", "telemetry.series"]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "stop":
            return True if self.app.session.live else None
        return super().check_action(action, parameters)

    def action_stop(self) -> None:
        watch = self.app.watch_run
        if watch is None:
            return

        def answered(choice: str | None) -> None:
            try:
                if choice == "stop" and not watch.stop():
                    self.notify("It had already ended.", markup=False)
            except SysbenchError as error:
                self.notify(str(error), title="Not stopped", severity="error", markup=False)

        self.app.push_screen(ask_before_stopping(), answered)

    def action_leave(self) -> None:
        self.app.action_mode("library")

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        commands: list[tuple[str, str, Any]] = []
        if self.app.session.live:
            commands = [
                ("live: Stop run", "end it as cancelled, keep what is measured", self.action_stop),
                ("live: Leave running", "go elsewhere, it goes on", self.action_leave),
            ]
        return [*commands, *super().palette_commands()]


def steps_title(view: LiveView) -> str:
    """``Step time``, on a null GPU with the mark that it is none."""
    newest = view.samples[-1] if view.samples else None
    devices = newest.devices if newest and view.spec.get("device") != "cpu" else []
    null = any(is_null(device.name) for device in devices)
    return f"Step time · {WORDS}: no times" if null else "Step time"


def passes_line(view: LiveView, seconds: float, width: int) -> Content:
    """``timing ● ── trace ○ ── memory ○``, the present stage, and the time since the start."""
    pieces = []
    for name, state in view.passes.items():
        style = {"running": "bold $accent", "waiting": "$foreground 50%"}.get(state, "$foreground")
        pieces.append(Content.styled(f"{name} {outcome_glyph(state)}", style))
    line = Content.styled(" ── ", "$foreground 40%").join(pieces)
    doing = STAGE_WORDS.get(view.stage, "starting") if view.status == "running" else ""
    if view.progress:
        what, done, total = view.progress
        doing = f"{what} {done}/{total}"
    doing = ", ".join(filter(None, (view.round_text, doing)))
    if view.status != "running":
        doing = outcome_text(view.status)
    line += Content.styled(f"   {doing}", "$foreground 70%")
    clock = elapsed(seconds)
    return line.pad_right(max(1, width - 2 - len(line) - len(clock))) + Content(clock)


def median_line(view: LiveView) -> Content:
    """The median with its interval settling towards the goal."""
    if view.median_ms is None:
        first = view.first_step_ms
        return Content(f"first step {milliseconds(first)}" if first else "waiting for a step …")
    goal = view.spec.get("until")
    # With a fixed number of steps there is no goal.
    fixed = view.spec.get("steps")
    aim = f" of {fixed}" if fixed else f", goal {interval(goal)}"
    line = Content.assemble(
        (milliseconds(view.median_ms), "bold $accent"),
        f" {interval(view.half_width)}  n {view.step_count}{aim}",
    )
    if view.settled is False:
        return line + Content.styled("  ! warm-up did not settle", "$warning")
    if not fixed and goal and view.half_width is not None and view.half_width <= goal:
        return line + Content.styled("  ✓ settled", "$success")
    return line


def phases_line(view: LiveView) -> Content:
    """Median milliseconds of each phase, with its share of their sum."""
    medians = view.phase_medians()
    total = sum(medians.values())
    return Content("   ").join(
        Content.assemble(
            (f"{name} ", "$foreground 60%"),
            significant(median, 3),
            (f" {percent(median / total, 0)}", "$foreground 60%"),
        )
        for name, median in medians.items()
    )
