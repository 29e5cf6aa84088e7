"""A folder of ranks on the Inspect screen, on three recorded gloo ranks, one of which slept."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Static

from sysbench.core.inspection.decoding import DecodingCancelled
from sysbench.core.inspection.ranks_folder import FolderDecoding
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.ask_dialog import EXPLANATIONS
from sysbench.tui.screens.inspect_ranks import RanksPanel
from sysbench.tui.screens.inspect_screen import InspectScreen
from sysbench.tui.screens.summary_tab import FindingsTab
from tests.tui.conftest import until
from tests.tui.screens.test_inspect import opened, text_of

RECORDED = Path(__file__).parents[2] / "fixtures" / "ranks"


def panel_of(screen: InspectScreen) -> RanksPanel | None:
    """The ranks in view."""
    return next(iter(screen.query(RanksPanel)), None)


async def test_the_ranks_of_a_folder_and_the_file_of_each(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, app, RECORDED)
        await until(pilot, lambda: "3 ranks of 3 · chrome traces" in text_of(screen, "#heading"))
        assert screen.bar.names == ("findings", "ranks", "steps", "collectives")
        await until(pilot, lambda: "Rank 1 is a straggler" in text_of(screen, "#findings"))
        assert screen.copyable()[1].startswith("\n**Warning: Rank 1 is a straggler")
        await pilot.press("2", "down")
        detail = screen.query_one("#detail", Static)
        await until(pilot, lambda: str(detail.content).endswith("file rank1.json.gz"))
        assert "span ms" not in str(detail.content)  # it has a column
        assert "| 1 |" in screen.copyable()[1] and "rank1.json.gz" in screen.copyable()[1]
        assert set(screen.explanations()) <= EXPLANATIONS.keys() and screen.explanations()
        assert screen.command() == f"sysbench-tui inspect {RECORDED}"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(screen.tab, FindingsTab) and screen.bar.display)
        assert screen.command().endswith("rank1.json.gz")
        await pilot.press("u")
        await until(pilot, lambda: panel_of(screen) and screen.bar.active == "findings")
        assert screen.tab is None


async def test_what_is_no_folder_of_ranks_is_refused(app: SysbenchApp, tmp_path: Path) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, app, tmp_path)
        await until(pilot, lambda: "is a folder without" in text_of(screen, "#message"))
        await pilot.press(*" --steps=2", "enter")
        await until(
            pilot, lambda: "--steps and --capture need a file" in text_of(screen, "#message")
        )


@pytest.mark.usefixtures("sysbench_home")
def test_a_cancelled_folder_decodes_nothing() -> None:
    decoding = FolderDecoding(RECORDED)
    decoding.cancel()
    with pytest.raises(DecodingCancelled, match="cancelled"):
        decoding.run(lambda path, step: pytest.fail(f"{path} was decoded"))
