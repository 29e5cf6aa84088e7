"""Texts of Compare: the verdict, both runs, the experiment and its conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual import getters
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from sysbench.core.compare.comparison import Comparison, Factor, describe_factors
from sysbench.core.compare.conditions import Condition
from sysbench.core.compare.difference import DifferenceSide
from sysbench.core.compare.nodes import StepChange
from sysbench.core.compare.verdict import GLYPHS, Verdict, describe_verdict
from sysbench.core.experiments.experiment import create_experiment
from sysbench.core.experiments.experiment_report import ExperimentReport
from sysbench.core.formatting import counted, shortened
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import Header
from sysbench.core.tables.cells import literal, one_figure
from sysbench.core.tables.comparison_passages import verdict_text
from sysbench.core.tables.tree_rows import step_tables
from sysbench.core.tables.verdict_sides import factor_table
from sysbench.tui.keys import give_focus
from sysbench.tui.live.pair_watch import pair_of
from sysbench.tui.screens.compare_measure import MeasureScreen, Order
from sysbench.tui.text import (
    amount,
    fitted_headline,
    interval,
    milliseconds,
    outcome_glyph,
    outcome_text,
    percent,
)
from sysbench.tui.widgets.dialog import report_errors
from sysbench.tui.widgets.drawing import hanging
from sysbench.tui.widgets.table_view import TableView

if TYPE_CHECKING:
    from sysbench.tui.app import SysbenchApp


QUIET = "$foreground 60%"
MIN_SETTINGS = 24
"""Columns that A's settings have at least beside those of B."""
MAX_NAMED = 3
"""Settings that are named where their values do not fit; of more there is a count."""
STYLES = dict.fromkeys(GLYPHS, "bold") | {"faster": "bold $success", "slower": "bold $warning"}
"""Style of each verdict; only faster and slower have a colour."""
ENDING_GLYPHS = {"decided": "✓", "failed": "✗", "killed": "✗"}
WIDE = 100
"""From this width on a run id is not shortened."""


def verdict_contents(verdict: Verdict, width: int) -> list[Content]:
    text = describe_verdict(verdict)
    style = STYLES[verdict.verdict]
    lines = hanging(Content(""), literal(f"{text.glyph} {text.headline}"), width, style)
    for reason in text.reasons:
        lines += hanging(Content("  "), literal(reason), width, QUIET)
    return lines


def side_line(letter: str, record: Record, width: int) -> Content:
    name = record.id if width >= WIDE else shortened(record.id, max(12, width - 56))
    line = Content.assemble((f"{letter} ", "bold $accent"), literal(name))
    line += Content("  ") + _median(record) + Content.styled(f" {_of(record)}".rstrip(), QUIET)
    if record.memory is not None:
        line += Content.assemble(("  peak ", QUIET), amount(record.memory.peak_allocated_bytes))
    return line


def side_lines(a: Record, b: Record, width: int, height: int) -> Content:
    """Both runs on two lines, or in brief on one."""
    if height < 2:
        return brief_sides(a, b)
    return Content("\n").join([side_line("A", a, width), side_line("B", b, width)])


def _median(record: Record) -> Content:
    timing = record.timing
    if not record.spec:
        kernels = DifferenceSide(record).kernels
        if kernels:
            return Content.styled(f"traced {kernels.whole} {milliseconds(kernels.step_ms)}", QUIET)
        return Content.styled("" if record.memory else "no trace, no memory", QUIET)
    if timing is None:
        ended = "" if record.status == "running" else f"{outcome_text(record.status)}, "
        return Content.styled(f"{outcome_glyph(record.status)} {ended}no timing", QUIET)
    width = interval(timing.step.half_width)
    return Content.assemble((milliseconds(timing.step.median_ms), "bold"), f" {width}")


def _of(record: Record) -> str:
    timing = record.timing
    if timing is None:
        return ""
    counting = sum(row.counts for row in timing.rounds)
    among = timing.interval_of == "rounds"
    return f"between {counting} processes" if among else "inside 1 process"


def brief_sides(a: Record, b: Record) -> Content:
    line, scopes = Content(""), [_of(a), _of(b)]
    for letter, record, of in zip("AB", (a, b), scopes, strict=True):
        line += Content.assemble((f"{letter} ", "bold $accent"), _median(record))
        # A common scope is shown once, after B.
        if of and (letter == "B" or len(set(scopes)) > 1):
            line += Content.styled(f" {of}", QUIET)
        if record.memory is not None and not record.spec:
            line += Content.styled(f" peak {amount(record.memory.peak_allocated_bytes)}", QUIET)
        line += Content("   ")
    return line


