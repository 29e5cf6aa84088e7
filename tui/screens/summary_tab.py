"""Summary of a run, and findings of an imported file: Verdict, Why, Next, then the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content

from sysbench.core.export.text_formats import findings_as_markdown, record_as_markdown
from sysbench.core.memory.oom import asked_by, held, largest_rows, out_of_memory, place
from sysbench.core.record.blocks import PASSES, why_left_out
from sysbench.core.record.memory import Oom
from sysbench.core.record.record import Finding, Numerics, Record
from sysbench.core.tables.cells import cells_as_text, literal
from sysbench.core.tables.context import environment_table
from sysbench.core.tables.numerics_tables import dtypes_table, tensor_columns
from sysbench.core.tables.timing_tables import known_words
from sysbench.core.tables.trust import trust_lines
from sysbench.tui.screens.result_views import ResultTab
from sysbench.tui.text import (
    amount,
    interval,
    milliseconds,
    outcome_glyph,
    outcome_text,
    percent,
    signed_percent,
)
from sysbench.tui.widgets.drawing import Facts, Folding, Pair, hanging, wrap_lines

SEVERITY = {
    "problem": ("✗", "$error"),
    "warning": ("!", "$warning"),
    "note": ("·", "$secondary"),
    "good": ("✓", "$success"),
}
MAX_FACTS = 14
MAX_TENSORS = 6
"""Number of tensors whose dtypes are shown."""


class SummaryTab(ResultTab[Record]):
    """Findings, key figures, passes, trust, machine."""

    def content(self, record: Record) -> ComposeResult:
        with VerticalScroll():
            yield Folding(wrap_lines(partial(finding_contents, record)), id="findings")
            if pass_and_oom := out_of_memory(record):
                yield Facts("Out of memory", refusal_text(pass_and_oom[1]), id="refusal")
            with Horizontal(classes="side"):
                yield Facts("Figures", figures(record), id="figures")
                with Vertical(id="right"):
                    yield Facts("Passes", passes(record))
                    if trust := list(trust_lines(record)):
                        yield Facts("Trust", trust)
            yield Facts("Machine", machine_facts(record))

    def copyable(self) -> tuple[str, str]:
        return "the report as Markdown", record_as_markdown(self.record)


def findings_in_full(findings: Sequence[Finding]) -> Folding:
    """All findings in full, the most severe first."""

    def lines(width: int) -> Iterator[Content]:
        for finding in findings:
            yield from _lines_in_full(finding, width)
            yield Content("")

    return Folding(wrap_lines(lines), id="findings")


class FindingsTab(ResultTab[list[Finding]]):
    """Findings of an imported file, then what its numbers include."""

    def content(self, findings: list[Finding]) -> ComposeResult:
        with VerticalScroll():
            yield findings_in_full(findings)
            if trust := [(name, literal(text)) for name, text in trust_lines(self.record)]:
                yield Facts("What the numbers include", trust)

    def copyable(self) -> tuple[str, str]:
        return "the findings as Markdown", "\n".join(findings_as_markdown(self.record.findings))


def _lines_in_full(finding: Finding, width: int) -> Iterator[Content]:
    """Verdict, Why and Next of a finding, with a bar in the colour of its severity."""
    glyph, colour = SEVERITY[finding.severity]
    verdict = f"{glyph} {literal(finding.verdict)}"
    rows = (("", verdict, "bold"), ("Why", literal(finding.why), ""))
    for name, text, style in (*rows, ("Next", literal(finding.next), "")):
        prefix = Content.styled(f"{name:<6}" if name else "", "$foreground 60%")
        for line in hanging(prefix, text, width - 2, style):
            yield Content.styled("▌ ", colour) + line


def finding_contents(record: Record, width: int) -> Iterator[Content]:
    """Verdict, Why and Next of the first finding; verdict and Next of the others."""
    if not record.findings:
        if record.status == "running":
            yield Content.styled("Findings appear after a pass has ended.", "$foreground 80%")
            return
        yield Content.styled("✓ No findings for this run.", "$foreground 80%")
        return
    first, *others = record.findings
    yield from _lines_in_full(first, width)
    for finding in others:
        glyph, colour = SEVERITY[finding.severity]
        prefix = Content.styled(f"  {glyph} ", colour)
        yield from hanging(prefix, f"{finding.verdict} {finding.next}", width)


def figures(record: Record) -> Iterator[Pair]:
    timing, memory = record.timing, record.memory
    if timing is not None:
        width = f"{interval(timing.step.half_width)} {known_words(timing)}"
        yield "step", f"{milliseconds(timing.step.median_ms)} {width}"
        for name, spread in timing.phases.items():
            yield f"  {name}", milliseconds(spread.median_ms)
        if timing.tokens_per_second is not None:
            yield "tokens/s", f"{timing.tokens_per_second:,.0f}"
        if timing.tflops is not None:
            mfu = f"MFU {percent(timing.mfu)}"
            yield "TFLOP/s", f"{timing.tflops:.3g}, {mfu}"
        yield "first step", milliseconds(timing.first_step_ms)
    if memory is not None:
        yield "peak memory", f"{amount(memory.peak_allocated_bytes)} in {memory.peak_phase}"
        if memory.predicted_peak_bytes and memory.prediction_error is not None:
            error = signed_percent(memory.prediction_error)
            yield "  predicted", f"{amount(memory.predicted_peak_bytes)} ({error})"
    if record.numerics is not None:
        yield from _numerics(record.numerics)
    else:
        yield "parameters", f"{record.parameters:,}"


def refusal_text(oom: Oom) -> Iterator[Pair]:
    """The failed request, the memory in use, and a batch that would fit."""
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
        (fact_words(name), f"{value} ({note})" if note else value)
        for name, value, note in rows[:MAX_FACTS]
    ]


def fact_words(name: str) -> str:
    return name.replace(".", " ").replace("_", " ").removesuffix(" bytes")
