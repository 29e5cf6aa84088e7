"""Room for rows and plots on a short screen, and nothing lost by resizing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Button

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.app import SysbenchApp
from sysbench.tui.live.pair_watch import Pair
from sysbench.tui.screens.ask_dialog import ask_before_leaving
from sysbench.tui.screens.compare_rows import RowsView
from sysbench.tui.screens.compare_screen import CompareScreen
from sysbench.tui.screens.kernels_tab import KernelsTab
from sysbench.tui.screens.memory_tab import MemoryTab
from sysbench.tui.screens.result_screen import ResultScreen
from sysbench.tui.text import fitted_headline
from sysbench.tui.widgets.drawing import Folding
from sysbench.tui.widgets.key_bar import CommandLine
from sysbench.tui.widgets.plot import Plot
from sysbench.tui.widgets.stack_bar import StackBar
from sysbench.tui.widgets.table_view import TableView
from sysbench.tui.widgets.timeline import TimelineView
from tests.tui.conftest import CannedSampler, ResultFirst, is_shown, open_tab, painted, until

FROZEN = Path(__file__).parents[1] / "fixtures" / "tiny-cpu"
ROWS = 12
SIZES = [(80, 24), (160, 48), (44, 14), (80, 24), (44, 14)]
"""The small ones are met from above and from below."""


@pytest.fixture
def frozen_run(sysbench_home: Path) -> RunDirectory:
    """The frozen run in this test's home."""
    target = sysbench_home / "runs" / "20261121-120000-tiny-cpu0"
    shutil.copytree(FROZEN, target)
    return RunDirectory(target)


async def go_to(pilot: Pilot[None], screen: ResultScreen, name: str) -> None:
    await pilot.press(str(screen.bar.names.index(name) + 1))
    await until(pilot, lambda: is_shown(screen, name))
    await pilot.pause()


def is_whole(widget: Widget) -> bool:
    """Whether nothing of a widget is out of sight."""
    return bool(widget.size) and widget.screen.find_widget(widget).visible_region == widget.region


