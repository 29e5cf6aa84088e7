"""Tables on the screen: every row can be reached, and a sort is read from its top."""

from __future__ import annotations

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import OptionList

from sysbench.core.tables.table import Table
from sysbench.tui.widgets.choice import ChoiceScreen
from sysbench.tui.widgets.table_view import TableView
from tests.tui.conftest import until

MANY = 100_000


class OneTable(App[None]):
    """A table alone."""

    def __init__(self, view: TableView) -> None:
        super().__init__()
        self.view = view

    def compose(self) -> ComposeResult:
        yield self.view


def kernels(count: int) -> Table:
    """Calls fall and times rise with the row's number."""
    rows = tuple((f"kernel {row}", float(row), count - row) for row in range(count))
    return Table(name="t", title="", columns=("name", "median_ms", "calls"), rows=rows)


def top(view: TableView) -> str:
    return str(view.get_row_at(0)[0])


def drawn(view: TableView) -> str:
    """What is on the screen."""
    return "\n".join(view.render_line(y).text for y in range(view.size.height))


async def shown(pilot: Pilot[None], view: TableView, table: Table) -> None:
    view.show(table)
    await pilot.pause()


async def test_every_row_of_a_long_table_is_reached_by_keys() -> None:
    view = TableView(flexible="name")
    async with OneTable(view).run_test(size=(80, 12)) as pilot:
        await shown(pilot, view, kernels(MANY))
        assert view.row_count == MANY
        await pilot.press("end")
        await pilot.pause()
        assert view.selected == MANY - 1
        assert f"kernel {MANY - 1}" in drawn(view)
        await pilot.press("pageup", "up")
        assert view.selected is not None and MANY - 20 < view.selected < MANY - 5
        await pilot.press("home")
        await pilot.pause()
        assert view.selected == 0
        assert "kernel 0 " in drawn(view)


async def test_the_sort_menu_shows_the_order_and_reverses_it() -> None:
    view = TableView(flexible="name")
    async with OneTable(view).run_test(size=(80, 12)) as pilot:
        await shown(pilot, view, kernels(3))

        async def chosen(*keys: str) -> list[str]:
            await pilot.press("s")
            await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceScreen))
            options = pilot.app.screen.query_one(OptionList)
            labels = [str(option.prompt) for option in options.options]
            await pilot.press(*keys)
            await pilot.pause()
            return labels

        assert await chosen("m", "enter") == ["name", "median ms", "calls"]
        assert view.selected == 2
        assert await chosen("enter") == ["name", "median ms▼", "calls"]
        assert view.selected == 0
        assert await chosen("escape") == ["name", "median ms▲", "calls"]


async def test_a_sort_begins_at_its_first_row() -> None:
    view = TableView(flexible="name")
    async with OneTable(view).run_test(size=(80, 12)) as pilot:
        await shown(pilot, view, kernels(600))
        await pilot.press("end", "s", *"median", "enter")
        await until(pilot, lambda: view.sort_column == "median_ms")
        await pilot.pause()
        assert (view.sort_column, view.selected, top(view)) == ("median_ms", 599, "kernel 599")
        assert "kernel 599" in drawn(view)
        await pilot.press("end", "S")
        await pilot.pause()
        assert (view.selected, top(view)) == (0, "kernel 0")
        # A click on the head of a column does as the keys do.
        await pilot.press("end")
        await pilot.click(TableView, offset=(2, 0))
        await pilot.pause()
        assert (view.sort_column, view.cursor_row) == ("name", 0)


async def test_the_mouse_moves_the_cursor_and_selects() -> None:
    view = TableView(flexible="name")
    selected: list[int | None] = []

    class Listening(OneTable):
        @on(TableView.RowSelected)
        def _selected(self) -> None:
            selected.append(view.selected)

    async with Listening(view).run_test(size=(80, 12)) as pilot:
        await shown(pilot, view, kernels(600))
        await pilot.press("pagedown")
        assert view.selected == 11  # as far as the page has rows, and it scrolled as far
        await pilot.click(TableView, offset=(2, 3))
        await pilot.pause()
        assert (view.selected, selected) == (13, [])
        await pilot.click(TableView, offset=(60, 3))
        await pilot.press("up", "enter")
        await pilot.pause()
        assert selected == [13, 12]
        styles = [view.render_line(y) for y in range(1, 6)]
        assert len({next(iter(strip)).style for strip in styles}) == 3, "even, odd, cursor"


