"""Kernels: a sum that adds up, then the rows behind it, as a table, a tree and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import DataTable, Input, Static

from .....core.analysis.costs.roofline import roof_points
from .....core.analysis.kernels.attention import Answer
from .....core.analysis.kernels.questions import questions_of
from .....core.analysis.kernels.tree import kernel_tree
from .....core.errors import SysbenchError
from .....core.export.text_formats import table_as_markdown
from .....core.record.record import Kernels
from .....core.runs.artifacts import layer_rows
from .....core.runs.related import other_steps
from .....core.tables.cells import literal
from .....core.tables.kernels import kernel_table, noun, roof_words, roofline_table
from .....core.tables.trust import coverage_warning, coverage_words, steps_words, times_moved
from ....widgets.bars.tab_bar import ViewBar
from ....widgets.charts.roofline import RooflinePlot
from ....widgets.charts.stack_bar import StackBar
from ....widgets.tables.kernel_table import KernelTable
from ....widgets.tables.table_view import TableView
from ....widgets.tables.tree_view import TreeView
from ..tab import ResultTab
from .kernels_text import (
    AnswersView,
    category_looks,
    category_parts,
    node_words,
    row_words,
    sum_line,
)

ALL = "all"
VIEWS = ("table", "tree", "answers", "roofline")
TALL = 36
"""From this height on the bar's legend has all its lines."""


class RooflineView(RooflinePlot, can_focus=True):
    """The plot as a view: the tab's keys work while it is looked at."""


