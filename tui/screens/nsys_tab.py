"""Nsys: NVTX ranges projected onto the GPU, NVIDIA's summaries, the clocks."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from sysbench.core.record.record import Nsys
from sysbench.core.tables.cells import cells_as_text, heading
from sysbench.core.tables.nsys_tables import nsys_tables
from sysbench.core.tables.table import Table
from sysbench.tui.screens.result_views import View, ViewsTab, view_bindings, view_of
from sysbench.tui.widgets.table_view import FilterBox


class NsysTab(ViewsTab[Nsys]):
    """Shows one table at a time and the selected row in full."""

    BINDINGS: ClassVar[list[BindingType]] = view_bindings(
        "nsys", "Ranges, clocks, devices, …", keys="v,w", is_filtered=True
    )

    def content(self, nsys: Nsys) -> ComposeResult:
        filled = [table for table in nsys_tables(nsys) if table.rows]
        tables = sorted(filled, key=lambda table: table.name != "nvtx")
        yield FilterBox()
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

    def describe(row: int) -> str:
        cells = dict(zip(table.columns, cells_as_text(table)[row], strict=True))
        long = cells.pop(flexible, "")
        facts = [f"{heading(name)} {text}" for name, text in cells.items() if text]
        return " · ".join([long, *facts] if long else facts)

    return view_of(table, table.name, describe, title=title, flexible=flexible)
