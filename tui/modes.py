"""The modes and what shows them: each screen is imported when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.command import Provider
from textual.screen import Screen


def _run() -> Screen[Any]:
    from .screens.run.screen import RunScreen

    return RunScreen()


def _live() -> Screen[Any]:
    from .screens.live.screen import LiveScreen

    return LiveScreen()


def _result() -> Screen[Any]:
    from .screens.result.screen import ResultScreen

    return ResultScreen()


def _library() -> Screen[Any]:
    from .screens.library.screen import LibraryScreen

    return LibraryScreen()


def _inspect() -> Screen[Any]:
    from .screens.inspect.screen import InspectScreen

    return InspectScreen()


def _studies() -> Screen[Any]:
    from .screens.studies.screen import StudiesScreen

    return StudiesScreen()


def palette() -> type[Provider]:
    """The provider of the command palette."""
    from .palette import WorkstationCommands

    return WorkstationCommands


SCREENS_BY_MODE: dict[str, Callable[[], Screen[Any]]] = {
    "run": _run,
    "live": _live,
    "result": _result,
    "library": _library,
    "studies": _studies,
    "inspect": _inspect,
}