class KernelsTab(ResultTab):
    """What the tables are worth, category bar, and by turns the views of the same rows."""

    BLOCK, PASS = "kernels", "trace"
    EXPLAINS = (
        "kernels.row",
        "kernels.sum",
        "kernels.tree",
        "trust.coverage",
        "trust.perturbation",
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view", "View", id="kernels.view", tooltip="Table, tree, answers, roofline"),
        Binding("slash", "filter", "Filter", id="kernels.filter", tooltip="Words that must occur"),
        Binding(
            "p", "phase", "Phase", show=False, id="kernels.phase", tooltip="Only the next phase"
        ),
        Binding("escape", "clear_filter", "Clear", show=False, id="kernels.clear"),
    ]

    @dataclass
    class LayersRead(Message):
        """The rows layer by layer, or the record's own and why."""

        kernels: Kernels | None
        note: str = ""

    @dataclass
    class Answered(Message):
        """The answers, other runs considered."""

        answers: list[Answer]

    def compose(self) -> ComposeResult:
        kernels = self.record.kernels
        if kernels is None:
            yield self.blank()
            return
        self.looks = category_looks(kernels)
        self.phase, self.view = ALL, self.views[0]
        self.detailed: Kernels | None = None
        self.note = ""
        moved = times_moved(kernels)
        yield Static(self._badge(kernels), id="badge", markup=False)
        yield StackBar(legend_rows=3 if self.app.size.height >= TALL else 1)
        yield ViewBar(self.views)
        yield Input(placeholder="words that must occur; esc clears", compact=True, id="filter")
        with Vertical(id="views"):
            yield KernelTable(self.looks, moved=moved).add_class("panel")
            yield TreeView(moved=moved).add_class("panel")
            if "answers" in self.views:
                yield AnswersView().add_class("panel")
            yield RooflineView().add_class("panel")
        yield Static(id="detail", markup=False)

    def _badge(self, kernels: Kernels) -> Content:
        """What the tables explain and how far watching moved the step, doubts first."""
        warning = coverage_warning(kernels)
        # The warning says already how much is explained.
        words = [*coverage_words(kernels)[bool(warning) :], *steps_words(self.record)]
        line = Content.styled(" · ".join(words), "$foreground 60%")
        return Content.styled(f"! {warning}\n", "bold $warning") + line if warning else line

    def on_mount(self) -> None:
        kernels = self.record.kernels
        if kernels is None:
            return
        self.query_one("#filter").display = False
        self.query_one(StackBar).show(sum_line(kernels), category_parts(kernels, self.looks))
        plot, words = self.query_one(RooflineView), roof_words(kernels.roof, _why_no_roof(kernels))
        plot.border_title = "Roofline"
        plot.show(roof_points(kernels), kernels.roof, words)
        self._show_phase()
        self._show_view(self.view)

    @property
    def views(self) -> Sequence[str]:
        """Of a foreign trace the questions cannot be answered: its spec is not known."""
        return VIEWS if self.record.spec else [name for name in VIEWS if name != "answers"]

    @property
    def table(self) -> TableView:
        return self.query_one(KernelTable)

    @property
    def tree_view(self) -> TreeView:
        return self.query_one(TreeView)

    @property
    def active(self) -> Widget:
        """The view that is shown."""
        return self.query_one("#views").children[self.views.index(self.view)]

    def start_focus(self) -> None:
        if not self.is_blank:
            self.active.focus()

    def action_view(self) -> None:
        """The next view."""
        if not self.is_blank:
            self._show_view(self.views[(self.views.index(self.view) + 1) % len(self.views)])
            self.active.focus()

    @on(ViewBar.Chosen)
    def _clicked(self, event: ViewBar.Chosen) -> None:
        event.stop()
        self._show_view(event.name)
        self.active.focus()

    def _show_view(self, view: str) -> None:
        """Show one view, filled if it is its first time."""
        self.view = self.query_one(ViewBar).active = view
        for widget in self.query_one("#views").children:
            widget.display = widget is self.active
        self._show_detail()
        if view == "tree" and self.detailed is None:
            self._read_layers()
        if view == "answers" and not self.query_one(AnswersView).answers:
            self._read_answers()

    @work(thread=True, group="kernels.layers", exclusive=True)
    def _read_layers(self) -> None:
        """Rows layer by layer are in a file of their own, and many."""
        try:
            self.post_message(self.LayersRead(layer_rows(self.run, self.record)))
        except SysbenchError as error:
            self.post_message(self.LayersRead(self.record.kernels, literal(f"folded: {error}")))

    def on_kernels_tab_layers_read(self, message: LayersRead) -> None:
        self.detailed, self.note = message.kernels, message.note
        self._show_tree()

    @work(thread=True, group="kernels.answers", exclusive=True)
    def _read_answers(self) -> None:
        """Other runs of the spec answer what this one cannot."""
        self.post_message(self.Answered(questions_of(self.record, other_steps(self.record))))

    def on_kernels_tab_answered(self, message: Answered) -> None:
        self.query_one(AnswersView).show(message.answers)

    def _show_tree(self) -> None:
        if self.detailed is not None:
            phase = "" if self.phase == ALL else self.phase
            self.tree_view.show_tree(kernel_tree(self.detailed, self.record.memory, phase=phase))
            title = ["Tree", f"phase {self.phase}", self.note]
            self.tree_view.border_title = " · ".join(part for part in title if part)
            self.tree_view.filter(self.query_one("#filter", Input).value)

    def _show_phase(self) -> None:
        kernels = self.record.kernels
        assert kernels is not None
        table = kernel_table(kernels)
        if self.phase != ALL:
            phases = zip(table.rows, table.column("phase"), strict=True)
            rows = tuple(row for row, phase in phases if phase == self.phase)
            table = msgspec.structs.replace(table, rows=rows)
        self.table.border_title = f"{noun(kernels).title()}s · phase {self.phase}"
        self.table.show(table, sort="exclusive_ns")
        self._show_tree()

    def action_phase(self) -> None:
        """The next phase of those the trace has."""
        kernels = self.record.kernels
        if kernels is None:
            return
        phases = [ALL, *dict.fromkeys(row.phase for row in kernels.rows)]
        self.phase = phases[(phases.index(self.phase) + 1) % len(phases)]
        self._show_phase()

    def action_filter(self) -> None:
        if not self.is_blank:
            box = self.query_one("#filter", Input)
            box.display = True
            box.focus()

    def action_clear_filter(self) -> None:
        if not self.is_blank:
            box = self.query_one("#filter", Input)
            box.value, box.display = "", False
            self.active.focus()

    @on(Input.Changed, "#filter")
    def _narrow(self, event: Input.Changed) -> None:
        self.table.filter(event.value)
        self.tree_view.filter(event.value)

    @on(Input.Submitted, "#filter")
    def _to_view(self) -> None:
        self.active.focus()

    @on(DataTable.RowHighlighted)
    def _show_detail(self) -> None:
        detail = self.query_one("#detail", Static)
        detail.update(Content(self.subject()))
        detail.display = bool(self.subject())

    def subject(self) -> str:
        if self.is_blank:
            return ""
        moved = self.record.kernels is not None and times_moved(self.record.kernels)
        if self.view == "tree":
            node = self.tree_view.node
            return node_words(node, moved=moved) if node else ""
        table, index = self.table.table, self.table.selected
        if self.view != "table" or table is None or index is None:
            return ""
        return row_words(table, index, moved=moved)

    def copyable(self) -> tuple[str, str] | None:
        if self.is_blank:
            return None
        if self.view == "answers":
            return "the answers as Markdown", self.query_one(AnswersView).markdown()
        if self.view == "roofline" and self.record.kernels is not None:
            table = roofline_table(self.record.kernels)
            return "the roofline's points as Markdown", table_as_markdown(table)
        shown = self.tree_view if self.view == "tree" else self.table
        return "the rows in view as Markdown", shown.markdown()

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        if self.is_blank:
            return []
        return [
            ("kernels: Show next view", f"now: {self.view}", self.action_view),
            ("kernels: Filter rows", "words that must occur", self.action_filter),
            ("kernels: Show next phase", f"now: {self.phase}", self.action_phase),
            ("kernels: Sort by next column", "", self.table.action_sort_next),
        ]


def _why_no_roof(kernels: Kernels) -> str:
    return kernels.missing.get("roof", "")


TAB = KernelsTab
