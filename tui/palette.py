"""The command palette: ``area: Verb object``, only commands that are valid now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from sysbench.tui.app import SysbenchApp
from sysbench.tui.modes import MODES
from sysbench.tui.screens.work_screen import WorkScreen

UNASKED = "theme: "
"""Prefix of commands that are listed only in a search."""


Command = tuple[str, str, Callable[[], Any]]
"""Title, help, and function of a command."""


class WorkstationCommands(Provider):
    """The screen's own commands first, then those that work everywhere."""

    async def discover(self) -> Hits:
        for title, help, call in self._commands():
            if not title.startswith(UNASKED):
                yield DiscoveryHit(title, call, help=_plain(help))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, help, call in self._commands():
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), call, help=_plain(help))

    def _commands(self) -> Iterator[Command]:
        app, screen = self.app, self.screen
        assert isinstance(app, SysbenchApp)
        if isinstance(screen, WorkScreen):
            yield from screen.palette_commands()
        for mode in MODES.values():
            if app.check_action("mode", (mode.name,)):
                open_mode = partial(app.action_mode, mode.name)
                yield f"go: Open {mode.title}", mode.tooltip, open_mode
        yield "app: Show keys", "every key of this screen", app.action_help
        other = "light" if app.current_theme.dark else "dark"
        yield f"app: Use {other} colours", "kept between starts", app.action_switch_theme
        for theme in sorted(app.available_themes):
            if theme != app.theme:
                yield f"theme: Use {theme}", "", partial(app.choose_theme, theme)
        yield (
            "app: Save screenshot",
            "an SVG of this screen, in the current folder",
            app.save_picture,
        )
        yield "app: Quit", "you can leave a live run running", app.action_quit


def _plain(help: str) -> Any:
    """The help without markup, since it may contain user input."""
    return Content(help)
