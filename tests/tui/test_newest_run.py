"""Result shows the newest run before any was opened."""

from __future__ import annotations

from sysbench.core.runs.directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.result.screen import ResultScreen

from .conftest import until


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
