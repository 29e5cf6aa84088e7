"""Kernels: the traced step as table, tree, roofline and answers. Nsys: NVIDIA's own tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

import msgspec
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sysbench.core.errors import SysbenchError
from sysbench.core.export.text_formats import table_as_markdown
from sysbench.core.record.record import Kernels, Nsys, Record
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.related import runs_with_other_steps
from sysbench.core.spec.own_model import is_job
from sysbench.core.tables.cells import category_words, cells_as_text, heading, literal
from sysbench.core.tables.kernel_tables import (
    OUTLIER,
    category_table,
    group_by_name,
    kernel_table,
    mean_label,
    question_table,
    roof_words,
    roofline_table,
    row_noun,
)
from sysbench.core.tables.layer_tables import layer_tables
from sysbench.core.tables.nsys_tables import nsys_tables
from sysbench.core.tables.section_tables import SectionSource, tables_in
from sysbench.core.tables.table import Table
from sysbench.core.tables.tree_rows import layer_words
from sysbench.core.tables.trust import (
    coverage_warning,
    coverage_words,
    is_perturbed,
    mark_perturbed,
    steps_words,
)
from sysbench.core.trace.attention_kernels import Answer
from sysbench.core.trace.module_tree import TreeNode, kernel_tree
from sysbench.core.trace.questions import questions_of
from sysbench.core.trace.roofline import roof_points
from sysbench.tui.screens.result_views import View, ViewsTab, view_bindings, view_of
from sysbench.tui.text import (
    amount,
    milliseconds,
    operations,
    percent,
    signed_percent,
    significant,
    truncate,
)
from sysbench.tui.theme import Swatch, swatch_of
from sysbench.tui.widgets.drawing import Folding, hanging, wrap_lines
from sysbench.tui.widgets.key_bar import ViewBar, next_name
from sysbench.tui.widgets.outline_view import TreeView
from sysbench.tui.widgets.roofline_plot import RooflinePlot
from sysbench.tui.widgets.stack_bar import BarPart, StackBar
from sysbench.tui.widgets.table_view import FilterBox, KernelTable, TableView

REST = ("idle", "unattributed")


def category_looks(kernels: Kernels) -> dict[str, Swatch]:
    names = [str(name) for name in category_table(kernels).column("category")]
    return {name: swatch_of(name) for name in (*names, *REST)}


def category_parts(kernels: Kernels, looks: Mapping[str, Swatch]) -> list[BarPart]:
    parts = []
    for cells in category_table(kernels).mappings():
        name, ns = str(cells["category"]), float(cells["exclusive_ns"] or 0)
        if ns > 0 or name in REST:
            text = f"{significant(ns / 1e6, 3)} ms"
            parts.append(
                BarPart(
                    category_words(name),
                    ns,
                    mark_perturbed(text) if is_perturbed(kernels) else text,
                    looks[name],
                )
            )
    return parts


def _sum(kernels: Kernels) -> Content:
    step = milliseconds(kernels.step_ms)
    perturbed = is_perturbed(kernels)
    return Content.assemble(
        f"traced {kernels.whole} ",
        (
            mark_perturbed(step) if perturbed else step,
            "bold $warning" if perturbed else "bold $accent",
        ),
    )


def brief_line(kernels: Kernels, untraced_ms: float | None, width: int) -> Content:
    """The sum on one line, with its coverage or the warning about it."""
    if warning := coverage_warning(kernels):
        total = _sum(kernels)
        text = truncate(f"! {warning}", max(0, width - total.cell_length - 2))
        return total + Content.styled(f"  {text}", "bold $warning")
    line, (covered, *words) = _sum(kernels), coverage_words(kernels)
    if untraced_ms is not None and kernels.perturbation is not None:
        line += Content(f" ({signed_percent(kernels.perturbation - 1)})")
        words = [f"untraced {milliseconds(untraced_ms)}", *words]
    words = [covered.removesuffix(f" of the {kernels.whole}"), *words]
    for number, text in enumerate(words):
        left = width - line.cell_length - len(text) - 3
        # Drop whole numbers: half a number is another number.
        if left < (2 if number + 1 < len(words) else 0):
            return line + Content.styled(" …", QUIET)
        line += Content.styled(f" · {text}", QUIET)
    return line


def row_text(table: Table, index: int, *, perturbed: bool) -> str:
    values = table.mapping(index)
    facts = [literal(str(values["name"]))]
    for key in ("op", "module", "phase"):
        if values[key]:
            facts.append(f"{key} {literal(str(values[key]))}")
    if values["ops"]:
        facts.append(f"fused from {literal(str(values['ops']))}")
    mean, least, longest = values["mean_ns"], values["min_ns"], values["max_ns"]
    if isinstance(mean, float) and isinstance(least, float) and isinstance(longest, float):
        microseconds = [significant(ns / 1e3, 3) for ns in (least, mean, longest)]
        least_text, mean_text, most_text = (
            mark_perturbed(x) if perturbed else x for x in microseconds
        )
        facts.append(f"min {least_text} mean {mean_text} max {most_text} µs")
        median = values.get("median_ns")
        if isinstance(median, float) and longest > OUTLIER * median > 0:
            facts.append(f"max is {longest / median:.0f} × the median")
    return " · ".join(facts)


def node_text(node: TreeNode, *, perturbed: bool) -> str:
    def time(ns: float) -> str:
        return mark_perturbed(milliseconds(ns / 1e6)) if perturbed else milliseconds(ns / 1e6)

    facts = [literal(node.path)]
    if node.layers:
        facts.append(layer_words(node.layers, perturbed=perturbed))
    if node.exclusive_ns < node.inclusive_ns and node.kind in ("module", "layers"):
        facts.append(f"{time(node.exclusive_ns)} self")
    facts += [f"{phase} {time(ns)}" for phase, ns in node.phases_ns.items()]
    if node.flops is not None:
        facts.append(operations(node.flops))
    if node.of_roof is not None:
        facts.append(f"{percent(node.of_roof)} of roofline")
    if node.activation_bytes is not None:
        facts.append(
            f"parameters {amount(node.parameter_bytes)}, saved {amount(node.activation_bytes)}"
        )
    return " · ".join(facts)


QUIET = "$foreground 60%"


class AnswersView(VerticalScroll, can_focus=True):
    def __init__(self) -> None:
        super().__init__()
        self.answers: Sequence[Answer] = ()
        self.border_title = "Answers"

    def compose(self) -> Iterator[Folding]:
        yield Folding(lambda width, height: Content("Reading other runs of this spec…"))

    def show(self, answers: Sequence[Answer]) -> None:
        self.answers = answers
        self.query_one(Folding).show(wrap_lines(self._lines))

    def _lines(self, width: int) -> Iterator[Content]:
        for answer in self.answers:
            yield from _lines(answer, width)

    def markdown(self) -> str:
        return table_as_markdown(question_table(self.answers))


def _lines(answer: Answer, width: int) -> Iterator[Content]:
    yield from hanging(Content(""), answer.question, width, "bold $accent")
    yield from hanging(Content("  "), literal(answer.sentence), width)
    if answer.rows:
        rows = f"{len(answer.rows)} rows: " if len(answer.rows) > 1 else ""
        text = f"  from {rows}{literal(', '.join(answer.rows))}"
        yield Content.styled(truncate(text, width), QUIET)
    for command in answer.commands:
        yield from hanging(Content.styled("  $ ", QUIET), command, width, QUIET)
    yield Content("")


ALL = "all"


class KernelsTab(ViewsTab[Kernels]):
    BINDINGS: ClassVar[list[BindingType]] = [
        *view_bindings("kernels", "table, tree, answers, roofline", is_filtered=True),
        Binding(
            "p",
            "phase",
            "Phase",
            show=False,
            id="kernels.phase",
            tooltip="Show only the next phase",
        ),
        Binding(
            "g",
            "group",
            "Group",
            show=False,
            id="kernels.group",
            tooltip="One row per kernel, or one per kernel and module",
        ),
    ]

    def content(self, kernels: Kernels) -> ComposeResult:
        self.looks = category_looks(kernels)
        self.phase, self.is_grouped = ALL, True
        self.detailed: Kernels | None = None
        self.note = ""
        yield Static(self._badge(kernels), id="badge", markup=False)
        yield StackBar()
        widgets = [*self.declare(self._views(kernels))]
        yield ViewBar([*self.views])
        yield FilterBox()
        with Vertical(id="views"):
            for widget in widgets:
                yield widget.add_class("panel")
        yield self.detail_line()

    def _views(self, kernels: Kernels) -> Iterator[View]:
        perturbed = is_perturbed(kernels)
        table, tree = KernelTable(self.looks, perturbed=perturbed), TreeView(perturbed=perturbed)

        def describe_row() -> str:
            if table.table is None or table.selected is None:
                return ""
            return row_text(table.table, table.selected, perturbed=perturbed)

        def describe_node() -> str:
            return node_text(tree.node, perturbed=perturbed) if tree.node else ""

        yield View(name="table", widget=table, markdown=table.markdown, subject=describe_row)
        yield View(
            name="tree",
            widget=tree,
            markdown=tree.markdown,
            subject=describe_node,
            fill=self._read_layers,
        )
        yield from map(_file_view, _file_tables(self.record))
        # An imported trace has no spec, which the answers need, and a user's command has no keys.
        if self.record.spec and not is_job(self.record.spec):
            answers = AnswersView()
            yield View(
                name="answers",
                widget=answers,
                markdown=answers.markdown,
                copied="the answers",
                fill=self._read_answers,
            )
        yield View(
            name="roofline",
            widget=RooflinePlot(),
            markdown=lambda: table_as_markdown(roofline_table(kernels)),
            copied="the roofline's points",
        )

    def _badge(self, kernels: Kernels) -> Content:
        warning = coverage_warning(kernels)
        # The warning already contains the coverage.
        words = [*coverage_words(kernels)[bool(warning) :], *steps_words(self.record)]
        line = Content.styled(" · ".join(words), "$foreground 60%")
        return Content.styled(f"! {warning}\n", "bold $warning") + line if warning else line

    def fill(self, kernels: Kernels) -> None:
        parts = category_parts(kernels, self.looks)
        timing = self.record.timing
        brief = partial(brief_line, kernels, timing.step.median_ms if timing else None)
        head = _sum(kernels) + Content(f" = the parts below{mean_label(kernels)}")
        self.query_one(StackBar).show_parts(head, parts, brief=brief)
        plot, words = (
            self.query_one(RooflinePlot),
            roof_words(kernels.roof, kernels.missing.get("roof", "")),
        )
        plot.border_title = "Roofline"
        plot.show(roof_points(kernels), kernels.roof, words)
        self._show_phase()

    @property
    def table(self) -> TableView:
        return self.query_one(KernelTable)

    @property
    def tree_view(self) -> TreeView:
        return self.query_one(TreeView)

    @work(thread=True, group="kernels.layers", exclusive=True)
    def _read_layers(self) -> None:
        """Read the rows by layer in a thread: there are many, in a separate file."""
        try:
            self.call_later(self._take_layers, layer_rows(self.run, self.record))
        except SysbenchError as error:
            note = literal(f"folded: {error}")
            self.call_later(self._take_layers, self.record.kernels, note)

    def _take_layers(self, kernels: Kernels | None, note: str = "") -> None:
        self.detailed, self.note = kernels, note
        self._show_tree()

    @work(thread=True, group="kernels.answers", exclusive=True)
    def _read_answers(self) -> None:
        answers = questions_of(self.record, runs_with_other_steps(self.record))
        self.call_later(self.query_one(AnswersView).show, answers)

    def _show_tree(self) -> None:
        if self.detailed is not None:
            phase = "" if self.phase == ALL else self.phase
            self.tree_view.show_tree(kernel_tree(self.detailed, self.record.memory, phase=phase))
            title = ["Tree", f"phase {self.phase}", self.note]
            self.tree_view.border_title = Content(" · ".join(filter(None, title)))
            self.tree_view.filter(self.query_one(FilterBox).value)

    def _show_phase(self) -> None:
        kernels = self.block
        assert kernels is not None
        table = kernel_table(group_by_name(kernels) if self.is_grouped else kernels)
        if self.phase != ALL:
            phases = zip(table.rows, table.column("phase"), strict=True)
            rows = tuple(row for row, phase in phases if phase == self.phase)
            table = msgspec.structs.replace(table, rows=rows)
        split = "" if self.is_grouped else " by module"
        title = f"{row_noun(kernels).title()}s{split} · phase {self.phase}"
        self.table.border_title = Content(title)
        self.table.show(table, sort="exclusive_ns")
        self._show_tree()

    def action_phase(self) -> None:
        if self.block is None:
            return
        phases = [ALL, *dict.fromkeys(row.phase for row in self.block.rows)]
        self.phase = next_name(phases, self.phase)
        self._show_phase()

    def action_group(self) -> None:
        if self.block is not None:
            self.is_grouped = not self.is_grouped
            self._show_phase()


def _file_view(table: Table) -> View:
    names = table.column("name")
    return view_of(table, table.name, lambda row: literal(str(names[row])), flexible="name")


def _file_tables(record: Record) -> Iterator[Table]:
    source = SectionSource(record=record)
    for section in ("steps", "collectives", "copies", "annotations", "python", "api"):
        yield from tables_in(section, source)
    yield from layer_tables(record)


class NsysTab(ViewsTab[Nsys]):
    BINDINGS: ClassVar[list[BindingType]] = view_bindings(
        "nsys", "ranges, clocks, devices, …", keys="v,w", is_filtered=True
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