async def test_wide_and_styled_cells_keep_their_columns_aligned() -> None:
    class Styled(TableView):
        def cell(self, column: str, row: int, text: str) -> Text:
            return Text.assemble(("▚", "#009e73"), text) if column == "name" else Text(text)

        def extra_cells(self, column: str) -> int:
            return int(column == "name")

    rows = (("行列", 1), ("gemm", 22), ("", 333), ("x" * 60, 4444))
    view = Styled(flexible="name")
    async with OneTable(view).run_test(size=(40, 8)) as pilot:
        await shown(pilot, view, Table(name="t", title="", columns=("name", "n"), rows=rows))
        strips = [view.render_line(y) for y in range(6)]
    assert {strip.cell_length for strip in strips} == {40}
    assert [strip.text.rstrip()[-4:].strip() for strip in strips[1:5]] == [
        "1",
        "22",
        "333",
        "4,444"[-4:],
    ]
    assert "…" in strips[4].text


async def test_a_filter_looks_at_every_row_and_keeps_the_cursor_on_its_own() -> None:
    view = TableView(flexible="name")
    async with OneTable(view).run_test(size=(80, 12)) as pilot:
        await shown(pilot, view, kernels(3000))
        view.filter("kernel 2,99")  # in the times of the last rows, and the calls of the first
        assert [*view.matching] == [*range(1, 11), *range(2990, 3000)]
        await pilot.press("end", "up")
        assert view.selected == 2998
        view.filter("")
        assert (view.cursor_row, view.row_count) == (2998, 3000)
        view.filter("no such")
        assert view.selected is None and not view.row_count


async def test_a_number_that_no_sample_had_is_not_cut() -> None:
    """Widths of a long table are of a sample: a wider number among the rows in view widens it."""
    rows = [(f"kernel {row}", 1.0) for row in range(5000)]
    rows[7] = ("kernel 7", 0.0001)  # written as the bound <0.001, wider than 1.000
    table = Table(name="t", title="", columns=("name", "median_ms"), rows=(*rows, ("z", 0.0)))
    view = TableView(flexible="name")
    async with OneTable(view).run_test(size=(40, 12)) as pilot:
        await shown(pilot, view, table)
        await pilot.pause()
        assert "<0.001" in drawn(view)


async def test_control_characters_of_a_long_table_are_visible() -> None:
    rows = tuple((f"\x1b[2J{row}", row) for row in range(5000))
    view = TableView(flexible="name")
    async with OneTable(view).run_test(size=(40, 12)) as pilot:
        await shown(pilot, view, Table(name="t", title="", columns=("name", "n"), rows=rows))
        assert r"\x1b[2J0" in drawn(view)


async def test_a_narrow_table_shows_a_name_and_a_figure() -> None:
    names = ("total_ns", "share", "category", "name")
    rows = ((1_234_567.0, 0.25, "elementwise", "aten::mul"),)
    view = TableView(flexible="name", order=names)
    async with OneTable(view).run_test(size=(38, 6)) as pilot:
        await shown(pilot, view, Table(name="t", title="", columns=names, rows=rows))
        assert view.columns_in_view == ["total_ns", "share", "name"]
        await pilot.resize_terminal(80, 6)
        await pilot.pause()
        assert view.columns_in_view == list(names)
    long = Table(name="t", title="", columns=("name", "size"), rows=(("interpreter " * 4, 3),))
    plain = TableView()
    async with OneTable(plain).run_test(size=(38, 6)) as pilot:
        await shown(pilot, plain, long)
        assert plain.columns_in_view == ["name", "size"]
        assert "3" in drawn(plain)
