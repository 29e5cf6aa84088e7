"""The nsys tab: there where the run had such a pass, and only there."""

from __future__ import annotations

import msgspec

from sysbench.core.record.record import PassRecord
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.kernels_tab import NsysTab
from sysbench.tui.screens.result_views import TABS, USUAL_TABS
from sysbench.tui.widgets.key_bar import KEYS
from tests.tui.conftest import is_shown, open_result, until

RESULT_FIRST = True
KEY = KEYS[[*TABS].index("nsys")]


async def test_the_pass_has_a_tab(app: SysbenchApp, nsys_run: RunDirectory) -> None:
    async with app.run_test() as pilot:
        screen = await open_result(pilot, app, nsys_run)
        for width in (80, 160):
            await pilot.resize_terminal(width, 24)
            await pilot.pause()
            assert len(screen.bar.render().plain) <= width
            assert screen.bar.render().plain.rstrip().endswith("Nsys")
        await pilot.press(KEY)
        await until(pilot, lambda: is_shown(screen, "nsys"))
        assert isinstance(screen.tab, NsysTab)
        assert screen.tab.subject().startswith("[bold]forward")
        before = screen.tab.view
        await pilot.press("v")
        assert screen.tab.view != before


async def test_a_failed_pass_says_why(app: SysbenchApp, gpu_run: RunDirectory) -> None:
    record = gpu_run.record()
    failed = PassRecord("nsys", "failed", "nsys is not there", 1.0)
    gpu_run.write_record(msgspec.structs.replace(record, passes=[*record.passes, failed]))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_result(pilot, app, gpu_run)
        await pilot.press(KEY)
        await until(pilot, lambda: is_shown(screen, "nsys"))
        assert screen.tab is not None and screen.tab.block is None
        assert "nsys is not there" in str(screen.tab.blank().content)


async def test_other_runs_have_none(app: SysbenchApp, gpu_run: RunDirectory) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_result(pilot, app, gpu_run)
        assert tuple(screen.bar.names) == USUAL_TABS
        await pilot.press(KEY)
        await pilot.pause()
        assert screen.bar.active == USUAL_TABS[0]
