"""The grid of a study: only what is in view is drawn, labels stay, the cursor stays inside."""

from __future__ import annotations

from textual.app import App, ComposeResult

from sysbench.core.tables.timing_tables import Figure, Series
from sysbench.tui.screens.studies_grid import Grid, GridCell, StudyGrid
from sysbench.tui.widgets.plot import figure_rows

ROWS, COLUMNS = 50, 20


def thousand() -> Grid:
    return Grid(
        corner="size",
        columns=[f"ctx {at}" for at in range(COLUMNS)],
        rows=[f"model {at}" for at in range(ROWS)],
        cells=[
            [GridCell("finished", f"{row}.{column:02}") for column in range(COLUMNS)]
            for row in range(ROWS)
        ],
    )


class GridApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[tuple[int, int]] = []

    def compose(self) -> ComposeResult:
        yield StudyGrid()

    def on_study_grid_chosen(self, event: StudyGrid.Chosen) -> None:
        self.chosen.append(self.query_one(StudyGrid).place)


def line(grid: StudyGrid, y: int) -> str:
    return "".join(segment.text for segment in grid.render_line(y))


async def test_a_thousand_cells_scroll_with_their_labels() -> None:
    async with GridApp().run_test(size=(60, 12)) as pilot:
        grid = pilot.app.query_one(StudyGrid)
        grid.show(thousand())
        grid.focus()
        await pilot.pause()
        assert line(grid, 0).split()[:3] == ["size", "ctx", "0"]
        grid.action_move(29, 14)
        await pilot.press("down", "right")
        assert grid.place == (30, 15)
        room = grid.scrollable_content_region.height
        shown = [line(grid, y) for y in range(room)]
        assert "ctx 15" in shown[0]
        assert any(text.startswith("model 30") and "30.15" in text for text in shown)
        await pilot.press("end")
        assert grid.place == (ROWS - 1, 15)
        await pilot.press("down", "home", "up")
        assert grid.place == (0, 15)


async def test_enter_and_a_second_click_choose_the_cell() -> None:
    app = GridApp()
    async with app.run_test(size=(60, 12)) as pilot:
        grid = app.query_one(StudyGrid)
        grid.show(thousand())
        grid.focus()
        await pilot.press("down", "right", "enter")
        assert app.chosen == [(1, 1)]
        await pilot.click(StudyGrid, offset=(12, 3))
        assert app.chosen == [(1, 1)]
        assert grid.place == (2, 0)
        await pilot.click(StudyGrid, offset=(12, 3))
        assert app.chosen == [(1, 1), (2, 0)]


async def test_a_smaller_grid_takes_the_cursor_in() -> None:
    async with GridApp().run_test(size=(60, 12)) as pilot:
        grid = pilot.app.query_one(StudyGrid)
        grid.show(thousand())
        grid.focus()
        await pilot.press("end")
        grid.show(Grid("", ["a"], ["b"], [[GridCell("waiting", "·")]]))
        await pilot.pause()
        assert grid.place == (0, 0)
        assert "·" in line(grid, 1)


async def test_a_cell_that_changes_is_painted_and_hostile_text_stays_one_line() -> None:
    async with GridApp().run_test(size=(60, 12)) as pilot:
        grid = pilot.app.query_one(StudyGrid)
        before = thousand()
        grid.show(before)
        await pilot.pause()
        cells = [list(row) for row in before.cells]
        cells[0][0] = GridCell("oom", "OOM 512 MiB")
        grid.show(before._replace(cells=cells))
        await pilot.pause()
        assert "OOM 512 MiB" in line(grid, 1)


def test_a_figure_fits_the_room_that_it_is_given() -> None:
    series = tuple(
        Series(name, tuple((2.0**n, 3.0 * n + k) for n in range(7, 12)))
        for k, name in enumerate(("small", "a very long name of a model that has no room", "xl"))
    )
    figure = Figure(name="x", title="forward, ms over context", axis="context", unit="ms",
                    series=series)  # fmt: skip
    for width in (12, 30, 79, 140):
        for height in (1, 4, 8, 20):
            rows = figure_rows(figure, width, height)
            assert len(rows) <= height
            assert all(sum(len(text) for text, _ in row) <= width for row in rows)


def test_every_line_of_a_figure_has_its_letter() -> None:
    series = (Series("a", ((1, 1.0), (2, 2.0))), Series("b", ((1, 3.0), (2, None))))
    figure = Figure(name="x", title="t", axis="n", unit="ms", series=series)
    text = "\n".join("".join(part for part, _ in row) for row in figure_rows(figure, 100, 12))
    assert "a a 2.000 ms" in text
    assert "b b 3.000 ms" in text
    assert figure_rows(None, 80, 5)[0][0][0].startswith("Nothing to plot")
