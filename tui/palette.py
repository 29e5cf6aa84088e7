"""The command palette: ``area: Verb object``, only commands that are valid now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from sysbench.tui.app import SysbenchApp
from sysbench.tui.modes import MODES
from sysbench.tui.screens.work_screen import WorkScreen

UNASKED = "theme: "
"""Prefix of commands that are listed only in a search."""


class PaletteCommand(NamedTuple):
    title: str
    help: str
    call: Callable[[], Any]

    @property
    def plain_help(self) -> Any:
        """The help without markup, since it may contain user input."""
        return Content(self.help)


class WorkstationCommands(Provider):
    """The screen's own commands first, then those that work everywhere."""

    async def discover(self) -> Hits:
        for command in self._commands():
            if command.title.startswith(UNASKED):
                continue
            yield DiscoveryHit(command.title, command.call, help=command.plain_help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in self._commands():
            score = matcher.match(command.title)
            if score > 0:
                yield Hit(
                    score, matcher.highlight(command.title), command.call, help=command.plain_help
                )

    def _commands(self) -> Iterator[PaletteCommand]:
        app, screen = self.app, self.screen
        assert isinstance(app, SysbenchApp)
        if isinstance(screen, WorkScreen):
            for title, help, call in screen.palette_commands():
                yield PaletteCommand(title, help, call)
        for mode in MODES.values():
            if app.check_action("mode", (mode.name,)):
                open_mode = partial(app.action_mode, mode.name)
                yield PaletteCommand(f"go: Open {mode.title}", mode.tooltip, open_mode)
        yield PaletteCommand("app: Show keys", "every key of this screen", app.action_help)
        other = "light" if app.current_theme.dark else "dark"
        yield PaletteCommand(
            f"app: Use {other} colours", "kept between starts", app.action_switch_theme
        )
        for theme in sorted(app.available_themes):
            if theme != app.theme:
                yield PaletteCommand(f"theme: Use {theme}", "", partial(app.choose_theme, theme))
        yield PaletteCommand(
            "app: Save screenshot", "an SVG of this screen", app.deliver_screenshot
        )
        yield PaletteCommand("app: Quit", "you can leave a live run running", app.action_quit)
