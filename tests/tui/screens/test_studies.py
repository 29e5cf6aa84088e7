"""Studies: the list, the grid that fills, what is beneath it, and starting one."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Input

from sysbench.core.predict.layout_plan import Layout
from sysbench.core.storage import studies_folder
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_directory import (
    CellEntry,
    StudyDirectory,
    list_studies,
    open_study,
)
from sysbench.core.studies.study_grid import expand
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.result_screen import ResultScreen
from sysbench.tui.screens.studies_grid import GridCell, StudyGrid
from sysbench.tui.screens.studies_screen import StudiesScreen
from sysbench.tui.widgets.dialog import InputDialog
from sysbench.tui.widgets.key_bar import KeyBar
from sysbench.tui.widgets.plot import LinePlot
from sysbench.tui.widgets.table_view import TableView
from tests.half_filled import filled_in_rounds, half_filled
from tests.tui.conftest import until

RESULT_FIRST = True

TWO_CELLS = """
title = "Two contexts"
passes = ["timing"]
fixed = { model = "tiny", batch = 1, steps = 2, warmup = 1, threads = 1, device = "cpu" }
axes = { context = [16, 32] }

[[tables]]
name = "times"
columns = [{ name = "Step (ms)", value = "timing.step.median_ms" }]

[variants.small]
axes = { context = [16] }
"""


@pytest.fixture
def directory(sysbench_home: Path) -> StudyDirectory:
    return half_filled(sysbench_home)


async def opened(app: SysbenchApp, pilot: Pilot[None], label: str) -> StudiesScreen:
    """The screen with the study of this label under the cursor, its report computed."""
    await pilot.press("f6")
    await until(pilot, lambda: isinstance(app.screen, StudiesScreen) and app.screen.menu.options)
    screen = app.screen
    assert isinstance(screen, StudiesScreen)
    labels = [str(option.prompt) for option in screen.menu.options]
    screen.menu.highlighted = next(at for at, text in enumerate(labels) if label in text)
    await until(
        pilot,
        lambda: (
            screen.report
            and screen.followed
            and screen.report.study.name == label
            and screen.followed.study.name == label
        ),
    )
    return screen


def texts(grid: StudyGrid) -> list[list[str]]:
    return [[cell.text if cell else "" for cell in row] for row in grid.grid.cells]


async def test_a_half_filled_study_says_how_each_cell_is(
    app: SysbenchApp, directory: StudyDirectory
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await opened(app, pilot, "half")
        grid = screen.grid.grid
        assert list(grid.columns) == ["128", "512", "1024"]
        assert list(grid.rows) == ["tiny", "small"]
        assert texts(screen.grid) == [
            ["10.00", "40.00", "160.0"],
            ["70.00", "·", "OOM 512 MiB"],
        ]
        heading = str(screen.query_one("#heading").render())
        assert "5/6 cells · 1 OOM" in heading
        assert "paused" in heading
        assert screen.query_one(TableView).display


async def test_the_plot_of_a_tiny_screen_has_the_room_of_the_grid(
    app: SysbenchApp, directory: StudyDirectory
) -> None:
    async with app.run_test(size=(44, 14)) as pilot:
        screen = await opened(app, pilot, "half")
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is screen.grid)
        plot = screen.query_one(LinePlot)
        for _ in range(5):
            if plot.display:
                break
            await pilot.press("v")
            await pilot.pause()
        await until(pilot, lambda: plot.size.height >= 8)
        assert plot.region.bottom <= 14
        rows = [strip.text for strip in plot.render_lines(plot.size.region)]
        assert sum("│" in row or "┤" in row for row in rows) >= 4, rows
        assert any("╰" in row for row in rows), "the axis"
        assert not screen.query_one("#cell").display
        await pilot.press("v")
        await until(pilot, lambda: screen.grid.size.height >= 2)


async def test_times_are_marked_and_ratios_reported_only_if_tested(
    app: SysbenchApp, sysbench_home: Path
) -> None:
    filled_in_rounds(sysbench_home, 8)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await opened(app, pilot, "kernels")
        await until(pilot, lambda: "▼" in str(texts(screen.grid)))
        assert texts(screen.grid) == [
            ["16.12", "10.77 ▼", "14.04"],
            ["16.12", "10.77", "10.82"],
        ]
        assert screen.grid.grid.cells[0][1] == GridCell("best", "10.77 ▼")
        cell = str(screen.query_one("#cell").render())
        assert "step median 16.12 ms, 13.50 ms to 22.50 ms in 8 rounds" in cell
        assert "48/48 cells in 8 rounds" in str(screen.query_one("#heading").render())
        assert "▼ fastest kernel, tested" in str(screen.grid.border_title)
        table = screen.query_one(TableView)
        assert table.table is not None
        assert table.table.column("math/flash") == ["1.30 (1.30–1.30)", "1.00 (1.00–1.00)"]
        assert table.border_subtitle == ""
        while not screen.query_one("#words").display:
            await pilot.press("v")
        said = str(screen.query_one("#words").query_one("Static").render())
        assert "context=128: flash has the least step median of 3 points of kernel" in said
        assert "context=512" not in said
        assert "512: math and flash are the same within 1.0 %: 8 rounds each" in said


async def test_one_round_is_marked_as_untested(app: SysbenchApp, sysbench_home: Path) -> None:
    filled_in_rounds(sysbench_home, 1)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await opened(app, pilot, "kernels")
        table = screen.query_one(TableView)
        await until(pilot, lambda: table.table is not None)
        assert table.table is not None
        assert table.table.column("naive/flash") == ["1.50 *", "1.50 *"]
        assert table.border_subtitle == "* 1 run each: not tested"
        assert "▼" not in str(texts(screen.grid))


async def test_rounds_that_were_begun_are_shown_though_the_file_has_fewer(
    app: SysbenchApp, sysbench_home: Path
) -> None:
    path = studies_folder(sysbench_home) / "kernels.toml"
    filled_in_rounds(sysbench_home, 8)
    path.write_text(path.read_text().replace("repeat = 8", "repeat = 1"))
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await opened(app, pilot, "kernels")
        assert screen.followed is not None
        assert len(screen.followed.cells) == 6 * 8


async def test_enter_opens_the_run_of_a_cell(app: SysbenchApp, directory: StudyDirectory) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot, "half")
        await pilot.press("enter")
        await until(pilot, lambda: screen.focused is screen.grid)
        await pilot.press("down", "right", "enter")
        assert app.screen is screen  # that cell was not run
        line = str(screen.query_one(KeyBar).render())
        assert cell_len(line) == app.size.width, "the footer is cut"
        await pilot.press("right")
        assert "out of memory in backward" in str(screen.query_one("#cell").render())
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ResultScreen))
        assert app.shown is not None
        assert app.shown.record().status == "oom"


async def test_views_are_turned_by_a_key(app: SysbenchApp, directory: StudyDirectory) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await opened(app, pilot, "half")
        await pilot.press("v")
        assert screen.query_one(LinePlot).display
        figure = screen.query_one(LinePlot).figure
        assert figure is not None
        assert len(figure.series) == 2
        await pilot.press("v", "v")
        assert screen.query_one("#words").display
        assert not screen.query_one(LinePlot).display


async def test_another_study_begins_with_its_first_table(
    app: SysbenchApp, directory: StudyDirectory
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        screen = await opened(app, pilot, "autocast-dtypes")
        bar = screen.views.bar
        assert str(bar.render()).startswith("[Plot]")  # nothing ran: it has no table
        assert "autocast-dtypes" in str(screen.query_one("#heading").render())
        await opened(app, pilot, "half")
        assert str(bar.render()).startswith("[Times]")
        assert screen.query_one(TableView).display
        await pilot.press("v", "v")
        assert str(bar.render()).startswith(" Times  Plot [Findings]")


async def test_the_report_is_written_where_one_says(
    app: SysbenchApp, directory: StudyDirectory, tmp_path: Path
) -> None:
    async with app.run_test(size=(100, 30)) as pilot:
        await opened(app, pilot, "half")
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, InputDialog))
        box = app.screen.query_one(Input)
        box.value = str(tmp_path / "half.txt")
        await pilot.press("enter")
        assert isinstance(app.screen, InputDialog)  # no such format
        box.value = str(tmp_path / "half.html")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, StudiesScreen))
        assert "<svg" in (tmp_path / "half.html").read_text()


async def test_a_file_with_a_mistake_says_which(app: SysbenchApp, sysbench_home: Path) -> None:
    folder = studies_folder()
    folder.mkdir(parents=True)
    (folder / "wrong.toml").write_text(TWO_CELLS.replace("context =", "contxt ="))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("f6")
        await until(
            pilot, lambda: isinstance(app.screen, StudiesScreen) and app.screen.menu.options
        )
        screen = app.screen
        assert isinstance(screen, StudiesScreen)
        labels = [str(option.prompt) for option in screen.menu.options]
        screen.menu.highlighted = labels.index("wrong")
        await until(pilot, lambda: "contxt" in str(screen.query_one("#heading").render()))


async def test_a_study_is_started_detached_and_fills(app: SysbenchApp, sysbench_home: Path) -> None:
    folder = studies_folder()
    folder.mkdir(parents=True)
    (folder / "pair.toml").write_text(TWO_CELLS)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await opened(app, pilot, "pair")
        assert "--variant small" in screen.command()
        await pilot.press("n")
        await until(pilot, lambda: screen.followed and len(screen.followed.cells) == 2)
        assert screen.command() == "sysbench-tui study pair"
        await pilot.press("ctrl+r")
        await until(pilot, lambda: screen.followed and screen.followed.progress.is_live)
        await pilot.press("p")
        await until(pilot, lambda: screen.followed and not screen.followed.progress.is_live)
        assert screen.followed is not None
        assert not screen.followed.is_over
        await until(pilot, lambda: not app.session.live)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: screen.followed and screen.followed.is_over)
        await until(pilot, lambda: screen.report and len(screen.report.numbers) == 2)
        await until(
            pilot,
            lambda: all(
                isinstance(cell, GridCell) and float(cell.text) > 0
                for row in screen.grid.grid.cells
                for cell in row
                if cell
            ),
        )
    (begun,) = list_studies()
    assert len({entry.run for entry in begun.entries().values()}) == 2


async def test_a_wide_list_has_the_titles_and_the_states_of_started_studies(
    app: SysbenchApp, directory: StudyDirectory
) -> None:
    async with app.run_test(size=(160, 40)) as pilot:
        await pilot.press("f6")
        await until(pilot, lambda: isinstance(app.screen, StudiesScreen))
        screen = app.screen
        assert isinstance(screen, StudiesScreen)
        key = f"begun-{directory.id}"

        def text() -> str:
            return str(screen.menu.get_option(key).prompt) if screen.menu.options else ""

        await until(pilot, lambda: "Contexts by size" in text())
        assert "‖ 5/6" in text()
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "\n" not in text())
        assert text().startswith(f"↳ {directory.id}")


WORLDS = """
title = "Alone and divided"
fixed = { model = "tiny", device = "cpu" }
axes = { context = [64], world = ["dp=1", "dp=2", "tp=2", "tp=3"] }

