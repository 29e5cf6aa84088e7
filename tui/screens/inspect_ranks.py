"""The ranks of a folder on the Inspect screen: findings, then one table per tab."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from sysbench.core.export.text_formats import findings_as_markdown
from sysbench.core.inspection.inspection import path_text
from sysbench.core.ranks.rank_rows import Ranks
from sysbench.core.tables.cells import cells_as_text, heading_of, literal
from sysbench.core.tables.ranks_tables import ranks_notes, ranks_tables
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.summary_tab import findings_in_full
from sysbench.tui.widgets.drawing import Facts
from sysbench.tui.widgets.table_view import TableView

ORDER = {
    "ranks": (
        *("rank", "span_ns", "compute_ns", "waiting_ns", "transfer_ns", "idle_ns", "undivided_ns"),
        *("clock_ahead_ns", "exposed_share", "last", "late_ns", "clock_error_ns", "collectives"),
        *("matched", "device", "file"),
    ),
    "collectives": (
        *("calls", "kind", "bytes", "waiting_ns", "transfer_ns", "bus_gbs", "ranks"),
        *("most_waiting_ns", "algorithm_gbs", "group"),
    ),
    "memory": (
        *("rank", "peak_bytes", "reserved_bytes", "end_bytes", "largest_bytes", "largest"),
        "device",
    ),
}
"""Columns of some tables, the most important first."""
FINDINGS = "findings"


class RanksPanel(Vertical):
    """Shows one tab: findings, ranks, steps, collectives or memory; posts `Opened` with a rank's
    file."""

    DEFAULT_CSS = """
    RanksPanel {
        #detail {
            height: auto;
            max-height: 3;
            padding: 0 1;
            color: $foreground 70%;
        }
        TableView { height: 1fr; }
    }
    """

    @dataclass
    class Opened(Message):
        path: Path

    def __init__(self, ranks: Ranks, folder: Path) -> None:
        super().__init__()
        self.ranks = ranks
        self._folder = folder
        self._tables = {name: tables[0] for name, tables in ranks_tables(ranks).items()}
        self.names = (FINDINGS, *self._tables)
        self.name_shown = ""

    def compose(self) -> ComposeResult:
        with VerticalScroll(id=f"ranks-{FINDINGS}"):
            if self.ranks.findings:
                yield findings_in_full(self.ranks.findings)
            if notes := [("", literal(text)) for text in ranks_notes(self.ranks)]:
                yield Facts("What the numbers include", notes)
        for name, table in self._tables.items():
            order = ORDER.get(name, ())
            yield TableView(table, title=table.title, order=order, id=f"ranks-{name}")
        yield Static(id="detail", markup=False)

    def turn_to(self, name: str) -> None:
        self.name_shown = name
        for other in self.names:
            self.query_one(f"#ranks-{other}").display = other == name
        give_focus(self.query_one(f"#ranks-{name}"))
        self.show_detail()

    def copyable(self) -> tuple[str, str]:
        if self.name_shown == FINDINGS:
            return "the findings as Markdown", "\n".join(findings_as_markdown(self.ranks.findings))
        return "the rows in view as Markdown", self._view(self.name_shown).markdown()

    @on(TableView.RowHighlighted)
    def show_detail(self) -> None:
        line, words = self.query_one("#detail", Static), " · ".join(self._hidden_facts())
        line.update(Content(words))
        line.display = bool(words)

    @on(TableView.RowSelected)
    def _open(self) -> None:
        table = self._tables[self.name_shown]
        row = self._view(self.name_shown).selected
        if row is None or "rank" not in table.columns:
            return
        rows = self.ranks.memory if self.name_shown == "memory" else self.ranks.rows
        rank = table.column("rank")[row]
        name = next(rank_row.file for rank_row in rows if rank_row.rank == rank)
        path = next(path for path in self._folder.iterdir() if path_text(path.name) == name)
        self.post_message(self.Opened(path))

    def _view(self, name: str) -> TableView:
        return self.query_one(f"#ranks-{name}", TableView)

    def _hidden_facts(self) -> Iterator[str]:
        table = self._tables.get(self.name_shown)
        view = self._view(self.name_shown) if table else None
        if table is None or view is None or view.selected is None:
            return
        texts = zip(table.columns, cells_as_text(table)[view.selected], strict=True)
        for name, text in texts:
            if text and name not in view.columns_in_view:
                yield f"{heading_of(table, name)} {text}"
