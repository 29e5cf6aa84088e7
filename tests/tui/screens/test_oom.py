"""A run that ran out of memory on screen: the summary leads with it, the Memory tab shows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from textual.widgets import Static

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.memory_tab import MemoryTab
from sysbench.tui.screens.work_screen import SHORT
from sysbench.tui.widgets.drawing import Facts
from sysbench.tui.widgets.key_bar import ViewBar
from sysbench.tui.widgets.timeline import TimelineView
from tests.tui.conftest import open_tab

RESULT_FIRST = True
SIZES = [(80, 24), (120, 36)]


@pytest.fixture
def run(oom_run: RunDirectory, sysbench_home: Path) -> RunDirectory:
    """The real run, in this test's home."""
    target = sysbench_home / "runs" / oom_run.id
    shutil.copytree(oom_run.path, target)
    return RunDirectory(target)


async def test_the_summary_leads_with_it(app: SysbenchApp, run: RunDirectory) -> None:
    async with app.run_test() as pilot:
        found = await open_tab(pilot, app, run, "summary")
        pairs = dict(found.query_one("#refusal", Facts).pairs)
        assert pairs["requested"].startswith("128 MiB in forward, by aten::")
        assert "naive_attention" in pairs["at"]
        assert pairs["in use"].endswith("of 300 MiB allocated")
        assert pairs["largest batch"] == "7 instead of 32, 293 MiB"
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert 0 < found.query_one("#refusal").region.y < size[1]


async def test_the_memory_tab_goes_up_to_the_refusal(app: SysbenchApp, run: RunDirectory) -> None:
    async with app.run_test() as pilot:
        found = await open_tab(pilot, app, run, "memory")
        assert isinstance(found, MemoryTab)
        assert found.block is not None
        head = str(found.query_one(".head", Static).content)
        assert head.startswith("out of memory: tried to allocate 128 MiB in forward")
        timeline = found.query_one(TimelineView)
        assert timeline.sample == len(timeline.timeline.t_ms) - 1
        assert [*found.views] == ["timeline", "ledger", "stacks", "largest", "fits", "request"]
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await pilot.pause()
            views = [*found.query_one(ViewBar).names]
            assert views == [*found.views][size[1] >= SHORT :]
            seen = []
            for _ in views:
                seen.append(found.view)
                await pilot.press("v")
            assert seen == views
        await pilot.press("d")
        await pilot.pause()
        assert found.is_attached
