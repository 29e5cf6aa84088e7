"""The workstation: its modes, its keys, and the run it follows. Nothing is measured here."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.filter import LineFilter
from textual.screen import Screen

from ..core.rundir import RunDirectory, list_runs
from .glyphs import AsciiFilter, ascii_only
from .polling import StripSampler
from .sensors import StripState
from .themes import DARK

if TYPE_CHECKING:
    from .watching import RunWatch

REFRESH_SECONDS = 0.5
RECENT_RUNS = 40
"""How many of the newest runs are looked at for one that is live."""


def _run_screen() -> Screen[Any]:
    from .screens.run import RunScreen

    return RunScreen()


def _live_screen() -> Screen[Any]:
    from .screens.live import LiveScreen

    return LiveScreen()


def _result_screen() -> Screen[Any]:
    from .screens.result import ResultScreen

    return ResultScreen()


def _library_screen() -> Screen[Any]:
    from .screens.library import LibraryScreen

    return LibraryScreen()


def _palette() -> type[Provider]:
    from .palette import WorkstationCommands

    return WorkstationCommands


class SysbenchApp(App[None]):
    """One mode a job: Run, Live, Result, Library."""

    TITLE = "sysbench-tui"
    CSS_PATH = "app.tcss"
    COMMANDS: ClassVar[set[Any]] = {_palette}
    MODES: ClassVar[dict[str, Any]] = {
        "run": _run_screen,
        "live": _live_screen,
        "result": _result_screen,
        "library": _library_screen,
    }
    DEFAULT_MODE = "run"
    BINDING_GROUP_TITLE = "Everywhere"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f2,r", "mode('run')", "Run", id="mode.run", tooltip="Choose what to measure"),
        Binding("f3,v", "mode('live')", "Live", id="mode.live", tooltip="Watch the live run"),
        Binding("f4,t", "mode('result')", "Result", id="mode.result", tooltip="Read a result"),
        Binding("f5,l", "mode('library')", "Library", id="mode.library", tooltip="All runs"),
        Binding("f1", "help", "Help", id="help", tooltip="Every key of this screen"),
        Binding("q", "quit", "Quit", id="quit", show=False, tooltip="Leave; asks if a run is live"),
    ]

    def __init__(self, sampler: StripSampler | None = None) -> None:
        super().__init__()
        self.strip = StripState()
        self.shown: RunDirectory | None = None
        self._sampler = sampler or StripSampler()
        self._ascii = [AsciiFilter()] if ascii_only() else []
        self.register_theme(DARK)
        if self.no_color:
            # Without colours these two paint black on black.
            for name in ("ansi-dark", "ansi-light"):
                self.unregister_theme(name)
        self.theme = DARK.name

    @property
    def watch_run(self) -> RunWatch | None:
        """The run that Live follows, until another one begins."""
        return self.strip.watch

    @property
    def live(self) -> bool:
        """Whether a run is going on that this app follows."""
        return self.watch_run is not None and not self.watch_run.over

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._ascii]

    def get_key_display(self, binding: Binding) -> str:
        shown = super().get_key_display(binding)
        return shown.upper() if re.fullmatch(r"f\d+", shown) else shown

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit, None, 128 + number)
        self.set_interval(REFRESH_SECONDS, self._tick)
        self.call_after_refresh(self._attach_live_run)

    def on_unmount(self) -> None:
        self._sampler.stop()

    def _attach_live_run(self) -> None:
        """A run that outlived an earlier terminal is offered at once."""
        run = next((run for run in list_runs()[:RECENT_RUNS] if run.is_live()), None)
        if run is not None:
            self.follow(run)
            self.notify(f"{run.id} is live. x stops it, d leaves it.", markup=False)

    def follow(self, run: RunDirectory) -> None:
        """Watch a run and show it."""
        from .watching import RunWatch

        self._sampler.stop()
        watch = RunWatch(run)
        watch.poll()
        self.strip.watch = watch
        if watch.over:
            self.shown = run
        self.switch_mode("live")

    def open_result(self, run: RunDirectory) -> None:
        """Show the record of a run."""
        self.shown = run
        self.switch_mode("result")

    def _tick(self) -> None:
        """Twice a second: read what is new, let the visible screen paint it."""
        watch = self.watch_run
        if watch is not None and not watch.over:
            watch.poll()
            samples = watch.view.samples
            if samples and samples[-1] is not self.strip.latest:
                self.strip.take(samples[-1], str(watch.view.spec.get("device", "auto")))
            if watch.over:
                self._run_ended(watch)
        elif (sample := self._sampler.latest()) is not None:
            self.strip.take(sample)
        from .screens.base import WorkScreen
        from .widgets.strip import LiveStrip

        screen = self.screen
        # On the way out a screen outlives its widgets for a moment.
        if isinstance(screen, WorkScreen) and screen.is_mounted and screen.query(LiveStrip):
            screen.paint()

    def _run_ended(self, watch: RunWatch) -> None:
        self.shown = watch.run
        if self.current_mode == "live":
            self.switch_mode("result")
        else:
            self.notify(f"{watch.run.id} ended. F4 shows the result.", markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action != "mode":
            return True
        name = parameters[0]
        if name == self.current_mode:
            return False
        absent = {"live": self.watch_run is None, "result": self.shown is None}
        return not absent.get(str(name), False)

    def action_mode(self, name: str) -> None:
        self.switch_mode(name)

    def action_help(self) -> None:
        from .screens.help import HelpScreen

        self.push_screen(HelpScreen())

    async def action_quit(self) -> None:
        """Leave at once, or ask what is to become of the live run."""
        if not self.live:
            self.exit()
            return
        from .screens.ask import LEAVING, AskScreen

        if not isinstance(self.screen, AskScreen):
            text = (
                "It lives in its own process: leaving does not end it. "
                "Start sysbench-tui again to watch it."
            )
            self.push_screen(AskScreen("A run is live", text, LEAVING), self._leave)

    def _leave(self, choice: str | None) -> None:
        watch = self.watch_run
        if choice == "stop" and watch is not None:
            from ..core.launch import stop

            stop(watch.run)
        if choice in ("stop", "leave"):
            self.exit()
