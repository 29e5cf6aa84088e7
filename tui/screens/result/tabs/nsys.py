"""Nsys: NVTX ranges projected onto the GPU, NVIDIA's own summaries, the three clocks."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import DataTable, Input, Static

from .....core.tables.cells import cells_as_text, heading
from .....core.tables.nsys import nsys_tables
from ....widgets.tables.table_view import TableView
from ..tab import ResultTab

FLEXIBLE = {
    "nvtx": "range",
    "nsys-kernel-sum": "name",
    "nsys-copy-sum": "name",
    "nsys-clocks": "note",
}
SUMMARY_ORDER = (
    *("total_ns", "share", "instances", "name", "mean_ns", "median_ns", "min_ns", "max_ns"),
    "std_ns",
)
ORDER = {
    "nvtx": (
        *("projected_ns", "instances", "range", "kernels", "kernel_ns", "operations"),
        *("range_ns", "process_kernels", "process_kernel_ns", "style"),
    ),
    "nsys-kernel-sum": SUMMARY_ORDER,
    "nsys-copy-sum": SUMMARY_ORDER,
}


class NsysTab(ResultTab):
    """Tables by turns, and the row under the cursor in full."""

    BLOCK, PASS = "nsys", "nsys"
    EXPLAINS = ("nsys.range",)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v,w", "view", "View", id="nsys.view", tooltip="Ranges, clocks, devices, …"),
        Binding("slash", "filter", "Filter", id="nsys.filter", tooltip="Words that must occur"),
        Binding("escape", "clear_filter", "Clear", show=False, id="nsys.clear"),
    ]

    def compose(self) -> ComposeResult:
        nsys = self.record.nsys
        if nsys is None:
            yield self.blank()
            return
        self.view = 0
        filled = [table for table in nsys_tables(nsys) if table.rows]
        self.tables = sorted(filled, key=lambda table: table.name != "nvtx")
        yield Input(placeholder="words that must occur; esc clears", compact=True, id="filter")
        for table in self.tables:
            shown = TableView(
                flexible=FLEXIBLE.get(table.name, ""),
                order=ORDER.get(table.name, ()),
                id=f"view-{table.name}",
            )
            shown.add_class("panel")
            yield shown
        yield Static(id="detail", markup=False)

    def on_mount(self) -> None:
        if self.is_blank:
            return
        self.query_one("#filter").display = False
        for number, table in enumerate(self.tables, 1):
            shown = self.query_one(f"#view-{table.name}", TableView)
            shown.border_title = f"{number}/{len(self.tables)} · {table.title}"
            shown.show(table)
        self._turn(0)

    @property
    def table(self) -> TableView:
        return self.query_one(f"#view-{self.tables[self.view].name}", TableView)

    def start_focus(self) -> None:
        if not self.is_blank:
            self.table.focus()

    def action_view(self) -> None:
        """The next table, whole."""
        if not self.is_blank:
            self.action_clear_filter()
            self._turn((self.view + 1) % len(self.tables))
            self.table.focus()

    def action_filter(self) -> None:
        """Type words that must occur."""
        if not self.is_blank:
            box = self.query_one("#filter", Input)
            box.display = True
            box.focus()

    def action_clear_filter(self) -> None:
        """Show every row again."""
        if not self.is_blank:
            box = self.query_one("#filter", Input)
            box.value, box.display = "", False
            self.table.focus()

    @on(Input.Changed, "#filter")
    def _narrow(self, event: Input.Changed) -> None:
        self.table.filter(event.value)

    @on(Input.Submitted, "#filter")
    def _to_table(self) -> None:
        self.table.focus()

    def _turn(self, view: int) -> None:
        self.view = view
        for number, table in enumerate(self.tables):
            self.query_one(f"#view-{table.name}").display = number == view
        self._show_detail()

    @on(DataTable.RowHighlighted)
    def _show_detail(self) -> None:
        self.query_one("#detail", Static).update(Content(self.subject()))

    def subject(self) -> str:
        """The row under the cursor in full: its long text first."""
        if self.is_blank or self.table.selected is None:
            return ""
        table = self.tables[self.view]
        texts = cells_as_text(table)[self.table.selected]
        cells = dict(zip(table.columns, texts, strict=True))
        long = cells.pop(FLEXIBLE.get(table.name, ""), "")
        facts = [f"{heading(name)} {text}" for name, text in cells.items() if text]
        return " · ".join([long, *facts] if long else facts)

    def copyable(self) -> tuple[str, str] | None:
        if self.is_blank:
            return None
        return f"{self.tables[self.view].name} as Markdown", self.table.markdown()

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        if self.is_blank:
            return []
        return [("nsys: Show next table", "ranges, clocks, devices, summaries", self.action_view)]


TAB = NsysTab
