"""The workstation app: modes, keys, theme, and the run that it follows."""

from __future__ import annotations

import asyncio
import re
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.events import Event, Key, Resize
from textual.filter import LineFilter
from textual.timer import Timer

from sysbench.core.runs.run_directory import RunDirectory, list_runs, newest_run
from sysbench.core.storage import experiments_folder
from sysbench.tui import modes
from sysbench.tui.glyphs import ascii_only
from sysbench.tui.keys import KeyQueue
from sysbench.tui.live.sensors import StripSampler, StripState
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
    read_choices,
    save,
    theme_of,
)
from sysbench.tui.widgets import dialog

if TYPE_CHECKING:
    from sysbench.tui.live.pair_watch import Pair
    from sysbench.tui.live.run_watch import RunWatch
    from sysbench.tui.theme import Depth


def has_hung_up() -> bool:
    """Whether the terminal of standard input is gone.

    Needed where SIGHUP does not arrive, as under ``nohup`` or in a detached container.
    """
    if sys.__stdin__ is None:
        return False
    poller = select.poll()
    poller.register(sys.__stdin__, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poller.poll(0))


def stay_off_a_lost_terminal() -> None:
    """Ignore SIGCONT if the terminal is gone.

    The kernel sends SIGCONT after SIGHUP. Textual would then reopen the terminal and wait forever
    for a thread that cannot write to it.
    """
    resume = signal.getsignal(signal.SIGCONT)
    if callable(resume):
        signal.signal(
            signal.SIGCONT,
            lambda number, frame: None if has_hung_up() else resume(number, frame),
        )


MAX_RECENT_RUNS = 40
"""Newest runs to search for a live one."""

LOOK_EVERY = 6
"""Idle ticks between searches for a run that was started elsewhere."""


class Session:
    """The strip's state and the followed run.

    While a run is live, its samples are shown and no sampler runs here.
    """

    def __init__(self, sampler: StripSampler) -> None:
        self.strip = StripState()
        self._sampler = sampler
        self._idle_ticks = 0

    @property
    def watch(self) -> RunWatch | None:
        return self.strip.watch

    @property
    def live(self) -> bool:
        return self.watch is not None and not self.watch.over

    def find_live_run(self) -> RunDirectory | None:
        live = [run for run in list_runs()[:MAX_RECENT_RUNS] if run.is_live()]
        return next((run for run in live if not run.is_queued()), live[-1] if live else None)

    def find_newcomer(self) -> RunDirectory | None:
        """Find a run that was started elsewhere; searches every `LOOK_EVERY` idle ticks."""
        if self.live:
            self._idle_ticks = 0
            return None
        self._idle_ticks += 1
        newcomer = None if self._idle_ticks % LOOK_EVERY else self.find_live_run()
        # The supervisor of a run that just ended may still hold its lock.
        if newcomer is not None and self.watch is not None and newcomer.id == self.watch.run.id:
            return None
        return newcomer

    @staticmethod
    def is_series_live() -> bool:
        """Whether a study or an experiment is running, which starts runs itself."""
        from sysbench.core.experiments.experiment import (
            list_experiments,  # lazy: not for the first screen
        )
        from sysbench.core.studies.study_directory import (
            list_studies,  # lazy: not for the first screen
        )

        experiments = list_experiments()[:MAX_RECENT_RUNS]
        return any(experiment.is_live() for experiment in experiments) or any(
            study.is_live() for study in list_studies()
        )

    @staticmethod
    def find_live_pair() -> Pair | None:
        if not experiments_folder().is_dir():
            return None
        from sysbench.tui.live.pair_watch import live_pair  # lazy: not for the first screen

        return live_pair()

    def follow(self, run: RunDirectory) -> RunWatch:
        from sysbench.tui.live.run_watch import RunWatch  # lazy: not for the first screen

        self._sampler.stop()
        watch = RunWatch(run)
        watch.poll()
        self.strip.watch = watch
        return watch

    def tick(self) -> RunDirectory | None:
        """Read new events or samples; return the run if it just ended."""
        watch = self.watch
        if watch is None or watch.over:
            sample = self._sampler.latest()
            if sample is not None:
                self.strip.take(sample)
            return None
        watch.poll()
        samples = watch.view.samples
        if samples and samples[-1] is not self.strip.latest:
            self.strip.take(samples[-1], str(watch.view.spec.get("device", "auto")))
        return watch.run if watch.over else None

    def close(self) -> None:
        self._sampler.stop()


REFRESH_SECONDS = 0.5
REDRAW_SECONDS = 0.2
"""Delay of the full repaint after the last resize."""


