"""Summary of a run, and findings of an imported file: Verdict, Why, Next, then the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content

from sysbench.core.export.text_formats import findings_as_markdown, record_as_markdown
from sysbench.core.memory.oom import asked_by, held, largest_rows, out_of_memory, place
from sysbench.core.record.blocks import PASSES, why_left_out
from sysbench.core.record.memory import Oom
from sysbench.core.record.record import Finding, Numerics, Record
from sysbench.core.tables.cells import cells_as_text, literal
from sysbench.core.tables.context import environment_table, headline
from sysbench.core.tables.numerics_tables import dtypes_table, tensor_columns
from sysbench.core.tables.overview import Overview, Span, overview, overview_lines
from sysbench.core.tables.trust import trust_lines
from sysbench.tui.screens.ask_dialog import NotesScreen
from sysbench.tui.screens.result_views import ResultTab
from sysbench.tui.text import amount, outcome_glyph, outcome_text
from sysbench.tui.theme import SEVERITY_COLOURS, swatch_of
from sysbench.tui.widgets.drawing import Facts, Folding, Pair, hanging, pair_lines, wrap_lines

STYLES = {
    "": "",
    "strong": "bold",
    "quiet": "$foreground 60%",
    **SEVERITY_COLOURS,
}


class OverviewPanel(Folding):
    def __init__(self, shown: Overview, *, more: str = "", id: str | None = None) -> None:
        super().__init__(wrap_lines(lambda width: overview_contents(shown, width, more)), id=id)


def overview_contents(shown: Overview, width: int, more: str = "") -> Iterator[Content]:
    for line in overview_lines(shown, width, more):
        yield Content("").join(_content(span) for span in line)


def _content(span: Span) -> Content:
    style = swatch_of(span.look).colour if span.role == "bar" else STYLES[span.role]
    return Content.styled(span.text, style)


GLYPHS = {"problem": "✗", "warning": "!", "note": "·", "good": "✓"}
MAX_FACTS = 14
MAX_TENSORS = 6
"""Number of tensors whose dtypes are shown."""


class SummaryTab(ResultTab[Record]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "w", "warnings", "Warnings", id="summary.warnings", tooltip="What disturbed measuring"
        ),
        Binding("i", "about", "Machine", id="summary.about", tooltip="Settings and machine"),
    ]

    def content(self, record: Record) -> ComposeResult:
        self.shown = overview(record)
        with VerticalScroll():
            yield OverviewPanel(self.shown, more="w", id="overview")
            if self.shown.further:
                yield findings_in_full(self.shown.further)
            if pass_and_oom := out_of_memory(record):
                yield Facts("Out of memory", refusal_text(pass_and_oom[1]), id="refusal")
            if record.numerics is not None:
                yield Facts("Figures", _numerics(record.numerics))
            if ended := list(passes(record)):  # none yet of a command that still runs
                yield Facts("Passes", ended)
            if trust := list(trust_lines(record)):
                yield Facts("Trust", trust)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "warnings" or bool(self.shown.warnings)

    def action_warnings(self) -> None:
        lines = wrap_findings(self.shown.warnings)
        self.app.push_screen(NotesScreen("What disturbed measuring", lines))

    def action_about(self) -> None:
        pairs = [("settings", line) for line in headline(self.record)]
        facts = [*pairs[:1], *(("", line) for _, line in pairs[1:]), *machine_facts(self.record)]
        self.app.push_screen(NotesScreen("Settings and machine", partial(pair_lines, facts)))

    def copyable(self) -> tuple[str, str]:
        return "the report as Markdown", record_as_markdown(self.record)


def findings_in_full(findings: Sequence[Finding]) -> Folding:
    return Folding(wrap_lines(wrap_findings(findings)), id="findings")


def wrap_findings(findings: Sequence[Finding]) -> Callable[[int], Iterator[Content]]:
    def lines(width: int) -> Iterator[Content]:
        for finding in findings:
            yield from _lines_in_full(finding, width)
            yield Content("")

    return lines


class FindingsTab(ResultTab[list[Finding]]):
    def content(self, findings: list[Finding]) -> ComposeResult:
        shown = overview(self.record)
        with VerticalScroll():
            yield OverviewPanel(shown, id="overview")
            if others := [*shown.further, *shown.warnings]:
                yield findings_in_full(others)
            if trust := [(name, literal(text)) for name, text in trust_lines(self.record)]:
                yield Facts("What the numbers include", trust)

    def copyable(self) -> tuple[str, str]:
        return "the findings as Markdown", "\n".join(findings_as_markdown(self.record.findings))


def _lines_in_full(finding: Finding, width: int) -> Iterator[Content]:
    glyph, colour = GLYPHS[finding.severity], SEVERITY_COLOURS[finding.severity]
    verdict = f"{glyph} {literal(finding.verdict)}"
    rows = (("", verdict, "bold"), ("Why", literal(finding.why), ""))
    for name, text, style in (*rows, ("Next", literal(finding.next), "")):
        if not text:
            continue
        prefix = Content.styled(f"{name:<6}" if name else "", "$foreground 60%")
        for line in hanging(prefix, text, width - 2, style):
            yield Content.styled("▌ ", colour) + line


def refusal_text(oom: Oom) -> Iterator[Pair]:
    by = asked_by(oom)
    yield "requested", f"{amount(oom.requested_bytes)} in {oom.phase}{by and f', by {by}'}"
    if place(oom):
        yield "at", f"{place(oom)}{f': {oom.expression}' if oom.expression else ''}"
    yield "free", amount(oom.free_bytes)
    if oom.largest_free_bytes is not None:
        yield "  largest block", f"{amount(oom.largest_free_bytes)} in the allocator"
    if held_text := held(oom):
        yield "in use", held_text
        if mostly := largest_rows(oom) or oom.missing.get("ledger"):
            yield "  mostly", mostly
    if oom.predicted_peak_bytes is not None:
        yield "predicted", f"{amount(oom.predicted_peak_bytes)} at the peak of a step"
    for fit in oom.would_fit:
        peak = f", {amount(fit.peak_bytes)}" if fit.peak_bytes else ""
        yield f"largest {fit.key}", f"{fit.largest:,} instead of {fit.asked:,}{peak}"


def _numerics(block: Numerics) -> Iterator[Pair]:
    for row in block.accumulations:
        yield row.name, f"{row.value:.4f}"
    table = dtypes_table(block.dtypes)
    tensors = list(tensor_columns(block.dtypes))[:MAX_TENSORS]
    for cells in table.mappings():
        shown = ", ".join(f"{name} {cells[name]}" for name in tensors)
        yield f"{cells['autocast']} {cells['lower']}", shown


def passes(record: Record) -> Iterator[Pair]:
    for row in record.passes:
        words = f"{outcome_text(row.outcome)} in {row.seconds:.1f} s"
        if row.outcome != "finished":
            # Some details start with the text of the outcome.
            words += f": {row.detail.removeprefix(outcome_text(row.outcome)).lstrip(': ')}"
        yield f"{outcome_glyph(row.outcome)} {row.name}", words
    ended = {row.name: row.outcome for row in record.passes}
    for name, kind in PASSES.items():
        why = why_left_out(name, ended.items())
        if name not in ended and why and why in record.missing.get(kind.block, ""):
            yield f"{outcome_glyph('left-out')} {name}", f"left out: {why}"


def machine_facts(record: Record) -> list[Pair]:
    rows = cells_as_text(environment_table(record))
    rows.sort(key=lambda row: not row[0].startswith("device."))
    return [
        (
            name.replace(".", " ").replace("_", " ").removesuffix(" bytes"),
            f"{value} ({note})" if note else value,
        )
        for name, value, note in rows[:MAX_FACTS]
    ]
