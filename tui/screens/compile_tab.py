"""Compile: extent, seconds by stage, and generated kernels with their code."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sysbench.core.compare.comparison import BreakEven
from sysbench.core.errors import NotFoundError
from sysbench.core.export.text_formats import table_as_markdown
from sysbench.core.formatting import counted
from sysbench.core.record.record import Compile
from sysbench.core.runs.artifacts import generated_code
from sysbench.core.runs.related import compile_break_even
from sysbench.core.tables.cells import literal
from sysbench.core.tables.compile_tables import (
    caches_in_words,
    compile_table,
    gaps_table,
    generated_table,
)
from sysbench.core.tables.table import Table
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.result_views import View, ViewsTab
from sysbench.tui.text import milliseconds, significant
from sysbench.tui.theme import swatch_of
from sysbench.tui.widgets.stack_bar import BarPart, StackBar
from sysbench.tui.widgets.table_view import TableView

GENERATED_ORDER = (
    *("exclusive_ns", "name", "module", "calls", "per_call_bytes", "phase", "ops", "sources"),
)
GAPS_ORDER = ("what", "count", "place", "reason", "code")
BADGES = {
    "whole": ("✓ compiled whole", "bold $success"),
    "part": ("! compiled in part", "bold $warning"),
    "none": ("✗ not compiled: ran eagerly", "bold $error"),
}
CODE_TABS = 4
TALL = 36
"""From this height on the code is shown below the kernels."""


class CompileTab(ViewsTab[Compile]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "code", "Code", id="compile.code", tooltip="Show the kernel's code"),
        Binding(
            "g",
            "gaps",
            "Gaps",
            id="compile.gaps",
            tooltip="Show what was not compiled and why",
        ),
    ]

    worth: BreakEven | None = None

    def content(self, block: Compile) -> ComposeResult:
        yield Static(badge(block), classes="head", markup=False)
        yield StackBar()
        yield Static(id="worth", markup=False)
        if block.breaks or block.recompiled or block.eager_parts or block.cudagraph_skips:
            yield TableView(
                gaps_table(block), title="Gaps", flexible="reason", order=GAPS_ORDER, id="gaps"
            )
        title = "Generated kernels"
        table = TableView(title=title, flexible="name", order=GENERATED_ORDER, id="generated")
        yield from self.declare(
            [
                View(
                    name="generated",
                    widget=table,
                    markdown=lambda: self._markdown(block),
                    copied="the tables",
                    subject=self._sources,
                )
            ]
        )
        yield self.detail_line()
        with VerticalScroll(id="code", classes="panel"):
            yield Static(markup=False)

    def fill(self, block: Compile) -> None:
        code = self.query_one("#code")
        code.border_title = "Code"
        code.display = self.app.size.height >= TALL
        bar = self.query_one(StackBar)
        head = seconds_line(block)
        bar.show_parts(head, seconds_parts(block), brief=lambda width: head)
        bar.display = block.extent != "none"
        self._show_generated()
        self._weigh()

    @property
    def generated(self) -> TableView:
        return self.query_one("#generated", TableView)

    def _show_generated(self) -> None:
        kernels = self.record.kernels
        if kernels is None or not kernels.generated:
            self.generated.border_title = "Generated kernels: none"
        else:
            self.generated.show(generated_table(kernels), sort="exclusive_ns")

    def _why_none(self) -> str:
        block, kernels = self.block, self.record.kernels
        if kernels is None:
            return literal(self.record.missing.get("kernels", "this run has no trace pass"))
        if block is not None and block.backend != "inductor":
            return f"the backend {literal(block.backend)} generates no kernels"
        return literal(kernels.missing.get("generated", "no graph was compiled in the trace pass"))

    @work(thread=True, group="compile.worth", exclusive=True)
    def _weigh(self) -> None:
        self.call_later(self._show_worth, compile_break_even(self.record))

    def _show_worth(self, worth: BreakEven | None) -> None:
        self.worth = worth
        if worth is not None:
            self.query_one("#worth", Static).update(worth_line(worth))

    def action_code(self) -> None:
        if self.block is None:
            return
        panel = self.query_one("#code")
        panel.display = not panel.display
        self.remove_class("-gaps")
        # On a short screen the code replaces the table.
        self.generated.display = not panel.display or self.app.size.height >= TALL
        give_focus(self.generated if self.generated.display else panel)
        self._show_code()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "gaps":
            return bool(self.query("#gaps"))
        return super().check_action(action, parameters)

    def action_gaps(self) -> None:
        """Focus the gaps, which replace the kernels on a short screen, or go back."""
        gaps = self.query_one("#gaps", TableView)
        is_there = self.app.focused is not gaps
        is_short = self.app.size.height < TALL
        self.set_class(is_there and is_short, "-gaps")
        if is_short:
            self.query_one("#code").display = False
            self.generated.display = not is_there
        give_focus(gaps if is_there else self.generated)

    def on_descendant_focus(self) -> None:
        self.show_detail()

    def _gap_in_full(self) -> str:
        for gaps in self.query("#gaps").results(TableView):
            if self.app.focused is gaps and gaps.table is not None and gaps.selected is not None:
                row = gaps.table.mapping(gaps.selected)
                cells = (row[name] for name in ("place", "reason", "code"))
                return " · ".join(literal(str(cell)) for cell in cells if cell)
        return ""

    @on(TableView.RowHighlighted, "#generated")
    def _show_code(self) -> None:
        panel, row = self.query_one("#code", VerticalScroll), self._row()
        if not panel.display or not row:
            return
        try:
            code = generated_code(self.run, str(row["file"]), str(row["name"]))
        except NotFoundError as error:
            code = str(error)
        lines = (literal(line.expandtabs(CODE_TABS)) for line in code.splitlines())
        panel.query_one(Static).update(Content("\n".join(lines)))
        panel.scroll_home(animate=False)

    def _row(self) -> dict[str, Any]:
        table = None if self.block is None else self.generated.table
        index = self.generated.selected if table else None
        if table is None or index is None:
            return {}
        return table.mapping(index)

    def detail(self) -> str:
        if gap := self._gap_in_full():
            return gap
        return self.subject() if self.generated.table else self._why_none()

    def _sources(self) -> str:
        row = self._row()
        return literal(f"{row['ops']} · {row['module']} · {row['sources']}") if row else ""

    def _markdown(self, block: Compile) -> str:
        tables: list[Table] = [compile_table(block, self.worth)]
        tables += [gaps_table(block)] if self.query("#gaps") else []
        if self.generated.table is not None:
            tables.append(self.generated.table)
        return "\n\n".join(map(table_as_markdown, tables))


def badge(block: Compile) -> Content:
    badge_text = BADGES[block.extent or ("part" if block.fell_back else "whole")]
    counts = {
        "graph": block.graphs,
        "break": sum(block.graph_breaks.values()),
        "recompile": block.recompiles,
    }
    return Content.assemble(
        badge_text,
        f"  {' · '.join(counted(count, noun) for noun, count in counts.items())}",
        (f"  {block.mode} · {block.backend} · {block.scope}", "$foreground 60%"),
    )


def seconds_line(block: Compile) -> Content:
    return Content.assemble(
        "compiling took ",
        (f"{significant(block.compile_seconds, 3)} s", "bold $accent"),
        (f" {caches_in_words(block)}", "$foreground 60%"),
    )


def seconds_parts(block: Compile) -> list[BarPart]:
    return [
        BarPart(name, seconds, f"{significant(seconds, 3)} s", swatch_of(name))
        for name, seconds in block.parts_seconds.items()
    ]


def worth_line(worth: BreakEven) -> Content:
    if (
        worth.compiled_ms is None
        or worth.eager_ms is None
        or worth.saved_ms is None
        or worth.speed_up is None
    ):
        reason = worth.missing.get("eager_ms") or worth.missing.get("steps_cold", "unknown")
        return Content.assemble("break-even n/a: ", (reason, "$foreground 70%"))
    is_faster = worth.verdict is not None and worth.verdict.verdict == "faster"
    steps = {"cold": worth.steps_cold, "warm": worth.steps_warm}
    pays = [f"{count:,} steps {name}" for name, count in steps.items() if count is not None]
    pay = "pays off" if is_faster else "would pay off"
    after = f"{pay} after {' · '.join(pays)}" if pays else worth.missing.get("steps_cold", "")
    tested = (f"; {worth.tested}", "$foreground 70%")
    if not is_faster:
        medians = f"eager {milliseconds(worth.eager_ms)} a step, compiled "
        return Content.assemble(f"{medians}{milliseconds(worth.compiled_ms)}; {after}", tested)
    return Content.assemble(
        (f"{significant(worth.speed_up, 3)}×", "bold $accent"),
        f" the eager speed, saves {milliseconds(worth.saved_ms)} of "
        f"{milliseconds(worth.eager_ms)} per step; {after}",
        tested,
    )
