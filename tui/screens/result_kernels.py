"""Kernels: a sum that adds up, then the rows behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import DataTable, Input, Static

from ...core.export.figures import literal
from ...core.export.kernel_tables import category_table, kernel_table, noun
from ...core.export.table import Table
from ...core.record import Kernels
from ..numerals import milliseconds, signed_percent, significant
from ..themes import IDLE, Swatch, swatch
from ..widgets.stack_bar import Part, StackBar
from ..widgets.table_view import TableView
from .result_tab import ResultTab

ORDER = (
    *("exclusive_ns", "share", "calls", "category", "name", "module", "phase", "mean_ns"),
    *("min_ns", "max_ns", "total_ns", "op"),
)
ALL = "all"
SWATCH_WIDTH = 2
REST = ("idle", "unattributed")


class KernelTable(TableView):
    """Rows with the swatch of their category, as the bar above has it."""

    def __init__(self, looks: Mapping[str, Swatch]) -> None:
        super().__init__(flexible="name", order=ORDER)
        self._looks = looks

    def room_beside(self, column: str) -> int:
        return SWATCH_WIDTH if column == "category" else 0

    def cell(self, column: str, row: int, text: str) -> Text:
        look = self._looks.get(text.removesuffix(" (fused)")) if column == "category" else None
        if look is None:
            return Text(text)
        return Text.assemble((look.glyph, look.colour), " ", text)


class KernelsTab(ResultTab):
    """Category bar, filter, table, and the row under the cursor in full."""

    BLOCK, PASS = "kernels", "trace"
    EXPLAINS = (
        "kernels.row",
        "kernels.sum",
        "trust.perturbation",
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", id="kernels.filter", tooltip="Words that must occur"),
        Binding("p", "phase", "Phase", id="kernels.phase", tooltip="Only one phase"),
        Binding("escape", "clear_filter", "Clear", show=False, id="kernels.clear"),
    ]

    def compose(self) -> ComposeResult:
        kernels = self.record.kernels
        if kernels is None:
            yield self.blank()
            return
        self.looks = category_looks(kernels)
        self.phase = ALL
        yield StackBar(legend_rows=3)
        yield Input(placeholder="words that must occur; esc clears", compact=True, id="filter")
        table = KernelTable(self.looks)
        table.add_class("panel")
        table.border_title = f"{noun(kernels).title()}s"
        yield table
        yield Static(id="detail", markup=False)

    def on_mount(self) -> None:
        kernels = self.record.kernels
        if kernels is None:
            return
        self.query_one("#filter").display = False
        self.query_one(StackBar).show(_sum_line(kernels), category_parts(kernels, self.looks))
        self._show_phase()

    @property
    def table(self) -> TableView:
        return self.query_one(TableView)

    def start_focus(self) -> None:
        if not self.is_blank:
            self.table.focus()

    def _show_phase(self) -> None:
        kernels = self.record.kernels
        assert kernels is not None
        table = kernel_table(kernels)
        if self.phase != ALL:
            at = table.columns.index("phase")
            rows = tuple(row for row in table.rows if row[at] == self.phase)
            table = msgspec.structs.replace(table, rows=rows)
        self.table.border_title = f"{noun(kernels).title()}s · phase {self.phase}"
        self.table.show(table, sort="exclusive_ns")

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
            self.table.focus()

    @on(Input.Changed, "#filter")
    def _narrow(self, event: Input.Changed) -> None:
        self.table.filter(event.value)

    @on(Input.Submitted, "#filter")
    def _to_table(self) -> None:
        self.table.focus()

    @on(DataTable.RowHighlighted)
    def _show_detail(self) -> None:
        self.query_one("#detail", Static).update(Content(self.subject()))

    def subject(self) -> str:
        table = self.table.table if not self.is_blank else None
        index = self.table.selected if table else None
        if table is None or index is None:
            return ""
        return row_words(table, index)

    def copyable(self) -> tuple[str, str] | None:
        return None if self.is_blank else ("the rows in view as Markdown", self.table.markdown())

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        if self.is_blank:
            return []
        return [
            ("kernels: Filter rows", "words that must occur", self.action_filter),
            ("kernels: Show next phase", f"now: {self.phase}", self.action_phase),
            ("kernels: Sort by next column", "", self.table.action_sort_next),
        ]


def category_looks(kernels: Kernels) -> dict[str, Swatch]:
    """A swatch for each category, the longest first; what did not run looks idle."""
    names = [str(row[0]) for row in category_table(kernels).rows]
    looks = {name: swatch(at) for at, name in enumerate(n for n in names if n not in REST)}
    return looks | {"idle": IDLE, "unattributed": Swatch(" ", IDLE.colour)}


def category_parts(kernels: Kernels, looks: Mapping[str, Swatch]) -> list[Part]:
    """The parts of the traced step: categories, idle, unattributed."""
    parts = []
    for row in category_table(kernels).rows:
        name, ns = str(row[0]), float(row[1] or 0)
        if ns > 0 or name in REST:
            parts.append(Part(name, ns, f"{significant(ns / 1e6, 3)} ms", looks[name]))
    return parts


def _sum_line(kernels: Kernels) -> Content:
    """What the parts add up to, and what watching cost."""
    line = Content.assemble(
        "traced step ",
        (milliseconds(kernels.step_ms), "bold $accent"),
        f" = the parts below, mean of {kernels.steps} steps",
    )
    if kernels.perturbation is not None:
        change = signed_percent(kernels.perturbation - 1)
        line += Content.styled(f"  {change} against the bare step", "$foreground 60%")
    if kernels.source == "operators":
        line += Content.styled("  host operators, self time", "$foreground 60%")
    return line


def row_words(table: Table, index: int) -> str:
    """A row in full: the whole name, then what the narrow columns leave out."""
    values = dict(zip(table.columns, table.rows[index], strict=True))
    facts = [literal(str(values["name"]))]
    for key in ("op", "module", "phase"):
        if values[key]:
            facts.append(f"{key} {literal(str(values[key]))}")
    mean, least, most = values["mean_ns"], values["min_ns"], values["max_ns"]
    if isinstance(mean, float) and isinstance(least, float) and isinstance(most, float):
        microseconds = [significant(ns / 1e3, 3) for ns in (least, mean, most)]
        facts.append(f"min {microseconds[0]} mean {microseconds[1]} max {microseconds[2]} µs")
    return " · ".join(facts)


TAB = KernelsTab
