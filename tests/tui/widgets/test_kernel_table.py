"""The kernel table on the screen: names that are truncated stay apart."""

from __future__ import annotations

from textual.app import App, ComposeResult

from sysbench.core.tables.table import Table
from sysbench.tui.widgets.table_view import TableView


async def test_names_that_are_cut_stay_apart() -> None:
    names = [f"void at::native::vectorized_elementwise_kernel<4, {op}>" for op in ("add", "mul")]
    rows = tuple((float(number), name) for number, name in enumerate(names))
    shown = TableView(flexible="name")

    class OneTable(App[None]):
        def compose(self) -> ComposeResult:
            yield shown

    async with OneTable().run_test(size=(34, 8)) as pilot:
        shown.show(Table(name="t", title="", columns=("total_ns", "name"), rows=rows))
        await pilot.pause()
        seen = [str(shown.get_row_at(number)[1]) for number in range(len(rows))]
    assert [name[-4:] for name in seen] == ["add>", "mul>"]
    assert all(name.startswith("void at::") for name in seen)
