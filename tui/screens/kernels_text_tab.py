"""Texts of the Kernels tab: the step, a row, a node, answers to the write-ups' questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sysbench.core.export.text_formats import table_as_markdown
from sysbench.core.record.record import Kernels
from sysbench.core.tables.cells import literal
from sysbench.core.tables.kernel_tables import averaged, category_table, question_table
from sysbench.core.tables.table import Table
from sysbench.core.tables.tree_rows import layer_words
from sysbench.core.tables.trust import (
    coverage_warning,
    coverage_words,
    is_perturbed,
    mark_perturbed,
)
from sysbench.core.trace.attention_kernels import Answer
from sysbench.core.trace.module_tree import TreeNode
from sysbench.tui.cutting import cut_off
from sysbench.tui.text import (
    amount,
    milliseconds,
    operations,
    percent,
    signed_percent,
    significant,
)
from sysbench.tui.theme import Swatch, swatch_of
from sysbench.tui.widgets.facts import hanging
from sysbench.tui.widgets.stack_bar import Part

REST = ("idle", "unattributed")


def category_looks(kernels: Kernels) -> dict[str, Swatch]:
    """A swatch for each category in the table, and for what no kernel explains."""
    names = [str(name) for name in category_table(kernels).column("category")]
    return {name: swatch_of(name) for name in (*names, *REST)}


def category_parts(kernels: Kernels, looks: Mapping[str, Swatch]) -> list[Part]:
    """The parts of the traced step: categories, idle, unattributed."""
    parts = []
    for cells in category_table(kernels).mappings():
        name, ns = str(cells["category"]), float(cells["exclusive_ns"] or 0)
        if ns > 0 or name in REST:
            text = f"{significant(ns / 1e6, 3)} ms"
            parts.append(
                Part(name, ns, mark_perturbed(text) if is_perturbed(kernels) else text, looks[name])
            )
    return parts


def sum_line(kernels: Kernels) -> Content:
    """The sum of the parts, marked where tracing perturbed it too much."""
    return _sum(kernels) + Content(f" = the parts below{averaged(kernels)}")


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


def brief_line(kernels: Kernels, bare_ms: float | None, width: int) -> Content:
    """The sum and what it is worth in one line; what makes it too little takes its place."""
    if warning := coverage_warning(kernels):
        return Content.styled(cut_off(f"! {warning}", width), "bold $warning")
    line, (covered, *words) = _sum(kernels), coverage_words(kernels)
    if bare_ms is not None and kernels.perturbation is not None:
        line += Content(f" ({signed_percent(kernels.perturbation - 1)})")
        words = [f"bare {milliseconds(bare_ms)}", *words]
    words = [covered.removesuffix(f" of the {kernels.whole}"), *words]
    for number, text in enumerate(words):
        left = width - line.cell_length - len(text) - 3
        # A figure is left out whole: half of one is another figure.
        if left < (2 if number + 1 < len(words) else 0):
            return line + Content.styled(" …", QUIET)
        line += Content.styled(f" · {text}", QUIET)
    return line


def row_text(table: Table, index: int, *, perturbed: bool) -> str:
    """A row in full: the whole name, then the values that narrow columns leave out."""
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
    return " · ".join(facts)


def node_text(node: TreeNode, *, perturbed: bool) -> str:
    """A node in full: its path, its layers, and the values that narrow columns leave out."""

    def time(ns: float) -> str:
        return mark_perturbed(milliseconds(ns / 1e6)) if perturbed else milliseconds(ns / 1e6)

    facts = [literal(node.path)]
    if node.layers:
        facts.append(layer_words(node.layers, perturbed=perturbed))
    if node.exclusive_ns < node.inclusive_ns and node.kind in ("module", "layers"):
        facts.append(f"{time(node.exclusive_ns)} its own")
    facts += [f"{phase} {time(ns)}" for phase, ns in node.phases_ns.items()]
    if node.flops is not None:
        facts.append(operations(node.flops))
    if node.of_roof is not None:
        facts.append(f"{percent(node.of_roof)} of the roof")
    if node.activation_bytes is not None:
        facts.append(
            f"parameters {amount(node.parameter_bytes)}, saved {amount(node.activation_bytes)}"
        )
    return " · ".join(facts)


QUIET = "$foreground 60%"


class AnswersView(VerticalScroll, can_focus=True):
    """All answers, one below the other."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: Sequence[Answer] = ()
        self.border_title = "Answers"

    def compose(self) -> Iterator[Static]:
        yield Static("Reading the other runs of this spec …", id="answers", markup=False)

    def show(self, answers: Sequence[Answer]) -> None:
        """Show these."""
        self.answers = answers
        self._paint()

    def on_resize(self) -> None:
        self._paint()

    def _paint(self) -> None:
        width = self.scrollable_content_region.width
        if self.answers and width:
            lines = [line for answer in self.answers for line in _lines(answer, width)]
            self.query_one("#answers", Static).update(Content("\n").join(lines))

    def markdown(self) -> str:
        """The questions and answers as a table."""
        return table_as_markdown(question_table(self.answers))


def _lines(answer: Answer, width: int) -> Iterator[Content]:
    yield from hanging(Content(""), answer.question, width, "bold $accent")
    yield from hanging(Content("  "), literal(answer.sentence), width)
    if answer.rows:
        rows = f"{len(answer.rows)} rows: " if len(answer.rows) > 1 else ""
        yield Content.styled(_cut(f"  from {rows}{literal(', '.join(answer.rows))}", width), QUIET)
    for command in answer.commands:
        yield from hanging(Content.styled("  $ ", QUIET), command, width, QUIET)
    yield Content("")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
