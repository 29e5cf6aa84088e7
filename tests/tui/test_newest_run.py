"""Result shows the newest run before any was opened, and the one being read until F4 is pressed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.ask_dialog import HelpScreen
from sysbench.tui.screens.live_screen import LiveScreen
from sysbench.tui.screens.result_screen import ResultScreen
from tests.tui.conftest import is_shown, open_result, until
from tests.tui.played import PlayedRun, played_live, timed


@pytest.fixture
def ending(sysbench_home: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedRun:
    """A live run that has timed steps."""
    played = played_live(sysbench_home, monkeypatch)
    played.play(timed)
    return played


async def test_the_result_key_opens_the_newest_run(app: SysbenchApp, gpu_run: RunDirectory) -> None:
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.shown is not None)
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
        assert app.shown is not None
        assert app.shown.id == gpu_run.id


async def test_without_a_run_there_is_no_result_to_open(app: SysbenchApp) -> None:
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.check_action("mode", ("result",)) is False


DIALOGS = {"help": "f1", "palette": "ctrl+p", "explain": "question_mark"}


@pytest.mark.parametrize("key", DIALOGS.values(), ids=DIALOGS)
async def test_closing_a_dialog_leaves_the_result_that_is_read(
    app: SysbenchApp, gpu_run: RunDirectory, ending: PlayedRun, key: str
) -> None:
    async with app.run_test() as pilot:
        await until(pilot, lambda: isinstance(app.screen, LiveScreen))
        screen = await open_result(pilot, app, gpu_run)
        await pilot.press("2")
        await until(pilot, lambda: is_shown(screen, "timing"))
        await pilot.press(key)
        await until(pilot, lambda: app.screen is not screen)
        ending.end()
        await until(pilot, lambda: app.watch_run and app.watch_run.over)
        await pilot.pause(0.1)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        await pilot.pause(0.1)
        assert screen.record is not None and screen.record.id == gpu_run.id
        assert is_shown(screen, "timing")

        await pilot.press("f4")
        await until(pilot, lambda: screen.record and screen.record.id != gpu_run.id)


async def test_help_over_live_stays_when_the_run_ends(app: SysbenchApp, ending: PlayedRun) -> None:
    async with app.run_test() as pilot:
        await until(pilot, lambda: isinstance(app.screen, LiveScreen))
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        ending.end()
        await until(pilot, lambda: app.watch_run and app.watch_run.over)
        await pilot.pause(0.1)
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, LiveScreen))
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
