"""Live behind a dialog: nothing of it is painted or sent until the dialog closes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sysbench.tui.app import SysbenchApp
from sysbench.tui.live.run_watch import Earlier
from sysbench.tui.screens import live_screen as live_module
from sysbench.tui.screens.ask_dialog import HelpScreen
from sysbench.tui.screens.live_screen import LiveScreen
from sysbench.tui.widgets.plot import Plot
from tests.tui.conftest import until
from tests.tui.played import PlayedRun, played_live, timed
from tests.tui.screens.test_live import live


@pytest.fixture
def played(sysbench_home: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedRun:
    """A live run that has timed steps."""
    played = played_live(sysbench_home, monkeypatch)
    played.play(timed)
    return played


async def test_nothing_is_sent_while_a_dialog_is_open(
    app: SysbenchApp, played: PlayedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a tick nor the result of a thread repaints it."""
    found = threading.Event()

    def earlier_runs(*_: object) -> Earlier:
        found.wait(60)
        return Earlier()

    monkeypatch.setattr(live_module, "earlier_runs", earlier_runs)
    sent: list[object] = []
    display = SysbenchApp._display

    def note(app: SysbenchApp, screen: Any, renderable: Any) -> None:
        if renderable is not None:
            sent.append(renderable)
        display(app, screen, renderable)

    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, LiveScreen) and app.screen.query("#log"))
        behind = app.screen
        assert isinstance(behind, LiveScreen)
        await until(pilot, lambda: "n 1" in live(app, "#median"))
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.pause(0.2)
        monkeypatch.setattr(SysbenchApp, "_display", note)
        watch = app.watch_run
        assert watch is not None
        played.play(timed)
        found.set()
        await until(pilot, lambda: watch.view.step_count > 1)
        await until(pilot, lambda: behind.knows_earlier)
        await pilot.pause(0.2)
        assert not sent
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.2)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is behind)
        await until(pilot, lambda: "n 6" in live(app, "#median"))
        await until(pilot, lambda: behind.query_one(Plot).region.bottom <= 24)
        assert behind.query_one(Plot).size.height >= 4
        assert "no earlier run" in live(app, "#passes")