def _mode_bindings() -> Iterator[Binding]:
    """Bind the keys of each mode, and then those of the mode that is shown instead of it.

    Of two bindings of a key Textual takes the first whose action is allowed.
    """
    for mode in modes.MODES.values():
        action, about = f"mode('{mode.name}')", mode.tooltip
        is_shown = not mode.instead_of
        name = f"mode.{mode.name}"
        yield Binding(mode.keys, action, mode.title, id=name, tooltip=about, show=is_shown)
        for other in modes.MODES.values():
            if other.instead_of == mode.name:
                action, about = f"mode('{other.name}')", other.tooltip
                name = f"mode.{other.name}.instead"
                yield Binding(mode.keys, action, other.title, id=name, tooltip=about)


class SysbenchApp(FrameDiffApp[None]):
    TITLE = "sysbench-tui"
    CSS_PATH = "app.tcss"
    COMMANDS: ClassVar[set[Any]] = {partial(load_class, "screens.ask_dialog:WorkstationCommands")}
    MODES: ClassVar[dict[str, Any]] = {name: mode.make_screen for name, mode in modes.MODES.items()}
    DEFAULT_MODE = "run"
    HORIZONTAL_BREAKPOINTS = dialog.WIDTHS  # screens of modes have their own
    BINDING_GROUP_TITLE = "Everywhere"
    BINDINGS: ClassVar[list[BindingType]] = [
        *_mode_bindings(),
        Binding("f1", "help", "Help", id="help", tooltip="Every key of this screen"),
        Binding(
            "f12",
            "switch_theme",
            "Dark or light",
            id="theme",
            show=False,
            tooltip="Switch between the dark and the light theme",
        ),
        Binding(
            "ctrl+z",
            "suspend_process",
            "Suspend",
            id="suspend",
            show=False,
            tooltip="Suspend to the shell (fg returns); a run goes on",
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
        Binding("q", "quit", "Quit", id="quit", show=False, tooltip="Quit; asks if a run is live"),
        Binding(
            "ctrl+q",
            "quit",
            "Quit",
            id="quit.anywhere",
            priority=True,
            tooltip="Quit; asks if a run is live; also while typing",
        ),
    ]

    def __init__(self, sampler: StripSampler | None = None, *, mode: str = "") -> None:
        """Begin with a mode and stay in it; "" for Run, or Live if a run is live."""
        if mode:
            self.DEFAULT_MODE = mode  # type: ignore[misc]
        super().__init__()
        self._first_mode = mode
        self.session = Session(sampler or StripSampler())
        self.keys = KeyQueue(self)
        self.shown: RunDirectory | None = None
        self.compared: Pair | None = None
        self._own_filters = [PrintableFilter(), *([AsciiFilter()] if ascii_only() else [])]
        for name in (DARK, LIGHT):
            self.register_theme(theme_of(name, self.depth))
        if self.no_color:
            # Without colours these themes paint black on black.
            for name in ("ansi-dark", "ansi-light"):
                self.unregister_theme(name)
        theme = read_choices().theme
        self.theme = theme if theme in self.available_themes else DARK

    def notify(self, message: str, *, markup: bool = False, **options: Any) -> None:
        """Show a notice as literal text: it may have a path, or what a user typed."""
        super().notify(message, markup=False, **options)

    @property
    def depth(self) -> Depth:
        return depth_of(self.console.color_system)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Fallback colours for third-party themes."""
        theme = self.current_theme
        fields = {"field": theme.panel or theme.primary, "field-focus": f"{theme.primary} 25%"}
        return fields | hue_variables(DARK if theme.dark else LIGHT, self.depth)

    def save_picture(self) -> None:
        from sysbench.core.export.exports import (  # lazy: not for the first screen
            new_path,
            write,
        )
        from sysbench.tui.commands.output import without_web_fonts  # lazy: as above

        picture = without_web_fonts(self.export_screenshot())
        with dialog.report_errors(self, "Not written"):
            path = write(new_path(f"sysbench-tui-{self.current_mode}", ".svg"), picture.encode())
            self.notify(f"Wrote {path}")

    def choose_theme(self, name: str) -> None:
        self.theme = name
        try:
            save(Choices(theme=name))
        except OSError as error:
            text = f"The theme was not saved: {error}"
            self.notify(text, severity="warning")

    def action_switch_theme(self) -> None:
        self.choose_theme(LIGHT if self.current_theme.dark else DARK)

    @property
    def watch_run(self) -> RunWatch | None:
        return self.session.watch

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Resize):  # also after the app returns from the background
            self.frame.forget()
            self._redraw_timer.reset()
            self._redraw_timer.resume()
        if isinstance(event, Key) and not event.is_forwarded and self.screen_stack:
            await self.keys.pass_on(event, super().on_event)
        else:
            await super().on_event(event)

    @on(Driver.SignalResume)
    def _repaint(self) -> None:
        # The shell has used the terminal.
        self.action_redraw()

    def action_redraw(self) -> None:
        self._redraw_timer.pause()
        self.frame.forget()
        for screen in self.screen_stack[-1:]:  # empty while the app exits
            screen.refresh()

    @cached_property
    def _redraw_timer(self) -> Timer:
        # A terminal that is resized while the app is busy loses cells, and a frame of the old size
        # may have been painted over the next one.
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
        """Show a run or experiment that is still live from an earlier session."""
        pair = self.session.find_live_pair()
        run = self.session.find_live_run()
        if self._first_mode:
            self.compared = pair
            if run is not None:
                self.session.follow(run)
        elif pair is not None:
            self.open_comparison(pair)
            self.notify("This experiment is live. Press x to stop it; it continues if you quit.")
        elif run is not None:
            self.follow(run)
            self.notify(f"{run.id} is live. Press x to stop it, d to detach.")
        if run is None and pair is None and self.shown is None:
            self.shown = newest_run()
            self.refresh_bindings()

    def is_busy(self) -> bool:
        """Whether a run is live, with a notice if so."""
        if self.session.live:
            text = "Another run is live. Press F3 to watch or stop it."
            self.notify(text, title="Not started", severity="warning")
        return self.session.live

    def follow(self, run: RunDirectory) -> None:
        if self.session.follow(run).over:
            self.shown = run
        self.switch_mode("live")

    def open_result(self, run: RunDirectory) -> None:
        self.shown = run
        self.action_mode("result")

    def open_comparison(self, pair: Pair) -> None:
        self.compared = pair
        self.action_mode("compare")

    def _offer(self, pair: Pair) -> None:
        if self.compared is None or self.compared.experiment_id != pair.experiment_id:
            self.compared = pair
            text = f"Experiment {pair.experiment_id} was started elsewhere. Press F8 to see it."
            self.notify(text)

    def _tick(self) -> None:
        """Read new events and paint them; runs twice per second."""
        if not self.is_running:  # screens outlive their widgets while the app exits
            return
        if not self.is_headless and has_hung_up():
            self.exit(None, 128 + signal.SIGHUP)
            return
        ended = self.session.tick()
        if ended is not None:
            self.shown = ended
            # In a study the next cell starts at once.
            if not self.session.is_series_live():
                self._show_end(ended)
        newcomer = self.session.find_newcomer()
        if newcomer is not None:
            self.session.follow(newcomer)
            pair = self.session.find_live_pair()
            if pair is not None:
                self._offer(pair)
            elif not self.session.is_series_live():
                self.notify(f"{newcomer.id} is live. Press F3 to see it.")
        # While the app exits, the last screen is removed before the timer.
        for screen in self.screen_stack[-1:]:
            if isinstance(screen, WorkScreen) and screen.is_mounted:
                screen.paint()
            if ended is not None or newcomer is not None:
                screen.refresh_bindings()

    def _show_end(self, run: RunDirectory) -> None:
        from sysbench.tui.screens.ask_dialog import AskScreen  # lazy: not for the first screen

        asks = isinstance(self.screen, AskScreen)
        # Do not switch screens while another dialog is open.
        is_reading = len(self.screen_stack) > 1 and not asks
        if asks:
            self.screen.dismiss(None)  # it asked about the run that ended
        if self.current_mode == "live" and not is_reading:
            self.action_mode("result")
        else:
            self.notify(f"{run.id} ended. Press F4 to see the result.")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action != "mode":
            return True
        name = parameters[0]
        if name == self.current_mode:
            return self._outdated_screen() is not None
        needs = modes.MODES[str(name)].needs
        return not needs or getattr(self, needs) is not None

    def _outdated_screen(self) -> WorkScreen | None:
        """Return the current mode's screen if it can show newer data."""
        screens = (screen for screen in self.screen_stack[:1] if isinstance(screen, WorkScreen))
        return next((screen for screen in screens if screen.is_outdated), None)

    def action_mode(self, name: str) -> None:
        self.switch_mode(name)
        # Only on an explicit mode switch; screens also resume after every dialog.
        screen = self._outdated_screen()
        if screen is not None and screen.is_mounted:
            screen.catch_up()

    def action_help(self) -> None:
        from sysbench.tui.screens.ask_dialog import HelpScreen  # lazy: not for the first screen

        self.push_screen(HelpScreen())

    async def action_quit(self) -> None:
        watch = self.watch_run
        if watch is None or watch.over:
            self.exit()
            return
        from sysbench.tui.screens.ask_dialog import (  # lazy: not for the first screen
            AskScreen,
            ask_before_leaving,
        )

        def leave(choice: str | None) -> None:
            with dialog.report_errors(self, "Not stopped"):
                if choice == "stop":
                    watch.run.stop()
                if choice in ("stop", "leave"):
                    self.exit()

        if not isinstance(self.screen, AskScreen):
            self.push_screen(ask_before_leaving(), leave)
