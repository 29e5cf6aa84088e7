"""The command line and the screen show the same kernels and the same phases."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sysbench.core.formatting import percent
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.kernel_tables import category_table
from sysbench.tui.app import SysbenchApp
from sysbench.tui.cli import main
from sysbench.tui.screens.kernels_tab import KernelsTab
from tests.tui.conftest import open_tab

RESULT_FIRST = True
FROZEN = Path(__file__).parents[2] / "fixtures" / "tiny-cpu"
ROWS = 10


@pytest.fixture
def frozen_run(sysbench_home: Path) -> RunDirectory:
    """The frozen run in this test's home."""
    target = sysbench_home / "runs" / "20261121-120000-tiny-cpu0"
    shutil.copytree(FROZEN, target)
    return RunDirectory(target)


def printed(run: RunDirectory, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["show", run.id, *options]) == 0
    return capsys.readouterr().out.splitlines()


def shares_of(lines: list[str], title: str) -> list[str]:
    """The shares of the rows below that title."""
    first = next(number for number, line in enumerate(lines) if line.startswith(title))
    found = (re.search(r"[\d.]+ %", line) for line in lines[first + 2 : first + 2 + ROWS])
    return [match[0] for match in found if match]


async def test_both_show_the_same_kernels_first(
    app: SysbenchApp, frozen_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(frozen_run, capsys)
    async with app.run_test(size=(160, 48)) as pilot:
        tab = await open_tab(pilot, app, frozen_run, "kernels")
        assert isinstance(tab, KernelsTab)
        table = tab.table.table
        assert table is not None
        sorted_rows = map(table.mapping, tab.table.matching)
        rows = [row for row in sorted_rows if row["phase"] is not None][:ROWS]
        assert shares_of(lines, "Operators: one traced step") == [
            percent(float(row["share"] or 0)) for row in rows
        ]
        names = {(row["name"], row["category"], row["phase"]) for row in rows}
        assert len(names) == ROWS, "one row a kernel and phase"
        await pilot.press("g")
        await pilot.pause()
        split = tab.table.table
        assert split is not None and len(split.rows) > len(table.rows), "one row a module"
        await pilot.press("g")
        await pilot.pause()
        assert tab.table.table == table


@pytest.mark.parametrize("options", [(), ("--section", "kernels")])
def test_categories_have_every_phase_that_takes_time(
    frozen_run: RunDirectory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    kernels = frozen_run.record().kernels
    assert kernels is not None
    table = category_table(kernels)
    phases = [name.removesuffix("_ns") for name in table.columns if name.endswith("_ns")][1:]
    monkeypatch.setenv("COLUMNS", "100")
    head = category_head(printed(frozen_run, capsys, *options))
    assert [phase for phase in phases if phase not in head] == ["zero-grad"], "the shortest"
    monkeypatch.setenv("COLUMNS", "160")
    head = category_head(printed(frozen_run, capsys, *options))
    assert all(phase in head for phase in phases)
    head = category_head(printed(frozen_run, capsys, "--section", "kernels", "--wide"))
    assert all(phase in head for phase in phases)


def category_head(lines: list[str]) -> str:
    """The headings of the table of categories."""
    title = next(number for number, line in enumerate(lines) if line.startswith("Categories"))
    return lines[title + 1]


def test_narrow_categories_keep_the_longest_phases(
    frozen_run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = printed(frozen_run, capsys)
    head = category_head(lines)
    assert "backward" in head and "zero-grad" not in head
