"""Registry and base classes of the result tabs; the screen that shows them.

A tab is a row of `TABS`, a class, and an optional ``.tcss`` file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from textual import getters, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.own_model import is_job
from sysbench.core.tables.table import Table
from sysbench.tui.keys import give_focus
from sysbench.tui.modes import load_class
from sysbench.tui.screens.work_screen import WorkScreen, unfold_binding
from sysbench.tui.text import outcome_text
from sysbench.tui.widgets.key_bar import TabBar, ViewBar, next_name
from sysbench.tui.widgets.table_view import FilterBox, Filtered, TableView, filter_bindings


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A tab of a result.

    Attributes:
        shown_by: ``module:Class``, the module relative to ``sysbench.tui``.
        block: Block of the record that it shows; "" if it is never blank.
        explains: Keys of `sysbench.tui.screens.ask_dialog.EXPLANATIONS`.
        is_rare: Whether it is shown only if the run has a pass of its name.
    """

    name: str
    about: str
    shown_by: str
    block: str = ""
    filled_by: str = ""
    explains: tuple[str, ...] = ()
    is_rare: bool = False


TABS = {
    tab.name: tab
    for tab in (
        Tab(
            name="summary",
            about="verdict, why, what next",
            shown_by="screens.summary_tab:SummaryTab",
            explains=("timing.step", "memory.peak", "trust.perturbation"),
        ),
        Tab(
            name="timing",
            about="samples, phases, speed",
            shown_by="screens.timing_tab:TimingTab",
            block="timing",
            filled_by="timing",
            explains=("timing.step", "timing.phases", "timing.first", "timing.throughput"),
        ),
        Tab(
            name="kernels",
            about="kernels as table, tree, answers, roofline",
            shown_by="screens.kernels_tab:KernelsTab",
            block="kernels",
            filled_by="trace",
            explains=(
                *("kernels.row", "kernels.sum", "kernels.tree", "trust.coverage"),
                "trust.perturbation",
            ),
        ),
        Tab(
            name="memory",
            about="memory over time and by category, stack, module",
            shown_by="screens.memory_tab:MemoryTab",
            block="memory",
            filled_by="memory",
            explains=(
                *("memory.peak", "memory.ledger", "memory.stacks", "memory.resident"),
                "memory.difference",
            ),
        ),
        Tab(
            name="compile",
            about="compiled parts, compile time, generated kernels",
            shown_by="screens.compile_tab:CompileTab",
            block="compile",
            filled_by="timing",
            explains=(
                *("compile.extent", "compile.seconds", "compile.break-even"),
                "compile.generated",
            ),
        ),
        Tab(
            name="telemetry",
            about="clocks, power, heat over the whole run",
            shown_by="screens.timing_tab:TelemetryTab",
            block="telemetry",
            filled_by="timing",
            explains=("telemetry.series",),
        ),
        Tab(
            name="log",
            about="output of the processes",
            shown_by="screens.export_tab:LogTab",
        ),
        Tab(
            name="export",
            about="export traces and tables",
            shown_by="screens.export_tab:ExportTab",
        ),
        Tab(
            name="timeline",
            about="streams, idle time, steps and phases over time",
            shown_by="screens.timeline_tab:TimelineTab",
            block="kernels",
            filled_by="trace",
            explains=("timeline.lanes", "timeline.gap"),
        ),
        Tab(
            name="nsys",
            about="NVTX ranges and NVIDIA's summaries",
            shown_by="screens.kernels_tab:NsysTab",
            block="nsys",
            filled_by="nsys",
            explains=("nsys.range",),
            is_rare=True,
        ),
        Tab(
            name="findings",
            about="verdict, why, what next for an imported file",
            shown_by="screens.summary_tab:FindingsTab",
            block="findings",
            is_rare=True,
        ),
    )
}
"""Tabs by name in the order of the bar, rare ones last."""

USUAL_TABS = tuple(tab.name for tab in TABS.values() if not tab.is_rare)
"""Names of the tabs of every result."""

_HERE = Path(__file__).parent
STYLES = (_HERE / "result_screen.tcss", *sorted(_HERE.glob("*_tab.tcss")))
"""The stylesheets of all tabs."""


