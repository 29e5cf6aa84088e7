"""The registry of modes; the app's keys, the help and the palette read it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from textual.screen import Screen


def load_class(place: str) -> Any:
    """The class of ``module:Class``, the module as seen from this package.

    Raises:
        ImportError, AttributeError: There is no such module, or no such class in it.
    """
    module, _, name = place.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A mode of the workstation: one job, one screen.

    Attributes:
        name: In lower case; its title is the name with a capital.
        keys: The keys that open it from everywhere, separated by commas.
        tooltip: Its use in a few words, for the footer and the palette.
        about: Its purpose, for help.
        shown_by: ``module:Class`` of its screen, the module as seen from ``sysbench.tui``.
        needs: The attribute of the app without which there is nothing to show; "" for none.
    """

    name: str
    keys: str
    tooltip: str
    about: str
    shown_by: str
    needs: str = ""

    @property
    def title(self) -> str:
        """The name as it is shown."""
        return self.name.title()

    def make_screen(self) -> Screen[Any]:
        """Make the screen; its module is imported when it is first needed."""
        screen: Screen[Any] = load_class(self.shown_by)()
        return screen


MODES = {
    mode.name: mode
    for mode in (
        Mode(
            name="run",
            keys="f2,r",
            tooltip="Choose what to measure",
            about="choose a model and read what will happen before it does",
            shown_by="screens.run_screen:RunScreen",
        ),
        Mode(
            name="live",
            keys="f3,f",
            tooltip="Watch the live run",
            about="watch step times settle; the run does not need this terminal",
            shown_by="screens.live_screen:LiveScreen",
            needs="watch_run",
        ),
        Mode(
            name="result",
            keys="f4,t",
            tooltip="Read a result",
            about="verdict first, then timing, kernels, memory, telemetry, log, export",
            shown_by="screens.result_screen:ResultScreen",
            needs="shown",
        ),
        Mode(
            name="library",
            keys="f5,l",
            tooltip="All runs",
            about="every run of this machine; filter as you type",
            shown_by="screens.library_screen:LibraryScreen",
        ),
        Mode(
            name="compare",
            keys="f8,c",
            tooltip="Two runs side by side",
            about="two runs: the verdict, then time and memory row by row; measure both in turn",
            shown_by="screens.compare_screen:CompareScreen",
            needs="compared",
        ),
        Mode(
            name="studies",
            keys="f6,s",
            tooltip="Grids of runs, and the tables that they fill",
            about="experiments as grids of runs, and the tables that they fill",
            shown_by="screens.studies_screen:StudiesScreen",
        ),
        Mode(
            name="inspect",
            keys="f7,i",
            tooltip="Anyone's trace, memory snapshot or nsys export",
            about="anyone's chrome trace, memory snapshot or nsys export",
            shown_by="screens.inspect_screen:InspectScreen",
        ),
    )
}
"""By name, in the order of the footer."""
