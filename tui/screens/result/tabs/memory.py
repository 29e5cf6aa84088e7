"""Memory: what is resident, when, and whose; and how that differs from another run."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import DataTable, Static

from .....core.analysis.memory.difference import memory_difference
from .....core.errors import SysbenchError
from .....core.runs.builder import settled_record
from .....core.runs.library import Library
from .....core.tables.cells import cells_as_text, heading
from .....core.tables.memory import difference_tables
from .....core.tables.table import Table
from ....widgets.bars.tab_bar import ViewBar
from ....widgets.charts.timeline import TimelineView
from ....widgets.tables.table_view import TableView
from ..tab import ResultTab
from .memory_view import Shown, cursor_text, shown_of

ROOMY = 150
FLEXIBLE = {
    **dict.fromkeys(("stacks", "largest", "Δ stacks"), "stack"),
    **dict.fromkeys(("modules", "Δ modules"), "module"),
    "resident": "meaning",
}
DIFFERENCES = ("Δ ledger", "Δ modules", "Δ stacks")


class MemoryTab(ResultTab):
    """Timeline with a cursor, what lives at the cursor, and the tables by turns."""

    BLOCK, PASS = "memory", "memory"
    EXPLAINS = (
        "memory.peak",
        "memory.ledger",
        "memory.stacks",
        "memory.resident",
        "memory.difference",
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v,w", "view", "View", id="memory.view", tooltip="Ledger, stacks, modules, …"),
        Binding("d", "against", "Against", id="memory.against", tooltip="Against another run"),
    ]

    @property
    def is_blank(self) -> bool:
        return self.shown is None

    @cached_property
    def shown(self) -> Shown | None:
        """What there is to show; the time until memory ran out, where it did."""
        return shown_of(self.record)

    def compose(self) -> ComposeResult:
        shown = self.shown
        if shown is None:
            yield self.blank()
            return
        self.tables = dict(shown.tables)
        self.view = next(iter(self.tables), "")
        yield Static(shown.head, classes="head", markup=False)
        with Horizontal(id="upper"):
            with Vertical(classes="panel", id="timeline") as panel:
                panel.border_title = "Live bytes"
                panel.border_subtitle = f"← → move · k {shown.mark}"
                if shown.timeline is not None:
                    yield TimelineView(shown.timeline, shown.mark_ms)
                else:
                    yield Static(f"No timeline: {shown.no_timeline}.", markup=False)
            with Vertical(classes="panel", id="cursor") as beside:
                beside.border_title = "At the cursor"
                yield Static(id="at-cursor", markup=False)
        yield ViewBar([*self.tables])
        with Horizontal(id="tables"):
            for name in self.tables:
                yield self._shown(name)
        yield Static(id="detail", markup=False)

    def _shown(self, name: str) -> TableView:
        shown = TableView(flexible=FLEXIBLE.get(name, ""), id=_id(name))
        shown.add_class("panel")
        shown.border_title = self.tables[name].title
        return shown

    def on_mount(self) -> None:
        if self.is_blank:
            return
        for name, table in self.tables.items():
            self._view_of(name).show(table)
        self._turn(self.view)

    def _view_of(self, name: str) -> TableView:
        return self.query_one(f"#{_id(name)}", TableView)

    @property
    def table(self) -> TableView:
        return self._view_of(self.view)

    def start_focus(self) -> None:
        if self.is_blank:
            return
        timelines = [*self.query(TimelineView)]
        (timelines[0] if timelines else self.table).focus()

    def action_view(self) -> None:
        """The next table; it takes the focus if the one before had it."""
        if not self.is_blank and self.tables:
            names = [*self.tables]
            self._go(names[(names.index(self.view) + 1) % len(names)])

    @on(ViewBar.Chosen)
    def _clicked(self, event: ViewBar.Chosen) -> None:
        event.stop()
        self._go(event.name)

    def _go(self, name: str) -> None:
        had_focus = self.table.has_focus
        self._turn(name)
        if had_focus:
            self.table.focus()

    def _turn(self, name: str) -> None:
        """Show one table; where there is room, the ledger beside the others."""
        if not self.tables:
            return
        first, *others = self.tables
        roomy = self.app.size.width >= ROOMY
        self.view = others[0] if roomy and others and name == first else name
        self.query_one(ViewBar).active = self.view
        for each in self.tables:
            self._view_of(each).display = each == self.view or (roomy and each == first)
        self._show_detail()

    def on_resize(self) -> None:
        if not self.is_blank:
            self._turn(self.view)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "against":
            return self.run.header_path.is_file()  # a file that is inspected is no run
        return super().check_action(action, parameters)

    def action_against(self) -> None:
        """Choose another run; tables of what differs join the views."""
        from ...dialogs.pick_run import PickRunScreen

        if self.is_blank:
            return
        if self.record.memory is None:
            self.notify("Memory ran out: there is no steady step to compare.", markup=False)
            return
        picker = PickRunScreen(
            "Memory against which run? This one is B",
            lambda entry: entry.peak_bytes is not None and entry.id != self.record.id,
        )
        self.app.push_screen(picker, self._set_against)

    async def _set_against(self, run_id: str | None) -> None:
        if run_id is None or self.record.memory is None:
            return
        try:
            other = settled_record(Library().open(run_id)).memory
        except SysbenchError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if other is None:
            self.notify(f"{run_id} has no memory pass", severity="error", markup=False)
            return
        found = difference_tables(memory_difference(other, self.record.memory))
        if not any(table.rows for table in found):
            self.notify(f"No byte differs from {run_id} at the peak.", markup=False)
            return
        await self._show_differences(run_id, found)

    async def _show_differences(self, run_id: str, tables: list[Table]) -> None:
        for name in DIFFERENCES:
            if self.tables.pop(name, None) is not None:
                await self._view_of(name).remove()
        for name, table in zip(DIFFERENCES, tables, strict=True):
            if table.rows:
                self.tables[name] = table
                shown = self._shown(name)
                shown.border_title = f"{table.title} · A is {run_id}"
                await self.query_one("#tables").mount(shown)
                shown.show(table)
        bar = self.query_one(ViewBar)
        bar.names = [*self.tables]
        bar.refresh()
        self._turn(next(name for name in DIFFERENCES if name in self.tables))
        self.table.focus()

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
        if self.is_blank or self.view not in FLEXIBLE or self.table.selected is None:
            return ""
        texts = cells_as_text(self.tables[self.view])[self.table.selected]
        columns = self.tables[self.view].columns
        pairs = zip(columns, texts, strict=True)
        return " · ".join(f"{heading(name)} {text}" for name, text in pairs if text)

    def copyable(self) -> tuple[str, str] | None:
        if self.is_blank or not self.tables:
            return None
        return f"{self.view} as Markdown", self.table.markdown()

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        if self.is_blank:
            return []
        commands: list[tuple[str, str, Any]] = [
            ("memory: Show next table", ", ".join(self.tables), self.action_view)
        ]
        if self.check_action("against", ()):
            about = "what grew, by row and stack"
            commands.append(("memory: Against another run", about, self.action_against))
        return commands


def _id(name: str) -> str:
    return f"view-{name.replace('Δ ', 'change-')}"


TAB = MemoryTab