VIEW_ID = re.compile(r"[^\w-]+", re.ASCII)
"""Characters that an id cannot have."""

Block = TypeVar("Block")
"""Type of what a tab shows."""


class ResultTab(Vertical, Generic[Block]):
    def __init__(self, row: Tab, run: RunDirectory, record: Record) -> None:
        super().__init__()
        self.row = row
        self.run = run
        self.record = record

    @cached_property
    def block(self) -> Block | None:
        """The block of the record; the record if the tab has no block of its own."""
        name = self.row.block
        shown: Any = getattr(self.record, name) if name else self.record
        block: Block | None = shown
        return block

    def compose(self) -> ComposeResult:
        if self.block is None:
            yield self.blank()
        else:
            yield from self.content(self.block)

    def content(self, block: Block) -> ComposeResult:
        raise NotImplementedError

    def on_mount(self) -> None:
        if self.block is not None:
            self.fill(self.block)

    def fill(self, block: Block) -> None:
        """Fill the widgets after they are mounted."""

    def blank(self) -> Static:
        reason = blank_reason(self.record, self.row.block, self.row.filled_by)
        return Static(f"{reason}\n\n{self._remedy()}", classes="blank", markup=False)

    def _remedy(self) -> str:
        if not self.record.spec:
            return "Press o to open another file."
        if self.record.status == "running":
            return "Press F3 to watch the run."
        if is_job(self.record.spec):
            return ""
        what = " with compile on" if self.row.block == "compile" else ""
        return f"Press a to rerun{what}."

    def start_focus(self) -> None:
        first = next((widget for widget in self.query("*") if widget.focusable), None)
        if first is not None:
            give_focus(first)

    def copyable(self) -> tuple[str, str] | None:
        """The name and the text that `y` copies; None copies the command."""
        return None

    def subject(self) -> str:
        """The selected row in full, for `?`; may be empty."""
        return ""

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        """This tab's commands without a key: title, help, function."""
        return []


