"""Nsys: NVTX ranges projected onto the GPU, NVIDIA's summaries, the clocks."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content

from sysbench.core.tables.cells import cells_as_text, heading
from sysbench.core.tables.nsys_tables import nsys_tables
from sysbench.core.tables.table import Table
from sysbench.tui.screens.result_views import View, ViewsTab, view_bindings
from sysbench.tui.widgets.table_view import TableView


class NsysTab(ViewsTab):
    """Shows one table at a time and the selected row in full."""

    BINDINGS: ClassVar[list[BindingType]] = view_bindings(
        "nsys", "Ranges, clocks, devices, …", keys="v,w", is_filtered=True
    )

    def compose(self) -> ComposeResult:
        nsys = self.record.nsys
        if nsys is None:
            yield self.blank()
            return
        filled = [table for table in nsys_tables(nsys) if table.rows]
        tables = sorted(filled, key=lambda table: table.name != "nvtx")
        yield self.filter_box()
        yield from self.declare(
            _view(table, f"{number}/{len(tables)} · {table.title}")
            for number, table in enumerate(tables, 1)
        )
        yield self.detail_line()

    def turn_to(self, name: str) -> None:
        self.action_clear_filter()
        super().turn_to(name)


def _view(table: Table, title: str) -> View:
    flexible = table.flexible or "note"
    shown = TableView(flexible=flexible, id=f"view-{table.name}")
    shown.add_class("panel")
    shown.border_title = Content(title)

    def describe_row() -> str:
        if shown.selected is None:
            return ""
        cells = dict(zip(table.columns, cells_as_text(table)[shown.selected], strict=True))
        long = cells.pop(flexible, "")
        facts = [f"{heading(name)} {text}" for name, text in cells.items() if text]
        return " · ".join([long, *facts] if long else facts)

    return View(
        name=table.name,
        widget=shown,
        markdown=shown.markdown,
        copied=table.name,
        subject=describe_row,
        table=table,
    )
