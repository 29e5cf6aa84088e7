"""The registry of modes; the app's keys, the help and the palette read it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from textual.screen import Screen


def load_class(place: str) -> Any:
    """Import ``module:Class``, relative to this package."""
    module, _, name = place.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A mode of the workstation: one job, one screen.

    Attributes:
        keys: Keys that open it, separated by commas.
        shown_by: ``module:Class`` of its screen, relative to ``sysbench.tui``.
        needs: Attribute of the app that must be set to open it; "" for none.
        instead_of: Mode whose keys open this one where that one is shown or cannot be opened.
    """

    name: str
    keys: str
    tooltip: str
    about: str
    shown_by: str
    needs: str = ""
    instead_of: str = ""

    @property
    def title(self) -> str:
        return self.name.title()

    def make_screen(self) -> Screen[Any]:
        screen: Screen[Any] = load_class(self.shown_by)()
        return screen


MODES = {
    mode.name: mode
    for mode in (
        Mode(
            name="run",
            keys="f2,r",
            tooltip="Choose what to measure",
            about="choose a model and read the prediction before it runs",
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
            about="two runs: the verdict, then time and memory row by row; run an A/B test",
            shown_by="screens.compare_screen:CompareScreen",
            needs="compared",
        ),
        Mode(
            name="studies",
            keys="f6,s",
            tooltip="Grids of runs and their tables",
            about="experiments as grids of runs, and their tables",
            shown_by="screens.studies_screen:StudiesScreen",
        ),
        Mode(
            name="inspect",
            keys="f7,i",
            tooltip="Open a trace, memory snapshot or nsys export",
            about="open a Chrome trace, CUDA memory snapshot or nsys export",
            shown_by="screens.inspect_screen:InspectScreen",
        ),
        Mode(
            name="machine",
            keys="f9",
            tooltip="GPUs, processes and the host now",
            about="GPUs, processes and the host now; what ran beside the last run",
            shown_by="screens.machine_screen:MachineScreen",
            instead_of="live",
        ),
    )
}
"""By name, in the order of the footer."""