def blank_reason(record: Record, block: str, name: str) -> str:
    if block in record.missing:
        reason = record.missing[block]
        return f"{reason[:1].upper()}{reason[1:]}".removesuffix(".") + "."
    ended = record.pass_named(name)
    if ended is None:
        if record.status == "running":
            return f"The {name} pass has not ended yet."
        return f"This run has no {name} pass."
    return f"The {name} pass ended: {outcome_text(ended.outcome)}. {ended.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view of a tab.

    Attributes:
        markdown: Returns the text that `y` copies.
        copied: What the copied text is called in the notice.
        subject: Returns the selected row in full, for the line below and `?`.
        fill: Slow work, called when the view is first shown.
    """

    name: str
    widget: Widget
    markdown: Callable[[], str]
    copied: str = "the rows in view"
    subject: Callable[[], str] = str
    fill: Callable[[], object] | None = None


def view_of(
    table: Table, name: str, describe: Callable[[int], str], *, title: str = "", flexible: str = ""
) -> View:
    shown = TableView(
        table, title=title or table.title, flexible=flexible, id=f"view-{VIEW_ID.sub('-', name)}"
    )
    return View(
        name=name,
        widget=shown,
        markdown=shown.markdown,
        copied=name,
        subject=lambda: "" if shown.selected is None else describe(shown.selected),
    )


class ViewsTab(ResultTab[Block], Filtered):
    """Shows one of the views that the subclass declares; a blank tab has none."""

    # `ResultTab` comes first: Textual gives a widget the styles of its first base only.

    def __init__(self, row: Tab, run: RunDirectory, record: Record) -> None:
        super().__init__(row, run, record)
        self.views: dict[str, View] = {}
        self.view = ""
        self._unfilled: set[str] = set()
        self._words: dict[str, str] = {}
        self._detail_shown: str | None = None

    def declare(self, views: Iterable[View]) -> Iterator[Widget]:
        """Declare the views, the first one shown; return their widgets to compose."""
        self.views = {view.name: view for view in views}
        self.view = next(iter(self.views), "")
        self._unfilled = {view.name for view in self.views.values() if view.fill}
        return (view.widget for view in self.views.values())

    def detail_line(self) -> Static:
        return Static(id="detail", markup=False)

    def on_mount(self) -> None:
        if self.views:
            self.show_view(self.view)

    @property
    def active(self) -> Widget:
        return self.views[self.view].widget

    @property
    def table(self) -> TableView:
        """The widget of the current view, which must be a table."""
        assert isinstance(self.active, TableView)
        return self.active

    def start_focus(self) -> None:
        if self.views:
            give_focus(self.active)

    def in_sight(self) -> Collection[str]:
        return {self.view}

    def show_view(self, name: str) -> None:
        """Show a view and filter it; call its `fill` the first time."""
        self.view = name
        for bar in self.query(ViewBar):
            bar.active = name
        shown = self.in_sight()
        for view in self.views.values():
            view.widget.display = view.name in shown
        fill = self.views[name].fill
        if fill is not None and name in self._unfilled:
            self._unfilled.remove(name)
            fill()
        for box in self.query(FilterBox):
            self.narrow(box.value)
        self.show_detail()

    def turn_to(self, name: str) -> None:
        self.show_view(name)
        give_focus(self.active)

    def action_view(self) -> None:
        if self.views:
            self.turn_to(next_name([*self.views], self.view))

    @on(ViewBar.Chosen)
    def _bar_clicked(self, event: ViewBar.Chosen) -> None:
        event.stop()
        self.turn_to(event.name)

    def narrow(self, words: str) -> None:
        if isinstance(self.active, TableView) and self._words.get(self.view, "") != words:
            self._words[self.view] = words
            self.active.filter(words)

    @on(TableView.RowHighlighted)
    def show_detail(self) -> None:
        words = self.detail()
        if words == self._detail_shown:
            return
        self._detail_shown = words
        for line in self.query("#detail").results(Static):
            line.update(Content(words))
            line.display = bool(words)

    def detail(self) -> str:
        return self.subject()

    def subject(self) -> str:
        return self.views[self.view].subject() if self.views else ""

    def copyable(self) -> tuple[str, str] | None:
        if not self.views:
            return None
        view = self.views[self.view]
        return f"{view.copied} as Markdown", view.markdown()


def view_bindings(
    tab: str, about: str, *, keys: str = "v", is_filtered: bool = False
) -> list[BindingType]:
    """Bind the keys of a tab's views, which ``about`` lists."""
    turn = Binding(keys, "view", "View", id=f"{tab}.view", tooltip=f"Next view: {about}")
    return [turn, *(filter_bindings(tab) if is_filtered else ())]


class TabbedScreen(WorkScreen):
    """Shows a record in the container ``#place``; builds a tab when it is first shown."""

    BINDINGS: ClassVar[list[BindingType]] = [unfold_binding(is_shown=True)]
    AREA = ""
    """Prefix of its commands in the palette."""

    bar = getters.query_one(TabBar)
    place = getters.query_one("#place", Container)

    def __init__(self) -> None:
        super().__init__()
        self.record: Record | None = None
        self.tab: ResultTab[Any] | None = None
        self._run: RunDirectory | None = None
        self._built: dict[str, ResultTab[Any]] = {}

    async def clear(self) -> None:
        self._run, self.record, self.tab = None, None, None
        self._built.clear()
        await self.place.remove_children()

    async def action_tab(self, name: str) -> None:
        if self.record is None or self._run is None:
            return
        # Paint the complete tab once, not its pieces.
        with self.app.batch_update():
            if name not in self._built:
                row = TABS[name]
                self._built[name] = load_class(row.shown_by)(row, self._run, self.record)
                await self.place.mount(self._built[name])
            for other, tab in self._built.items():
                tab.display = other == name
            self.tab = self._built[name]
            self.bar.active = name
            self.tab.start_focus()

    @on(TabBar.Chosen)
    async def _clicked(self, event: TabBar.Chosen) -> None:
        await self.action_tab(event.name)

    def copyable(self) -> tuple[str, str]:
        return (self.tab.copyable() if self.tab else None) or super().copyable()

    def explanations(self) -> list[str]:
        return list(self.tab.row.explains) if self.tab else []

    def subject(self) -> str:
        return self.tab.subject() if self.tab else ""

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        own = self.tab.palette_commands() if self.tab else []
        return [*own, *super().palette_commands()]
