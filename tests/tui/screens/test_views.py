"""What the tabs with views have in common: turning, filtering, the line below, copying."""

from __future__ import annotations

from collections.abc import Iterator

from textual.app import App, ComposeResult
from textual.widgets import Input, Static

from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.table import Table
from sysbench.tui.screens.ask_dialog import key_commands
from sysbench.tui.screens.result_views import Tab, View, ViewsTab, view_bindings
from sysbench.tui.widgets.key_bar import ViewBar, next_name
from sysbench.tui.widgets.table_view import FilterBox, TableView

ROWS = {"first": ("red", "green"), "second": ("green", "blue", "grey")}


class ColoursTab(ViewsTab[Record]):
    """Two tables of colours."""

    BINDINGS = view_bindings("colours", "first, second", is_filtered=True)

    def content(self, record: Record) -> ComposeResult:
        self.filled: list[str] = []
        widgets = self.declare(self._views())
        yield ViewBar([*self.views])
        yield FilterBox()
        yield from widgets
        yield self.detail_line()

    def _views(self) -> Iterator[View]:
        for name, colours in ROWS.items():
            rows = tuple((colour,) for colour in colours)
            widget = TableView(Table(name=name, title=name, columns=("colour",), rows=rows))
            yield View(
                name=name,
                widget=widget,
                markdown=widget.markdown,
                copied=name,
                subject=lambda name=name, widget=widget: f"{name} {widget.selected}",  # type: ignore[misc]
                fill=lambda name=name: self.filled.append(name),  # type: ignore[misc]
            )


class Host(App[None]):
    """Shows the tab, and nothing else."""

    def __init__(self, run: RunDirectory) -> None:
        super().__init__()
        row = Tab(name="colours", about="", shown_by="")
        self.tab = ColoursTab(row, run, run.record())

    def compose(self) -> ComposeResult:
        yield self.tab


def test_the_first_name_follows_the_last() -> None:
    assert [next_name("abc", name) for name in "abc"] == ["b", "c", "a"]


async def test_a_view_is_filled_once_when_it_comes_in_sight(gpu_run: RunDirectory) -> None:
    app = Host(gpu_run)
    async with app.run_test() as pilot:
        tab = app.tab
        assert tab.filled == ["first"]
        tab.start_focus()
        await pilot.press("v", "v", "v")
        assert tab.filled == ["first", "second"]
        assert tab.view == tab.query_one(ViewBar).active == "second"
        assert [table.display for table in tab.query(TableView)] == [False, True]
        assert app.focused is tab.table


async def test_words_narrow_every_view_that_comes_in_sight(gpu_run: RunDirectory) -> None:
    app = Host(gpu_run)
    async with app.run_test() as pilot:
        tab = app.tab
        tab.start_focus()
        await pilot.press("slash", *"green", "enter")
        assert tab.table.row_count == 1
        await pilot.press("v")
        assert tab.table.row_count == 1
        await pilot.press("escape")
        await pilot.pause()
        assert tab.table.row_count == 3
        assert not tab.query_one("#filter", Input).display
        await pilot.press("v")
        assert tab.table.row_count == 2, "words that were cleared elsewhere"


async def test_the_line_below_and_the_copy_are_of_the_view_in_sight(gpu_run: RunDirectory) -> None:
    app = Host(gpu_run)
    async with app.run_test() as pilot:
        tab = app.tab
        tab.start_focus()
        await pilot.press("v", "down", "down")
        await pilot.pause()
        assert str(tab.query_one("#detail", Static).content) == tab.subject() == "second 2"
        copied = tab.copyable()
        assert copied is not None
        assert copied[0] == "second as Markdown"
        assert "grey" in copied[1]
        assert {title for title, _, _ in key_commands(app.screen)} >= {
            "colours: Next view: first, second",
            "colours: Show rows that contain all words",
        }