@pytest.mark.parametrize("plain", [False, True], ids=["unicode", "ascii-no-color"])
async def test_a_short_screen_has_rows_and_whole_plots(
    frozen_run: RunDirectory, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        monkeypatch.setenv("SYSBENCH_ASCII", "1")
        monkeypatch.setenv("NO_COLOR", "1")
    app = ResultFirst(CannedSampler())
    async with app.run_test(size=(80, 24)) as pilot:
        tab = await open_tab(pilot, app, frozen_run, "kernels")
        table = tab.query_one(TableView)
        bar, command = tab.query_one(StackBar), app.screen.query_one(CommandLine)
        folded = [bar.size.height, command.size.height, table.size.height]
        assert folded == [2, 1, 1 + ROWS]
        brief = "traced step 58.42 ms (+8.8 %) · explains 100.0 % · untraced 53.71 ms …"
        assert str(bar.render()).startswith(brief)
        await pilot.press("L")
        await pilot.pause()
        assert "gemm 59.6 %" in str(bar.render())
        assert is_whole(tab.query_one("#badge"))
        await pilot.press("L")
        await pilot.pause()
        assert [bar.size.height, command.size.height, table.size.height] == folded

        assert isinstance(app.screen, ResultScreen)
        await go_to(pilot, app.screen, "timing")
        plot = app.screen.query_one(Plot)
        assert plot.size.height >= 8
        assert is_whole(plot)
        assert is_whole(app.screen.query_one("#phases-table"))

        await go_to(pilot, app.screen, "memory")
        memory = app.screen.query_one(MemoryTab)
        assert memory.view == "timeline"
        timeline = memory.query_one(TimelineView)
        assert timeline.size.height >= ROWS
        assert is_whole(timeline)
        for name in [*memory.views][1:]:
            await pilot.press("v")
            assert memory.view == name
            await pilot.pause()
            assert memory.table.size.height >= 1 + ROWS
            assert app.focused is memory.table
        await pilot.press("v")
        assert app.focused is timeline


async def test_rows_of_a_comparison_have_room(frozen_run: RunDirectory) -> None:
    app = ResultFirst(CannedSampler())
    async with app.run_test(size=(80, 24)) as pilot:
        app.open_comparison(Pair(frozen_run, frozen_run))
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        await pilot.press("2")
        rows = app.screen.query_one("#time", RowsView)
        await until(pilot, lambda: rows.table.row_count and rows.table.size.height > ROWS)


async def test_a_narrow_screen_keeps_tabs_names_and_answers_in_sight(
    frozen_run: RunDirectory,
) -> None:
    app = ResultFirst(CannedSampler())
    async with app.run_test(size=(44, 14)) as pilot:
        kernels = await open_tab(pilot, app, frozen_run, "kernels")
        screen = app.screen
        assert isinstance(screen, ResultScreen)
        for name in ("name", "where"):
            assert isinstance(kernels, KernelsTab)
            assert isinstance(kernels.active, TableView)
            assert {"share", name} <= {*kernels.active.columns_in_view}
            await pilot.press("v")
            await pilot.pause()
        await go_to(pilot, screen, "export")
        assert "[8Export]" in picture(app)[1]
        assert re.search(r" F1 Help +▏\^p palette$", picture(app)[-1]), "no key is cut"

        await pilot.press("f1")
        await pilot.pause()
        help_text = app.screen.query_one(Folding)
        assert help_text.size.height == len(str(help_text.render()).splitlines())
        await pilot.press("escape")
        await app.push_screen(ask_before_leaving())
        await pilot.pause()
        assert all(is_whole(button) for button in app.screen.query(Button))


def picture(app: SysbenchApp) -> list[str]:
    """The lines of the screen below the strip."""
    return [strip.text.rstrip() for strip in painted(app)][1:]


async def test_nothing_is_lost_by_resizing_in_any_order(frozen_run: RunDirectory) -> None:
    app = ResultFirst(CannedSampler())
    async with app.run_test(size=SIZES[0]) as pilot:
        await open_tab(pilot, app, frozen_run, "kernels")
        assert isinstance(app.screen, ResultScreen)
        for name, sizes in (("kernels", SIZES), ("memory", SIZES[1:3] * 2)):
            await go_to(pilot, app.screen, name)
            seen: dict[tuple[int, int], list[str]] = {}
            for size in sizes:
                await pilot.resize_terminal(*size)
                await until(pilot, lambda size=size: app.screen.size == size)  # type: ignore[misc]
                await pilot.pause()
                now = picture(app)
                assert seen.setdefault(size, now) == now
            assert len({tuple(lines) for lines in seen.values()}) == len(seen)


def test_a_line_of_settings_gives_up_first_what_says_least() -> None:
    spec = {
        **dict.fromkeys(("attention",), "naive"),
        **{"model": "cs336-2025/2.7B", "batch": 4, "context": 512, "precision": "fp32"},
        **{"step": "train", "optimizer": RunSpec().optimizer, "compile": "inductor"},
    }
    whole = fitted_headline(spec, 200)
    assert whole.endswith("compile inductor")
    lines = {room: fitted_headline(spec, room) for room in range(3, len(whole))}
    assert all(len(line) <= room and line.endswith("…") for room, line in lines.items())
    assert lines[len(whole) - 1].startswith("cs336-2025/2.7B · B4 · ctx 512 · fp32 · naive · train")
    assert " · fp32 · " in fitted_headline(spec, 60, ["compile"])
    assert fitted_headline({**spec, "attention": "sdpa"}, 60).count("sdpa")


async def test_what_is_behind_a_dialog_takes_the_size_of_the_terminal(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "Fits" in "".join(picture(app)))
        await pilot.press("f1")
        await until(pilot, lambda: "esc closes" in "".join(picture(app)))
        for width, height in ((120, 36), (60, 20), (120, 36)):
            await pilot.resize_terminal(width, height)
            await until(pilot, lambda: "^r Start" in picture(app)[-1])
            assert [strip.cell_length for strip in painted(app)] == [width] * height
            assert picture(app)[0].endswith("╮")


async def test_a_list_without_a_line_in_sight_is_paged(app: SysbenchApp) -> None:
    async with app.run_test(size=(44, 4)) as pilot:
        await pilot.press("f6")
        await until(pilot, lambda: app.screen.query("#list"))
        await pilot.pause()
        await pilot.press("pagedown", "pageup")
        await pilot.pause()
        assert app.is_running


async def test_a_narrow_form_says_in_a_line_what_will_happen(app: SysbenchApp) -> None:
    async with app.run_test(size=(44, 14)) as pilot:
        await until(pilot, lambda: re.search(r"MiB · ✓ Fits", "\n".join(picture(app))))
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "parameters" in "\n".join(picture(app)))
        assert "· ✓ Fits" not in "\n".join(picture(app))
        await pilot.resize_terminal(44, 14)
        await until(pilot, lambda: re.search(r"MiB · ✓ Fits", "\n".join(picture(app))))