def factor_words(factors: Sequence[Factor]) -> str:
    """``attention: naive → sdpa · batch: 1 → 2``."""
    return " · ".join(
        f"{factor.name}: {one_figure(factor.name, factor.a)} → {one_figure(factor.name, factor.b)}"
        for factor in factors
    )


def subject_line(a: Record, factors: Sequence[Factor], width: int) -> Content:
    """A's settings, as many as fit, and those in which B differs."""
    if not a.spec:
        return Content.styled("A file has no settings and no timing pass", QUIET)
    how, what = "  B has ", literal(factor_words(factors))
    if not factors:
        how, what = "  B is the same spec", ""
    elif cell_len(how) + cell_len(what) > width - MIN_SETTINGS:
        how, what = "  B differs in ", counted(len(factors), "setting")
        if len(factors) <= MAX_NAMED:
            what = literal(", ".join(factor.name for factor in factors))
    room = max(width - cell_len(how) - cell_len(what), MIN_SETTINGS)
    settings = fitted_headline(a.spec, room, [factor.name for factor in factors])
    return Content.assemble((settings, "bold"), (how, QUIET), what)


def ended_line(report: ExperimentReport, *, can_go_on: bool) -> Content:
    glyph = ENDING_GLYPHS.get(report.ending, "■")
    line = Content(f"{glyph} A/B: {literal(report.detail)}")
    return line + Content.styled("  g: resume", "$accent") if can_go_on else line


def condition_lines(conditions: Sequence[Condition], width: int) -> Iterator[Content]:
    """One condition per line; ``!`` marks warnings."""
    names = max((len(row.name) for row in conditions), default=0)
    for row in conditions:
        sides = f"A {row.a}, B {row.b}: " if row.a or row.b else ""
        prefix = Content.assemble(
            ("! " if row.warns else "  ", "bold $warning"), (f"{row.name:<{names}}  ", QUIET)
        )
        yield from hanging(prefix, literal(f"{sides}{row.text}"), width)


def rounds_words(counting: int, left_out: int) -> str:
    return counted(counting, "round") + (f", {left_out} excluded" if left_out else "")


def spread_words(verdict: Verdict) -> str:
    return "" if verdict.spread is None else f"spread between runs ±{percent(verdict.spread, 2)}"


class DiffersView(Vertical):
    table = getters.query_one(TableView)

    def compose(self) -> ComposeResult:
        yield Static(id="causes", markup=False)
        yield TableView(title="Differs", flexible="B")

    def show(self, comparison: Comparison) -> None:
        self.table.show(factor_table(comparison.factors, comparison.procedure))
        words = describe_factors(comparison.factors)
        if comparison.a == comparison.b:
            words = verdict_text(comparison).headline
        elif comparison.of_files:
            words = "A file has no settings to compare."
        self.query_one("#causes", Static).update(Content.styled(literal(words), QUIET))

    def start_focus(self) -> None:
        give_focus(self.table)


class StepsView(Vertical):
    table = getters.query_one("#each", TableView)

    def compose(self) -> ComposeResult:
        yield TableView(title="Medians of each side, not tested", id="medians")
        yield TableView(title="Marked steps", id="each")

    def show(self, steps: Sequence[StepChange]) -> None:
        tables = step_tables(steps)
        if tables:
            for name, table in zip(("medians", "each"), tables, strict=True):
                self.query_one(f"#{name}", TableView).show(table)

    def start_focus(self) -> None:
        give_focus(self.table)


def ask_to_measure(app: SysbenchApp, a: Header, b: Header | None) -> None:
    """Ask for limits, start an A/B test in its own process, and show it; without B ask for changes
    of A."""

    def start(order: Order | None) -> None:
        if order is None:
            return
        with report_errors(app, "Not started"):
            directory = create_experiment(
                order.a,
                order.b,
                smallest=order.smallest,
                max_minutes=order.minutes,
                plan=order.plan,
                pythons=order.pythons,
            )
            directory.start()
            app.open_comparison(pair_of(directory))

    if not app.is_busy():
        app.push_screen(MeasureScreen(a, b), start)
