"""The workstation: its modes, its keys, and the run it follows. Nothing is measured here."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.events import Event, Key, Resize
from textual.filter import LineFilter
from textual.timer import Timer

from sysbench.core.errors import SysbenchError
from sysbench.core.runs.run_directory import RunDirectory, newest_run
from sysbench.tui import modes
from sysbench.tui.glyphs import ascii_only
from sysbench.tui.keys import KeyQueue
from sysbench.tui.live.sensors import StripSampler
from sysbench.tui.live.session import Session, has_hung_up, stay_off_a_lost_terminal
from sysbench.tui.modes import load_class
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.textual_patches import FrameDiffApp
from sysbench.tui.theme import (
    DARK,
    LIGHT,
    AsciiFilter,
    Choices,
    PrintableFilter,
    depth_of,
    hue_variables,
    keep,
    kept_choices,
    theme_of,
)
from sysbench.tui.widgets import dialog

if TYPE_CHECKING:
    from sysbench.tui.live.pair_watch import Pair
    from sysbench.tui.live.run_watch import RunWatch
    from sysbench.tui.theme import Depth

REFRESH_SECONDS = 0.5
REDRAW_SECONDS = 0.2
"""Wait after the last resize before the whole screen is painted once more."""


class SysbenchApp(FrameDiffApp[None]):
    """One mode a job; `modes.MODES` has them all."""

    TITLE = "sysbench-tui"
    CSS_PATH = "app.tcss"
    COMMANDS: ClassVar[set[Any]] = {partial(load_class, "palette:WorkstationCommands")}
    MODES: ClassVar[dict[str, Any]] = {name: mode.make_screen for name, mode in modes.MODES.items()}
    DEFAULT_MODE = "run"
    HORIZONTAL_BREAKPOINTS = dialog.WIDTHS  # the modes' screens have their own
    BINDING_GROUP_TITLE = "Everywhere"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                mode.keys,
                f"mode('{mode.name}')",
                mode.title,
                id=f"mode.{mode.name}",
                tooltip=mode.tooltip,
            )
            for mode in modes.MODES.values()
        ),
        Binding("f1", "help", "Help", id="help", tooltip="Every key of this screen"),
        Binding(
            "f12",
            "switch_theme",
            "Dark or light",
            id="theme",
            show=False,
            tooltip="Switch between the dark and the light theme; it is kept",
        ),
        Binding(
            "ctrl+z",
            "suspend_process",
            "Suspend",
            id="suspend",
            show=False,
            tooltip="Back to the shell, where fg returns; a run goes on",
        ),
        Binding(
            "ctrl+l",
            "redraw",
            "Redraw",
            id="redraw",
            show=False,
            priority=True,
            tooltip="Repaint the whole screen",
        ),
        Binding("q", "quit", "Quit", id="quit", show=False, tooltip="Leave; asks if a run is live"),
    ]

    def __init__(self, sampler: StripSampler | None = None) -> None:
        super().__init__()
        self.session = Session(sampler or StripSampler())
        self.keys = KeyQueue(self)
        self.shown: RunDirectory | None = None
        self.compared: Pair | None = None
        self._own_filters = [PrintableFilter(), *([AsciiFilter()] if ascii_only() else [])]
        for name in (DARK, LIGHT):
            self.register_theme(theme_of(name, self.depth))
        if self.no_color:
            # Without colours these two paint black on black.
            for name in ("ansi-dark", "ansi-light"):
                self.unregister_theme(name)
        kept = kept_choices().theme
        self.theme = kept if kept in self.available_themes else DARK

    @property
    def depth(self) -> Depth:
        """The number of colours that the terminal has."""
        return depth_of(self.console.color_system)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The hues in themes that are not ours."""
        theme = self.current_theme
        fields = {"field": theme.panel or theme.primary, "field-focus": f"{theme.primary} 25%"}
        return fields | hue_variables(DARK if theme.dark else LIGHT, self.depth)

    def choose_theme(self, name: str) -> None:
        """Use a theme, now and at the next start."""
        self.theme = name
        try:
            keep(Choices(theme=name))
        except OSError as error:
            text = f"The theme is not kept for the next start: {error}"
            self.notify(text, severity="warning", markup=False)

    def action_switch_theme(self) -> None:
        """Go from dark to light, or back."""
        self.choose_theme(LIGHT if self.current_theme.dark else DARK)

    @property
    def watch_run(self) -> RunWatch | None:
        """The run that Live follows, until another one begins."""
        return self.session.watch

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Resize):  # also when the app comes back from the background
            self.frame.forget()
            self._redraw_timer.reset()
            self._redraw_timer.resume()
        if isinstance(event, Key) and not event.is_forwarded and self.screen_stack:
            await self.keys.pass_on(event, super().on_event)
        else:
            await super().on_event(event)

    @on(Driver.SignalResume)
    def _repaint(self) -> None:
        """The shell had the terminal meanwhile."""
        self.action_redraw()

    def action_redraw(self) -> None:
        """Repaint the whole screen, whatever the terminal shows."""
        self._redraw_timer.pause()
        self.frame.forget()
        for screen in self.screen_stack[-1:]:  # on the way out there is none
            screen.refresh()

    @cached_property
    def _redraw_timer(self) -> Timer:
        # A terminal that shrinks and grows while the app is busy loses cells, and a frame of the
        # size before may have been painted over the next one.
        return self.set_interval(REDRAW_SECONDS, self.action_redraw, pause=True)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._own_filters]

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, dialog.Palette):
            self.push_screen(dialog.Palette())

    def get_key_display(self, binding: Binding) -> str:
        shown = super().get_key_display(binding)
        return shown.upper() if re.fullmatch(r"f\d+", shown) else shown

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit, None, 128 + number)
        stay_off_a_lost_terminal()
        self.set_interval(REFRESH_SECONDS, self._tick)
        self.call_after_refresh(self._attach_live_run)

    def on_unmount(self) -> None:
        self.session.close()

    def _attach_live_run(self) -> None:
        """Offer a run that outlived an earlier terminal."""
        pair = self.session.find_live_pair()
        run = self.session.find_live_run()
        if pair is not None:
            self.open_comparison(pair)
            self.notify("This experiment is live. x stops it; leaving does not.", markup=False)
        elif run is not None:
            self.follow(run)
            self.notify(f"{run.id} is live. x stops it, d leaves it.", markup=False)
        elif self.shown is None:
            self.shown = newest_run()
            self.refresh_bindings()

    def follow(self, run: RunDirectory) -> None:
        """Watch a run and show it."""
        if self.session.follow(run).over:
            self.shown = run
        self.switch_mode("live")

    def open_result(self, run: RunDirectory) -> None:
        """Show the record of a run."""
        self.shown = run
        self.action_mode("result")

    def open_comparison(self, pair: Pair) -> None:
        """Show two runs side by side."""
        self.compared = pair
        self.action_mode("compare")

    def _offer(self, pair: Pair) -> None:
        """Let F8 show an experiment that was started elsewhere."""
        if self.compared is None or self.compared.experiment_id != pair.experiment_id:
            self.compared = pair
            text = f"Experiment {pair.experiment_id} was started elsewhere. F8 shows it."
            self.notify(text, markup=False)

    def _tick(self) -> None:
        """Twice a second: read new events and let the visible screen paint them."""
        if not self.is_running:  # on the way out a screen outlives its widgets
            return
        if not self.is_headless and has_hung_up():
            self.exit(None, 128 + signal.SIGHUP)
            return
        ended = self.session.tick()
        if ended is not None:
            self.shown = ended
            # The next cell of a study starts at once.
            if not self.session.is_series_live():
                self._tell_end(ended)
        newcomer = self.session.find_newcomer()
        if newcomer is not None:
            self.session.follow(newcomer)
            pair = self.session.find_live_pair()
            if pair is not None:
                self._offer(pair)
            elif not self.session.is_series_live():
                self.notify(f"{newcomer.id} is live. F3 shows it.", markup=False)
        # On the way out the last screen goes before the timer does.
        for screen in self.screen_stack[-1:]:
            if isinstance(screen, WorkScreen) and screen.is_mounted:
                screen.paint()
            if ended is not None or newcomer is not None:
                screen.refresh_bindings()

    def _tell_end(self, run: RunDirectory) -> None:
        from sysbench.tui.screens.ask_dialog import AskScreen  # lazy: not for the first screen

        asks = isinstance(self.screen, AskScreen)
        # Who reads another dialog is not taken elsewhere.
        is_reading = len(self.screen_stack) > 1 and not asks
        if asks:
            self.screen.dismiss(None)  # its question was what to do with the run
        if self.current_mode == "live" and not is_reading:
            self.action_mode("result")
        else:
            self.notify(f"{run.id} ended. F4 shows the result.", markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action != "mode":
            return True
        name = parameters[0]
        if name == self.current_mode:
            return self._outdated_screen() is not None
        needs = modes.MODES[str(name)].needs
        return not needs or getattr(self, needs) is not None

    def _outdated_screen(self) -> WorkScreen | None:
        """The present mode's screen if there is something newer to show in it."""
        screens = (screen for screen in self.screen_stack[:1] if isinstance(screen, WorkScreen))
        return next((screen for screen in screens if screen.is_outdated), None)

    def action_mode(self, name: str) -> None:
        self.switch_mode(name)
        # Not when a screen resumes: it does so after each dialog, and what is read would go.
        screen = self._outdated_screen()
        if screen is not None and screen.is_mounted:
            screen.catch_up()

    def action_help(self) -> None:
        from sysbench.tui.screens.ask_dialog import HelpScreen  # lazy: not for the first screen

        self.push_screen(HelpScreen())

    async def action_quit(self) -> None:
        """Leave at once, or ask first what to do with a live run."""
        watch = self.watch_run
        if watch is None or watch.over:
            self.exit()
            return
        from sysbench.tui.screens.ask_dialog import (  # lazy: not for the first screen
            AskScreen,
            ask_before_leaving,
        )

        def leave(choice: str | None) -> None:
            try:
                if choice == "stop":
                    watch.stop()
            except SysbenchError as error:
                self.notify(str(error), title="Not stopped", severity="error", markup=False)
                return
            if choice in ("stop", "leave"):
                self.exit()

        if not isinstance(self.screen, AskScreen):
            self.push_screen(ask_before_leaving(), leave)
