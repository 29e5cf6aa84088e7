"""Memory: what is resident, when, and whose."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import DataTable, Static

from ...core.export.figures import cells_as_text, heading
from ...core.export.memory_tables import (
    card_table,
    largest_table,
    ledger_table,
    memory_table,
    module_table,
)
from ...core.export.table import Table
from ...core.record import Memory
from ..numerals import amount, signed_percent, significant
from ..widgets.table_view import TableView
from ..widgets.timeline import TimelineView
from .result_tab import ResultTab

ROOMY = 150
SWATCH_WIDTH, AMOUNT_WIDTH = 2, 10
FLEXIBLE = {"largest": "stack", "modules": "module"}


class MemoryTab(ResultTab):
    """Timeline with a cursor, what lives at the cursor, and five tables by turns."""

    BLOCK, PASS = "memory", "memory"
    EXPLAINS = (
        "memory.peak",
        "memory.ledger",
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "view", "What", id="memory.view", tooltip="Ledger, card, largest, modules"),
    ]

    def compose(self) -> ComposeResult:
        memory = self.record.memory
        if memory is None:
            yield self.blank()
            return
        self.view = 0
        self.tables = [table for table in _tables(memory) if table.rows]
        yield Static(_peak_line(memory), classes="head", markup=False)
        with Horizontal(id="upper"):
            with Vertical(classes="panel", id="timeline") as panel:
                panel.border_title = "Live bytes"
                panel.border_subtitle = "← → move · k peak"
                if memory.timeline.t_ms:
                    yield TimelineView(memory.timeline, memory.peak_ms)
                else:
                    reason = memory.missing.get("timeline", "no event was recorded")
                    yield Static(f"No timeline: {reason}.", markup=False)
            with Vertical(classes="panel", id="cursor") as beside:
                beside.border_title = "At the cursor"
                yield Static(id="at-cursor", markup=False)
        with Horizontal(id="tables"):
            for table in self.tables:
                shown = TableView(flexible=FLEXIBLE.get(table.name, ""), id=f"view-{table.name}")
                shown.add_class("panel")
                yield shown
        yield Static(id="detail", markup=False)

    def on_mount(self) -> None:
        if self.is_blank:
            return
        for number, table in enumerate(self.tables):
            shown = self.query_one(f"#view-{table.name}", TableView)
            shown.border_title = f"{table.title}"
            shown.border_subtitle = f"w: {number + 1} of {len(self.tables)}"
            shown.show(table)
        self._turn(0)

    @property
    def table(self) -> TableView:
        return self.query_one(f"#view-{self.tables[self.view].name}", TableView)

    def action_view(self) -> None:
        """The next table; it takes the focus if the one before had it."""
        if self.is_blank:
            return
        before = self.table
        self._turn((self.view + 1) % len(self.tables))
        if before.has_focus:
            self.table.focus()

    def _turn(self, view: int) -> None:
        """Show one table; where there is room, the ledger beside the others."""
        roomy = self.app.size.width >= ROOMY
        self.view = max(view, 1) if roomy and len(self.tables) > 1 else view
        for number, table in enumerate(self.tables):
            shown = self.query_one(f"#view-{table.name}")
            shown.display = number == self.view or (roomy and number == 0)
        self._show_detail()

    def on_resize(self) -> None:
        if not self.is_blank:
            self._turn(self.view)

    @on(TimelineView.Moved)
    def _show_cursor(self, event: TimelineView.Moved) -> None:
        timeline = self.query_one(TimelineView)
        room = self.query_one("#cursor").content_size.width
        text = cursor_text(timeline, event.sample, room)
        self.query_one("#at-cursor", Static).update(text)

    @on(DataTable.RowHighlighted)
    def _show_detail(self) -> None:
        detail = self.query_one("#detail", Static)
        detail.update(Content(self.subject()))
        detail.display = bool(self.subject())

    def subject(self) -> str:
        """The row under the table's cursor in full, where it does not fit: stacks are long."""
        cut = not self.is_blank and self.tables[self.view].name in FLEXIBLE
        if not cut or self.table.selected is None:
            return ""
        texts = cells_as_text(self.tables[self.view])[self.table.selected]
        columns = self.tables[self.view].columns
        pairs = zip(columns, texts, strict=True)
        return " · ".join(f"{heading(name)} {text}" for name, text in pairs if text)

    def copyable(self) -> tuple[str, str] | None:
        if self.is_blank:
            return None
        return f"{self.tables[self.view].name} as Markdown", self.table.markdown()

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        if self.is_blank:
            return []
        return [("memory: Show next table", "ledger, card, largest, modules", self.action_view)]


def _tables(memory: Memory) -> list[Table]:
    return [
        ledger_table(memory),
        largest_table(memory),
        module_table(memory),
        card_table(memory),
        memory_table(memory),
    ]


def _peak_line(memory: Memory) -> Content:
    """The peak and the totals that are not the peak, each under its own name."""
    line = Content.assemble(
        "peak ",
        (amount(memory.peak_allocated_bytes), "bold $accent"),
        f" allocated at {significant(memory.peak_ms, 3)} ms, in {memory.peak_phase}",
    )
    pieces = []
    if memory.predicted_peak_bytes:
        off = memory.peak_allocated_bytes / memory.predicted_peak_bytes - 1
        pieces.append(f"predicted {amount(memory.predicted_peak_bytes)} ({signed_percent(off)})")
    pieces.append(f"reserved {amount(memory.peak_reserved_bytes)}")
    whose = "driver" if memory.source == "cuda-snapshot" else "process"
    pieces.append(f"{whose} {amount(memory.driver_used_bytes)}")
    return line + Content.styled("".join(f" · {piece}" for piece in pieces), "$foreground 70%")


def cursor_text(view: TimelineView, sample: int, width: int) -> Content:
    """Time, phase, live bytes, and the categories that make them up, largest first."""
    timeline = view.timeline
    t_ms = timeline.t_ms[sample]
    phase = next((name for name, low, high in timeline.phases if low <= t_ms <= high), "")
    lines = [
        Content.assemble((amount(timeline.live_bytes[sample]), "bold"), " live"),
        Content.styled(f"{significant(t_ms, 4)} ms {phase}", "$foreground 60%"),
    ]
    held = [(timeline.categories[name][sample], name) for name in view.order]
    room = max(width - SWATCH_WIDTH - AMOUNT_WIDTH, 8)
    for count, name in sorted(held, reverse=True):
        if count:
            look = view.looks[name]
            text = f"{_cut(name, room):<{room}}{amount(count):>{AMOUNT_WIDTH}}"
            lines.append(Content.assemble((f"{look.glyph} ", look.colour), text))
    return Content("\n").join(lines)


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 1]}…"


TAB = MemoryTab
