"""The app under a pilot: a home of its own, no animation, no sensors unless asked for."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Textual reads it when it is imported.
os.environ["TEXTUAL_ANIMATIONS"] = "none"

import pytest
from textual._context import visible_screen_stack
from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip

from sysbench.core.machine.sample import HostSample, Sample
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui import app as tui_app
from sysbench.tui.app import SysbenchApp
from sysbench.tui.live.sensors import StripSampler
from sysbench.tui.screens.result_screen import ResultScreen
from sysbench.tui.screens.result_views import ResultTab
from tests.tui.emulated import Emulated

WAIT_SECONDS = 60.0

SAMPLE = Sample(
    t_ns=1,
    host=HostSample(cores=4, cpu=0.5, memory_used_bytes=2**30, memory_total_bytes=2**33),
    no_devices="no NVIDIA driver",
)


class CannedSampler(StripSampler):
    """One sample, no thread."""

    def __init__(self) -> None:
        super().__init__()
        self._left = [SAMPLE]

    def latest(self) -> Sample | None:
        return self._left.pop() if self._left else None


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, sysbench_home: Path) -> Iterator[None]:
    """A terminal that shows everything, in one time zone, and a home of its own."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("SYSBENCH_ASCII", "0")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    time.tzset()


class ResultFirst(SysbenchApp):
    """Begins with Result: the form of Run is never mounted unless a test goes there."""

    CSS_PATH = str(Path(tui_app.__file__).with_name("app.tcss"))
    DEFAULT_MODE = "result"


@pytest.fixture
def app(request: pytest.FixtureRequest) -> SysbenchApp:
    """The workstation with a canned sensor; in modules with ``RESULT_FIRST`` it begins there."""
    first = ResultFirst if getattr(request.module, "RESULT_FIRST", False) else SysbenchApp
    return first(CannedSampler())


@pytest.fixture
def own_run(tiny_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    """The real run of tiny, in this test's home."""
    target = sysbench_home / "runs" / tiny_run.id
    shutil.copytree(tiny_run.path, target)
    return RunDirectory(target)


async def until(pilot: Pilot[None], true: Callable[[], object]) -> None:
    """Let the app go on until a condition holds; fail the test if it never does."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        await pilot.pause(0.05)


def painted(app: App[Any]) -> list[Strip]:
    """The lines of the screen as they are painted, with what a dialog stands in front of.

    A dialog that is rendered without those screens keeps a blank background from then on.
    """
    visible_screen_stack.set(app._background_screens)
    return app.screen._compositor.render_strips()


async def open_result(pilot: Pilot[None], app: SysbenchApp, run: RunDirectory) -> ResultScreen:
    """Open a run; returns when its first tab is there."""
    app.open_result(run)
    await until(pilot, lambda: isinstance(app.screen, ResultScreen))
    screen = app.screen
    assert isinstance(screen, ResultScreen)
    await until(pilot, lambda: screen.tab and not screen.is_outdated)
    await pilot.pause()
    return screen


def is_shown(screen: ResultScreen, tab: str) -> bool:
    """Whether a tab of the result is in view and built."""
    return screen.tab is not None and screen.bar.active == tab


async def open_tab(
    pilot: Pilot[None], app: SysbenchApp, run: RunDirectory, name: str
) -> ResultTab[Any]:
    """Open a run and go to a tab by its key; returns when the tab's own keys work."""
    screen = await open_result(pilot, app, run)
    await pilot.press(str(screen.bar.names.index(name) + 1))
    await until(pilot, lambda: is_shown(screen, name))
    await pilot.pause()
    assert screen.tab is not None
    return screen.tab


@pytest.fixture
def emulated(sysbench_home: Path) -> Iterator[Emulated]:
    """The workstation on two stored runs, in an emulated terminal."""
    emulated = Emulated(sysbench_home)
    emulated.wait_for("F4 Result")
    yield emulated
    emulated.program.end()