[[tables]]
name = "peaks"
rows = ["world"]
columns = [
    { name = "Step (ms)", value = "timing.step.median_ms", where = { context = 64 } },
    { name = "Peak (MiB)", value = "predicted.peak_bytes", unit = "MiB", where = { context = 64 } },
]
"""


async def test_predicted_cells_say_so_in_words(app: SysbenchApp, sysbench_home: Path) -> None:
    path = studies_folder(sysbench_home) / "worlds.toml"
    path.parent.mkdir(parents=True)
    path.write_text(WORLDS)
    directory = open_study(load_study(path), sysbench_home)
    for cell, verdict in zip(expand(directory.study())[1:3], ("fits", "over"), strict=True):
        assert cell.world is not None
        layout = Layout(
            world=cell.world.words,
            verdict=verdict,  # type: ignore[arg-type]
            samples=8,
            headroom_bytes=-(2**20),
            rank=1,
            place="pp=1",
            peak_bytes=3 * 2**19,
            peak_phase="backward",
        )
        directory.append(CellEntry(cell=cell.id, status="predicted", predicted=layout))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot, "worlds")
        assert texts(screen.grid) == [
            ["·"],
            ["predicted 1.500"],
            ["predicted over 1.500"],
            ["refused"],
        ]
        assert "3/4 cells · 2 predicted · 1 refused" in str(screen.query_one("#heading").render())
        assert screen.views.table.table is not None
        assert screen.views.table.table.column("state") == [
            *(None, "predicted", "predicted"),
            "world.tp = 3: a divisor of heads=4",
        ]
        assert "state" in screen.views.table.columns_in_view
        screen.grid.place = (1, 0)
        words = "fits, the allocator releases 1.00 MiB of its cache"
        await until(pilot, lambda: words in str(screen.query_one("#cell").render()))
        screen.grid.place = (2, 0)
        await until(pilot, lambda: "world=tp=2" in str(screen.query_one("#cell").render()))
        cell_words = str(screen.query_one("#cell").render())
        assert "does not fit, headroom -1.00 MiB · fullest rank 1 (pp=1), in backward" in cell_words
        screen.grid.focus()
        await pilot.press("enter")
        words = "This cell is predicted: no run."
        await until(pilot, lambda: any(words in one.message for one in app._notifications))
