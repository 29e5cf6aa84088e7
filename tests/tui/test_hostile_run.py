"""A run of somebody else on every screen: no text of it reaches the terminal, none holds it up."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.library_screen import LibraryScreen
from sysbench.tui.screens.result_views import USUAL_TABS
from tests.cli.reading.test_hostile_records import ATTACK, attacking
from tests.tui.conftest import open_tab, painted, until

RESULT_FIRST = True


def obeyed(app: SysbenchApp) -> list[str]:
    """Characters on the screen that a terminal would act on."""
    texts = "".join(strip.text for strip in painted(app))
    return [char for char in texts if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


async def test_a_hostile_run_is_shown_on_every_screen_and_steers_nothing(
    app: SysbenchApp, tiny_run: RunDirectory, sysbench_home: Path
) -> None:
    run = RunDirectory(sysbench_home / "runs" / f"20260101-000000-x{ATTACK}-0000")
    run.log_path("timing").parent.mkdir(parents=True)
    run.header_path.write_bytes(tiny_run.header_path.read_bytes())
    run.write_record(attacking(tiny_run.record()))
    # Opening a pipe blocks until something is written to it.
    os.mkfifo(run.log_path("timing"))
    os.mkfifo(run.events_path)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        for name in USUAL_TABS:
            await open_tab(pilot, app, run, name)
            assert obeyed(app) == []
        run.header_path.write_bytes(b"{")
        await pilot.press("a")
        await until(pilot, lambda: app._notifications)
        assert obeyed(app) == []
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        await pilot.pause()
        assert obeyed(app) == []
