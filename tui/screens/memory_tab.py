"""Memory: live bytes over time and by owner, and differences from another run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Static

from sysbench.core.formatting import format_duration
from sysbench.core.memory.oom import held, out_of_memory, refused
from sysbench.core.memory.peak_difference import memory_difference
from sysbench.core.record.memory import Oom, prediction_error
from sysbench.core.record.record import Memory, Record, Timeline
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import load_record
from sysbench.core.tables.cells import cells_as_text, heading
from sysbench.core.tables.comparison_passages import difference_tables
from sysbench.core.tables.memory_tables import devices_text, peak_place, recording_notes
from sysbench.core.tables.oom_tables import (
    oom_largest_table,
    oom_ledger_table,
    oom_origins_table,
    oom_table,
    would_fit_table,
)
from sysbench.core.tables.section_tables import SectionSource, tables_in
from sysbench.core.tables.table import Table
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.result_views import View, ViewsTab, view_bindings, view_of
from sysbench.tui.screens.work_screen import SHORT
from sysbench.tui.text import amount, signed_percent, truncate
from sysbench.tui.widgets.dialog import report_errors
from sysbench.tui.widgets.drawing import Framed, first_fitting
from sysbench.tui.widgets.key_bar import ViewBar
from sysbench.tui.widgets.timeline import TimelineView, place_in_steps

QUIET = "$foreground 60%"
SWATCH_WIDTH, AMOUNT_WIDTH = 2, 10


def peak_line(memory: Memory) -> Content:
    device, *others = devices_text(memory) or [""]
    line = Content.assemble(
        "" if memory.is_state or memory.is_counted else "peak ",
        (amount(memory.peak_allocated_bytes), "bold $accent"),
        f" {'held' if memory.is_counted else 'allocated'}{device and f' on {device}'} ",
        memory.moment if memory.is_state or memory.is_counted else _peak_place(memory),
    )
    pieces = [*others, *recording_notes(memory)]
    if memory.compared_bytes and memory.prediction_error is not None:
        error = signed_percent(memory.prediction_error)
        pieces.append(f"predicted {amount(memory.compared_bytes)} ({error})")
    if memory.resident_set:
        pieces.append(f"formula {memory.resident_set}")
    reserved = memory.peak_reserved_bytes
    # Less than what was allocated is what a snapshot has at its end.
    when = " at the end" if reserved and reserved < memory.peak_allocated_bytes else ""
    pieces.append(f"reserved {amount(reserved)}{when}{_predicted_reserve(memory)}")
    counter = "driver" if memory.source == "cuda-snapshot" else "process"
    pieces.append(f"{counter} {amount(memory.driver_used_bytes)}")
    return line + Content.styled("".join(f" · {piece}" for piece in pieces), "$foreground 70%")


def _peak_place(memory: Memory) -> str:
    """``in backward of step 2 of 3``; the time into the recording where no phase is known."""
    place = place_in_steps(memory.timeline, memory.peak_ms)
    if place or memory.peak_phase:
        return f"in {place}" if place else peak_place(memory)
    return f"{format_duration(memory.peak_ms * 1e6)} into the recording"


def _predicted_reserve(memory: Memory) -> str:
    error = prediction_error(memory.predicted_reserved_bytes, memory.peak_reserved_bytes)
    if error is None:
        return ""
    return f" (predicted {amount(memory.predicted_reserved_bytes)}, {signed_percent(error)})"


def refusal_line(oom: Oom) -> Content:
    line = Content.assemble(("out of memory", "bold $error"), f": {refused(oom)}")
    pieces = [held(oom)]
    if oom.predicted_peak_bytes is not None:
        pieces.append(f"predicted peak {amount(oom.predicted_peak_bytes)}")
    return line + Content.styled(
        "".join(f" · {piece}" for piece in pieces if piece), "$foreground 70%"
    )


def cursor_text(view: TimelineView, sample: int, width: int) -> Content:
    timeline = view.timeline
    t_ms = timeline.t_ms[sample]
    place, time = place_in_steps(timeline, t_ms), format_duration(t_ms * 1e6)
    times = [Content(text) for text in (f"{place}  {time}".strip(), place or time)]
    lines = [
        Content.assemble((amount(timeline.live_bytes[sample]), "bold"), " live"),
        first_fitting(times, width).stylize(QUIET),
    ]
    live_bytes = [(timeline.categories[name][sample], name) for name in view.order]
    room = max(width - SWATCH_WIDTH - AMOUNT_WIDTH, 8)
    for count, name in sorted(live_bytes, reverse=True):
        if count:
            look = view.looks[name]
            text = f"{truncate(name, room):<{room}}{amount(count):>{AMOUNT_WIDTH}}"
            lines.append(Content.assemble((f"{look.glyph} ", look.colour), text))
    return Content("\n").join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """The tab's content.

    Attributes:
        timeline: None if nothing was recorded, with the reason in `no_timeline`; without a reason
            the tab has only tables.
        mark_ms: Initial time of the cursor, named `mark`.
    """

    head: Content
    tables: dict[str, Table]
    timeline: Timeline | None
    no_timeline: str
    mark_ms: float
    mark: str


def memory_view_of(record: Record) -> MemoryView | None:
    steady = _steady_step(record, record.memory) if record.memory is not None else None
    pass_and_oom = out_of_memory(record)
    if pass_and_oom is None or not pass_and_oom[1].ledger:
        return steady
    refusal = _refusal(pass_and_oom[0].name, pass_and_oom[1])
    if steady is None:
        return refusal
    # A watched command that ran out of memory after its steps were counted.
    tables = {f"steps' {name}": table for name, table in steady.tables.items()}
    return replace(steady, head=refusal.head, tables=refusal.tables | tables)


def _steady_step(record: Record, memory: Memory) -> MemoryView:
    return MemoryView(
        head=peak_line(memory),
        tables=_views(record),
        timeline=memory.timeline if memory.timeline.t_ms and not memory.is_state else None,
        # The line above the views says it of a state.
        no_timeline=""
        if memory.is_state
        else memory.missing.get("timeline", "no events were recorded"),
        mark_ms=memory.peak_ms,
        mark="peak",
    )


_TABLE_OF_VIEW = {
    "ledger": "ledger",
    "stacks": "origins",
    "largest": "largest",
    "modules": "modules",
    "predicted": "reconciliation",
    "ranks": "memory_ranks",
    "formula": "resident",
    "process": "card",
    "pools": "pools",
    "devices": "devices",
    "all values": "memory",
}
"""First views in order; other tables of the section follow under their names."""


def _views(record: Record) -> dict[str, Table]:
    tables = {table.name: table for table in tables_in("memory", SectionSource(record=record))}
    views = {view: tables.pop(name) for view, name in _TABLE_OF_VIEW.items() if name in tables}
    return views | tables


def _refusal(name: str, oom: Oom) -> MemoryView:
    tables = {
        "ledger": oom_ledger_table(oom),
        "stacks": oom_origins_table(oom),
        "largest": oom_largest_table(oom),
        "fits": would_fit_table(oom),
        "request": oom_table(name, oom),
    }
    return MemoryView(
        head=refusal_line(oom),
        tables={name: table for name, table in tables.items() if table.rows},
        timeline=oom.timeline,
        no_timeline="",
        mark_ms=oom.refused_ms or 0.0,
        mark="refusal",
    )


ROOMY = 150
NARROWEST = 60
"""Below this width the panel of the cursor is hidden."""
LIVE = "Live bytes"
FLEXIBLE = {
    **dict.fromkeys(("stacks", "largest", "Δ stacks"), "stack"),
    **dict.fromkeys(("modules", "Δ modules"), "module"),
    "formula": "meaning",
}
TIMELINE = "timeline"
"""View of the timeline on screens too short for timeline and tables."""
DIFFERENCES = ("Δ ledger", "Δ modules", "Δ stacks")


class MemoryTab(ViewsTab[MemoryView]):
    BINDINGS: ClassVar[list[BindingType]] = [
        *view_bindings("memory", "ledger, stacks, modules, …", keys="v,w"),
        Binding("d", "against", "Diff", id="memory.against", tooltip="Diff with another run"),
    ]

    _chosen = TIMELINE
    """The requested view; another one may be shown with it."""
    _placed_in = Size()
    """Screen size when the views were placed."""
    _always_in_sight: Collection[str] = (TIMELINE,)

    @property
    def _has_timeline(self) -> bool:
        shown = self.block
        return shown is not None and (shown.timeline is not None or bool(shown.no_timeline))

    @cached_property
    def block(self) -> MemoryView | None:
        """The tab's content; of an OOM, everything until it happened."""
        return memory_view_of(self.record)

    def content(self, shown: MemoryView) -> ComposeResult:
        tables = dict(shown.tables)
        views = [_view(name, table, table.title) for name, table in tables.items()]
        above = self._timeline(shown)
        timeline = View(
            name=TIMELINE, widget=above, markdown=views[0].markdown, copied=views[0].name
        )
        _, *widgets = self.declare([timeline, *views])
        yield Static(shown.head, classes="head", markup=False)
        with Horizontal(id="upper"):
            with Framed(LIVE, f"← → move · + - zoom · k {shown.mark}", id="timeline"):
                yield above
            with Framed("At the cursor", id="cursor"):
                yield Static(id="at-cursor", markup=False)
        yield ViewBar([*tables])
        with Horizontal(id="tables"):
            yield from widgets
        yield self.detail_line()

    def _timeline(self, shown: MemoryView) -> Widget:
        if shown.timeline is None:
            return Static(f"No timeline: {shown.no_timeline}.", markup=False)
        return TimelineView(shown.timeline, shown.mark_ms)

    def start_focus(self) -> None:
        for timeline in self.query(TimelineView):
            if self.query_one("#upper").display:
                give_focus(timeline)
                return
        super().start_focus()

    @property
    def _is_short(self) -> bool:
        return self.app.size.height < SHORT

    def turn_to(self, name: str) -> None:
        had_focus = self.screen.focused is self.active
        self.show_view(name)
        if had_focus or self._is_short:
            give_focus(self.active)

    def show_view(self, name: str) -> None:
        """Show a table; on wide screens the ledger next to it.

        On short screens the timeline is a separate view.
        """
        self._chosen, self._placed_in = name, self.app.size
        is_short = self._is_short
        _, first, *others = self.views
        above = is_short and name == TIMELINE and self._has_timeline
        table = first if name == TIMELINE else name
        is_split = self.app.size.width >= ROOMY and bool(others)
        if not above and is_split and table == first:
            table = others[0]
        self._always_in_sight = {TIMELINE, first} if is_split else {TIMELINE}
        self.query_one("#cursor").display = self.app.size.width >= NARROWEST
        for bar in self.query(ViewBar):
            bar.names = [*self.views][not (is_short and self._has_timeline) :]
            bar.refresh()
        super().show_view(TIMELINE if above else table)
        self.query_one("#upper").display = self._has_timeline and (above or not is_short)
        self.query_one("#tables").display = not above

    def in_sight(self) -> Collection[str]:
        return {*super().in_sight(), *self._always_in_sight}

    def on_resize(self) -> None:
        if not self.views or self._placed_in == self.app.size:
            return
        focused = self.screen.focused
        self.show_view(self._chosen)
        around = [] if focused is None else focused.ancestors_with_self
        if self in around and not all(node.display for node in around):
            self.start_focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "against":
            # An imported file is not a run.
            return self.run.header_path.is_file()
        return super().check_action(action, parameters)

    def action_against(self) -> None:
        from sysbench.tui.screens.ask_dialog import PickRunScreen  # lazy: rare

        if self.block is None:
            return
        if self.record.memory is None:
            self.notify("This run ran out of memory: no steady step to compare.")
            return
        picker = PickRunScreen(
            "Compare the memory of this run (B) with which run (A)?",
            lambda entry: entry.peak_bytes is not None and entry.id != self.record.id,
        )
        self.app.push_screen(picker, self._set_against)

    async def _set_against(self, run_id: str | None) -> None:
        if run_id is None or self.record.memory is None:
            return
        with report_errors(self):
            other = load_record(Library().open(run_id)).memory
            if other is None:
                self.notify(f"{run_id} has no memory pass", severity="error")
                return
            differences = difference_tables(memory_difference(other, self.record.memory))
            if any(table.rows for table in differences):
                await self._show_differences(run_id, differences)
            else:
                self.notify(f"The peak is the same as in {run_id}.")

    async def _show_differences(self, run_id: str, tables: list[Table]) -> None:
        for name in DIFFERENCES:
            if name in self.views:
                await self.views.pop(name).widget.remove()
        for name, table in zip(DIFFERENCES, tables, strict=True):
            if table.rows:
                view = self.views[name] = _view(name, table, f"{table.title} · A is {run_id}")
                await self.query_one("#tables").mount(view.widget)
        self.show_view(next(name for name in DIFFERENCES if name in self.views))
        give_focus(self.active)

    @on(TimelineView.Moved)
    def _show_cursor(self, event: TimelineView.Moved) -> None:
        timeline = self.query_one(TimelineView)
        panel = self.query_one("#timeline")
        panel.border_title = LIVE
        if not self.query_one("#cursor").display:
            live = timeline.timeline.live_bytes[event.sample]
            panel.border_title = f"{LIVE} · {amount(live)} at the cursor"
        room = self.query_one("#cursor").content_size.width
        text = cursor_text(timeline, event.sample, room)
        line = self.query_one("#at-cursor", Static)
        if line.content != text:  # the timeline also posts `Moved` when it is shown
            line.update(text)


def _view(name: str, table: Table, title: str) -> View:
    def describe(row: int) -> str:
        """The selected row in full: stacks are too long for the table."""
        if name not in FLEXIBLE:
            return ""
        pairs = zip(table.columns, cells_as_text(table)[row], strict=True)
        return " · ".join(f"{heading(column)} {text}" for column, text in pairs if text)

    return view_of(table, name, describe, title=title, flexible=FLEXIBLE.get(name, ""))
