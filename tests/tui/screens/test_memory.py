"""The views of the Memory tab, and what differs from another run."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from sysbench.core.record.record import LedgerRow
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.ask_dialog import PickRunScreen
from sysbench.tui.screens.memory_tab import MemoryTab
from sysbench.tui.screens.result_screen import ResultScreen
from sysbench.tui.widgets.key_bar import ViewBar
from tests.tui.conftest import open_tab, until

RESULT_FIRST = True


@pytest.fixture
def other_run(own_run: RunDirectory) -> RunDirectory:
    """A copy under another id that holds 1 MiB of parameters less."""
    path = Path(str(own_run.path)[:-4] + "0000")
    shutil.copytree(own_run.path, path)
    other = RunDirectory(path)
    for file in (other.header_path, other.record_path):
        file.write_text(file.read_text().replace(own_run.id, other.id))
    record = other.record()
    assert record.memory is not None
    rows = [
        LedgerRow(row.name, row.bytes - 2**20 * (row.name == "parameters"))
        for row in record.memory.ledger
    ]
    memory = msgspec.structs.replace(record.memory, ledger=rows)
    other.write_record(msgspec.structs.replace(record, memory=memory))
    return other


async def open_memory(pilot: Pilot[None], app: SysbenchApp, run: RunDirectory) -> MemoryTab:
    tab = await open_tab(pilot, app, run, "memory")
    assert isinstance(tab, MemoryTab)
    return tab


async def test_a_real_run_has_its_views_and_a_click_goes_to_one(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        tab = await open_memory(pilot, app, own_run)
        assert [*tab.views][:5] == ["timeline", "ledger", "stacks", "largest", "modules"]
        assert {"predicted", "formula", "process", "all values"} <= tab.views.keys()
        assert "pools" not in tab.views, "the CPU has none"
        bar = tab.query_one(ViewBar)
        await pilot.click(ViewBar, offset=(len("[Ledger] Sta"), 0))
        await until(pilot, lambda: bar.active == "stacks")
        assert tab.table.display and tab.table.row_count
        tab.table.focus()
        await pilot.pause()
        assert "stack " in tab.subject()


async def test_against_another_run_what_differs_joins_the_views(
    app: SysbenchApp, own_run: RunDirectory, other_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        tab = await open_memory(pilot, app, own_run)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, PickRunScreen))
        await until(pilot, lambda: app.screen.query_one(OptionList).option_count)
        assert app.screen.query_one(OptionList).option_count == 1, "not the run itself"
        await pilot.press("enter")
        await until(pilot, lambda: tab.view == "Δ ledger")
        assert "Δ stacks" not in tab.views, "no stack differs"
        table = tab.table.table
        assert table is not None
        assert table.column("name") == ["parameters"]
        assert table.column("change_bytes") == [2**20]
        assert other_run.id in str(tab.table.border_title)
        assert "parameters" in tab.table.markdown()


async def test_without_another_run_the_picker_says_so(
    app: SysbenchApp, own_run: RunDirectory
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        tab = await open_memory(pilot, app, own_run)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, PickRunScreen))
        assert not app.screen.query(OptionList)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
        assert tab.view == "timeline"
