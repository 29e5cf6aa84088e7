"""Live: the running pass with its step times, telemetry and log."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import msgspec
from textual import getters, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import ScreenResume
from textual.widgets import Static

from sysbench.core.errors import SysbenchError
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.watch.windows import request_window
from sysbench.tui.live.run_watch import Earlier, LiveView, RunWatch, earlier_runs
from sysbench.tui.screens.ask_dialog import ask_before_stopping
from sysbench.tui.screens.live_text import (
    cursor_line,
    index_at,
    job_line,
    median_line,
    memory_line,
    memory_note,
    passes_lines,
    peak_label,
    phases_line,
    predicted_peak,
    rank_lines,
    reading_marks,
    sensor_words,
    stage_lines,
)
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.text import amount, fitted_headline, significant
from sysbench.tui.widgets.dialog import report_errors
from sysbench.tui.widgets.drawing import Drawing, Folding, Framed
from sysbench.tui.widgets.key_bar import CommandLine, next_name
from sysbench.tui.widgets.plot import Plot
from sysbench.tui.widgets.telemetry_rows import telemetry_lines

WINDOW_STEPS = 3
"""Steps of a watched command that its keys trace or count."""
TRACED = "The next {} steps are traced."


class LiveScreen(WorkScreen):
    """Follows the app's run; paints only changes, at most twice a second.

    All charts share one cursor, a point in time.
    """

    CSS_PATH = "live_screen.tcss"
    BINDING_GROUP_TITLE = "Live"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "stop", "Stop", id="live.stop", tooltip="Cancel the run; asks first"),
        Binding(
            "d", "leave", "Detach", id="live.leave", tooltip="Leave this screen; the run continues"
        ),
        Binding(
            "t",
            "window",
            "Trace",
            id="live.window",
            tooltip="Trace the next steps of a watched command",
        ),
        Binding(
            "m",
            "window(True)",
            "Memory",
            id="live.memory",
            tooltip="Count who holds memory in the next steps of a watched command",
        ),
        Binding(
            "k",
            "result",
            "Result",
            id="live.result",
            tooltip="Show the result so far, with the last steps that were traced or counted",
        ),
        Binding("v", "pass", "Next pass", id="live.pass", tooltip="Show the plot of another pass"),
        Binding(
            "left",
            "cursor(-1)",
            "Cursor",
            key_display="←→",
            tooltip="Show the values at one time in all charts; shift: 10 steps, escape: off",
        ),
        Binding("right", "cursor(1)", "Cursor right", show=False),
        Binding("shift+left,ctrl+left", "cursor(-10)", "Cursor 10 left", show=False),
        Binding("shift+right,ctrl+right", "cursor(10)", "Cursor 10 right", show=False),
        Binding("escape", "follow", "Cursor off", show=False),
    ]

    AUTO_FOCUS = ""

    plot = getters.query_one(Plot)

    def __init__(self) -> None:
        super().__init__()
        self._shown: RunWatch | None = None
        self._earlier: Earlier | None = None
        self._has_looked = False
        self._predicted: int | None = None
        self._picked = ""
        self._cursor_ns: int | None = None
        self._states: dict[str, object] = {}
        self._lines_shown = 0
        self._windows_shown = 0

    @property
    def knows_earlier(self) -> bool:
        return self._earlier is not None

    def body(self) -> ComposeResult:
        yield Drawing(id="heading")
        yield Folding(id="passes")
        with Horizontal(id="panels"):
            with Framed("Step time", id="steps"):
                yield Static(id="median", markup=False)
                yield Plot(axis=lambda value: significant(value, 3))
                yield Static(id="phases", markup=False)
                yield Folding(id="stages")
            with Framed("Telemetry", id="telemetry"):
                yield Drawing(id="series")
        yield Static(id="cursor", markup=False)
        with Framed("Log", id="log-panel"):
            yield Drawing(id="log")
        yield CommandLine()

    def on_mount(self) -> None:
        self.paint()

    def on_screen_resume(self, event: ScreenResume) -> None:
        self.paint()

    def paint(self) -> None:
        if self.app.screen is not self:
            return  # Textual would repaint the dimmed screen behind a dialog
        super().paint()
        watch = self.app.watch_run
        if watch is None or not self.query("#median"):
            return
        if watch is not self._shown:
            self._begin(watch)
        view = watch.view
        if view.began_ns and not self._has_looked and not view.is_job:
            self._has_looked = True
            self._look_back(watch.run, dict(view.environment))
        # Whole seconds, so that a running clock repaints its line once a second, not twice.
        now_ns = watch.now_ns
        second = int(watch.seconds)
        passes = tuple(view.passes.items())
        if self._is_new("passes", (passes, view.stage, view.progress, view.status, second)):
            self.query_one("#passes", Folding).show(
                (lambda width, height: job_line(view, now_ns, width))
                if view.is_job
                else partial(passes_lines, view, self._earlier, now_ns)
            )
        if view.windows > self._windows_shown:
            self._windows_shown = view.windows
            self.notify("The steps are read. Press k to see the result so far.")
            self.refresh_bindings()
        self._paint_picture(watch, second)
        newest = view.samples[-1] if view.samples else None
        if self._is_new("samples", (newest, self._cursor_ns)):
            self._paint_telemetry(view)
        if self._is_new("cursor", self._cursor_ns):
            self.query_one("#cursor").display = self._cursor_ns is not None
            if self._cursor_ns is not None:
                self._set("#cursor", cursor_line(view, self._cursor_ns))
        if view.line_count != self._lines_shown:
            self._lines_shown = view.line_count
            lines = list(view.lines)
            self.query_one("#log", Drawing).show(
                lambda width, height: Content("\n".join(lines[-height:]))
            )

    def _is_new(self, part: str, state: object) -> bool:
        is_new = part not in self._states or self._states[part] != state
        self._states[part] = state
        return is_new

    def _begin(self, watch: RunWatch) -> None:
        self._shown, self._lines_shown, self._states = watch, 0, {}
        self._earlier, self._has_looked = None, False
        self._cursor_ns, self._picked = None, ""
        self.plot.show([])
        header = watch.run.header()
        self.set_class(header.spec.is_job, "-job")
        self._windows_shown = watch.view.windows
        self._predicted = predicted_peak(header.spec)
        spec = msgspec.to_builtins(header.spec)
        self.query_one("#heading", Drawing).show(
            lambda width, height: Content(fitted_headline(spec, width))
        )
        self.query_one(CommandLine).show(self.command())

    @work(thread=True, group="live.earlier", exclusive=True)
    def _look_back(self, run: RunDirectory, environment: dict[str, Any]) -> None:
        """Read the times of earlier runs in a thread: their records may be large."""
        try:
            self.call_later(self._take_earlier, run, earlier_runs(run, environment))
        except SysbenchError as error:
            text = f"Cannot read earlier runs: {error}"
            self.call_later(self.notify, text, severity="warning")

    def _take_earlier(self, run: RunDirectory, earlier: Earlier) -> None:
        if self._shown is not None and self._shown.run.id == run.id:
            self._earlier, self._states = earlier, {}
            self.paint()

    def _set(self, selector: str, text: Content) -> None:
        label = self.query_one(selector, Static)
        if label.content != text:
            label.update(text)

    @property
    def _pass(self) -> str:
        watch = self.app.watch_run
        return self._picked or (watch.view.current if watch else "")

    def _paint_picture(self, watch: RunWatch, second: int) -> None:
        view, name = watch.view, self._pass
        has_bytes = name == "memory" and bool(view.readings)
        has_plot = has_bytes or (name in ("", "timing") and bool(view.warmup_ms))
        stepping = (view.round, view.first_step_ms, len(view.warmup_ms), view.step_count)
        state = (name, view.stage, has_plot, stepping, len(view.readings), self._cursor_ns)
        if self._is_new("plot", state):
            # A pass without its own plot shows the timing pass's steps if there is space.
            self.set_class(not has_plot, "-staged")
            self.set_class(not has_plot and not view.warmup_ms, "-plotless")
            self.query_one("#steps").border_title = Content(self._title(view, name))
            if has_bytes:
                self._plot_memory(view)
            else:
                self._plot_steps(view)
        if has_bytes:
            self._set("#median", memory_line(view, self._predicted))
            self._set("#phases", memory_note(view))
        elif name in ("", "timing"):
            self._set("#median", median_line(view, watch.now_ns, self._room))
            self._show_phases(view)
        else:
            prefix = Content.styled("timing pass: ", "$foreground 60%")
            line = median_line(view, watch.now_ns, self._room - len(prefix))
            self._set("#median", prefix + line if view.median_ms is not None else Content(""))
            self._show_phases(view)
        if view.is_job:
            if self._is_new("stages", view.ranks):
                self.query_one("#stages", Folding).show(partial(rank_lines, view))
        elif self._is_new("stages", (name, view.stage, view.progress, view.counts.copy(), second)):
            self.query_one("#stages", Folding).show(
                partial(stage_lines, view, name, self._earlier, watch.now_ns)
            )

    @property
    def _room(self) -> int:
        """Width of the lines about steps; before the first layout that of the app."""
        return self.query_one("#phases", Static).size.width or self.app.size.width

    def _show_phases(self, view: LiveView) -> None:
        self._set("#phases", phases_line(view, self._room))

    @staticmethod
    def _title(view: LiveView, name: str) -> str:
        if name in ("", "timing"):
            is_compiling = view.stage == "compile" and view.first_step_ms is None
            return "Compile" if is_compiling else "Step time"
        return {"memory": "Memory", "trace": "Trace"}.get(name, name)

    def _plot_steps(self, view: LiveView) -> None:
        warm = view.warmup_ms[1:]
        values = [*warm, *view.steps_ms]
        marks = [(0, "warm-up")] if warm else []
        if view.steps_ms:
            marks.append((len(warm), "measured"))
        self.plot.show(
            values,
            marks=marks,
            split=len(warm),
            cursor=self._cursor_index(view, "timing"),
            axis=lambda value: significant(value, 3),
        )

    def _plot_memory(self, view: LiveView) -> None:
        predicted = self._predicted
        self.plot.show(
            [reading.held_bytes for reading in view.readings],
            marks=reading_marks(view),
            floor=0.0,
            level=(predicted, peak_label(view, predicted)) if predicted else None,
            cursor=self._cursor_index(view, "memory"),
            axis=amount,
        )

    def _paint_telemetry(self, view: LiveView) -> None:
        device = str(view.spec.get("device", "auto"))
        draw = partial(
            telemetry_lines,
            list(view.samples),
            list(view.marks),
            device,
            cursor_ns=self._cursor_ns,
        )
        self.query_one("#series", Drawing).show(draw)
        self.query_one("#telemetry").border_subtitle = sensor_words(view, self._cursor_ns)

    def _instants(self, view: LiveView, name: str) -> list[int]:
        if name == "memory" and view.readings:
            return [reading.t_ns for reading in view.readings]
        if view.warmup_ends_ns and name in ("", "timing"):
            return [*view.warmup_ends_ns[1:], *view.step_ends_ns]
        return [sample.t_ns for sample in view.samples]

    def _cursor_index(self, view: LiveView, name: str) -> int | None:
        if self._cursor_ns is None:
            return None
        return index_at(self._instants(view, name), self._cursor_ns)

    def action_cursor(self, by: int) -> None:
        """Move the cursor by ``by`` columns of the plot; it starts at the newest value."""
        watch = self.app.watch_run
        instants = self._instants(watch.view, self._pass) if watch else []
        if not instants:
            return
        last = len(instants) - 1
        index = last if self._cursor_ns is None else index_at(instants, self._cursor_ns) or 0
        if self._cursor_ns is not None:
            index += by * max(1, round(len(instants) / max(self.plot.room, 1)))
        self._cursor_ns = instants[min(max(index, 0), last)]
        self.paint()

    def action_follow(self) -> None:
        self._cursor_ns, self._picked = None, ""
        self.paint()

    def action_pass(self) -> None:
        watch = self.app.watch_run
        passes = watch.view.passes if watch else {}
        begun = [name for name, state in passes.items() if state != "waiting"]
        if begun:
            self._picked = next_name(begun, self._pass)
            self.paint()

    def command(self) -> str:
        watch = self.app.watch_run
        if watch is None:
            return super().command()
        return watch.run.header().command_line()

    def explanations(self) -> list[str]:
        of_pass = {"memory": ["memory.peak"], "trace": ["trust.coverage", "trust.perturbation"]}
        return [*of_pass.get(self._pass, ["timing.step", "timing.phases"]), "telemetry.series"]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "stop":
            return True if self.app.session.live else None
        watch = self.app.watch_run
        is_job = watch is not None and watch.view.is_job
        if action == "window":
            return is_job and (True if self.app.session.live else None)
        if action == "result":
            return is_job and watch is not None and watch.view.windows > 0
        if action == "pass":
            return not is_job
        return super().check_action(action, parameters)

    def action_stop(self) -> None:
        if (watch := self.app.watch_run) is not None:
            text = "The run is cancelled; results so far are kept."
            over = "The run has already ended."
            ask_before_stopping(self, "Stop the run?", text, watch.run.stop, over)

    def action_window(self, of_memory: bool = False) -> None:
        if (watch := self.app.watch_run) is not None:
            with report_errors(self):
                request_window(watch.run, WINDOW_STEPS, of_memory=of_memory)
                what = "The memory of the next {} steps is counted." if of_memory else TRACED
                self.notify(what.format(WINDOW_STEPS))

    def action_result(self) -> None:
        if (watch := self.app.watch_run) is not None:
            # Another object for the same run, so that the screen reads its record again.
            self.app.open_result(RunDirectory(watch.run.path))

    def action_leave(self) -> None:
        self.app.action_mode("library")
