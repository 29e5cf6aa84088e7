"""What each screen looks like at 80x24 and 160x48, on a frozen record of a real run.

`pytest tests/tui/test_snapshots.py --snapshot-update` renews the pictures; look at each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from sysbench.core.runs.directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.result.registry import USUAL_TABS
from sysbench.tui.screens.run.screen import RunScreen

from .conftest import CannedSampler, open_tab, until

RESULT_FIRST = True

FROZEN = Path(__file__).parents[1] / "fixtures" / "tiny-cpu"
SIZES = [(80, 24), (160, 48)]
SPEC = RunSpec(
    model="cs336-2025/large",
    context=512,
    precision="bf16",
    device="cpu",
    memory_limit=24 * 2**30,
)

Compare = Callable[..., bool]

at_both_sizes = pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")


@pytest.fixture
def frozen_run(sysbench_home: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The frozen run in this test's home."""
    # The Export tab proposes a path in the current folder.
    monkeypatch.chdir("/")
    target = sysbench_home / "runs" / "20261121-120000-tiny-cpu0"
    shutil.copytree(FROZEN, target)
    return RunDirectory(target)


@at_both_sizes
def test_run_screen(
    snap_compare: Compare,
    sysbench_home: Path,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a library takes goes by this machine's CPU; see `test_run_form`.
    monkeypatch.setattr("sysbench.tui.screens.run.device_prediction.cpu_flags", frozenset)
    app = SysbenchApp(CannedSampler())

    async def fill(pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        app.screen.fill(SPEC, ["timing", "memory"])
        await until(pilot, lambda: app.session.strip.latest)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=fill)


@at_both_sizes
def test_live_screen(
    snap_compare: Compare, app: SysbenchApp, frozen_run: RunDirectory, size: tuple[int, int]
) -> None:
    async def follow(pilot: Pilot[None]) -> None:
        app.follow(frozen_run)
        await until(pilot, lambda: app.session.strip.latest and app.screen.query("#median"))
        await pilot.pause(0.6)

    assert snap_compare(app, terminal_size=size, run_before=follow)


@pytest.mark.parametrize("tab", [tab for tab in USUAL_TABS if tab != "log"])
@at_both_sizes
def test_result_screen(
    snap_compare: Compare,
    app: SysbenchApp,
    frozen_run: RunDirectory,
    size: tuple[int, int],
    tab: str,
) -> None:
    async def show(pilot: Pilot[None]) -> None:
        await open_tab(pilot, app, frozen_run, tab)
        await until(pilot, lambda: app.session.strip.latest)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=show)


@at_both_sizes
def test_library_screen(
    snap_compare: Compare, app: SysbenchApp, frozen_run: RunDirectory, size: tuple[int, int]
) -> None:
    async def show(pilot: Pilot[None]) -> None:
        await pilot.press("f5")
        await until(pilot, lambda: app.session.strip.latest and app.screen.query("RunsTable"))
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=show)
