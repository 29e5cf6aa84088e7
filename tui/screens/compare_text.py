"""Texts of Compare, its smaller views, and the dialog that starts an A/B test."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import msgspec
from rich.cells import cell_len
from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Button, Input, Label, Static

from sysbench.core.compare.comparison import Comparison, Factor, describe_factors
from sysbench.core.compare.conditions import Condition
from sysbench.core.compare.difference import DifferenceSide
from sysbench.core.compare.nodes import StepChange
from sysbench.core.compare.verdict import GLYPHS, MIN_EFFECT, Verdict, describe_verdict
from sysbench.core.errors import SpecError, SysbenchError
from sysbench.core.experiments.experiment import create_experiment
from sysbench.core.experiments.experiment_report import ExperimentReport
from sysbench.core.experiments.plan import Plan, plan_of
from sysbench.core.formatting import counted, parse_ratio, shortened
from sysbench.core.machine.interpreter import require_chosen
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import Header
from sysbench.core.spec.command_line import as_typed
from sysbench.core.spec.fields import differing_keys
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.cells import literal, one_figure
from sysbench.core.tables.comparison_passages import verdict_text
from sysbench.core.tables.tree_rows import step_tables
from sysbench.core.tables.verdict_sides import factor_table
from sysbench.tui.commands.spec_arguments import changed_spec, parse_settings
from sysbench.tui.keys import give_focus
from sysbench.tui.live.pair_watch import pair_of
from sysbench.tui.run_text import plan_facts
from sysbench.tui.text import (
    amount,
    fitted_headline,
    interval,
    milliseconds,
    outcome_glyph,
    outcome_text,
    percent,
    run_headline,
)
from sysbench.tui.widgets.choice import Completer, complete_setting
from sysbench.tui.widgets.dialog import Dialog, report_errors
from sysbench.tui.widgets.drawing import Folding, Framed, Pair, hanging, pair_lines, wrap_lines
from sysbench.tui.widgets.key_bar import CommandLine
from sysbench.tui.widgets.table_view import TableView

if TYPE_CHECKING:
    from sysbench.tui.app import SysbenchApp


QUIET = "$foreground 60%"
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
    room = max(width - cell_len(how) - cell_len(what), 24)
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


MINUTES = 15.0
PAUSE_SECONDS = 0.3
"""Time without a key press before the plan is updated, which reads earlier runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An experiment to start: two resolved specs, limits, and the plan if one was shown.

    Attributes:
        pythons: Interpreters of A and B; "" for this program's.
        smallest: Smallest difference that matters, as a share.
    """

    a: RunSpec
    b: RunSpec
    pythons: tuple[str, str]
    minutes: float
    smallest: float
    plan: Plan | None = None


class MeasureScreen(Dialog[Order]):
    """Asks for limits, and for B's changes if only A is given; dismisses with the order."""

    CSS_PATH = "compare_measure.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "start", "Start", id="measure.start"),
    ]

    def __init__(self, a: Header, b: Header | None) -> None:
        super().__init__()
        self._a, self._b = a, b
        self._pause: Timer | None = None
        self._order: Order | None = None
        self._forecast: Plan | None = None

    def compose(self) -> ComposeResult:
        with Framed("A/B test", "enter starts, esc cancels", classes="dialog"):
            specs = list(self._specs())
            yield Folding(wrap_lines(lambda width: pair_lines(specs, width)), id="specs")
            if self._b is None:
                with Horizontal(classes="row"):
                    yield Label("B = A with")
                    yield Input(
                        placeholder="key=value, such as compile=default; → completes",
                        suggester=Completer(complete_setting),
                        compact=True,
                        id="changes",
                    )
            with Horizontal(classes="row"):
                yield Label("minutes")
                yield Input(f"{MINUTES:g}", compact=True, id="minutes")
                yield Label("smallest difference that matters")
                yield Input(f"{100 * MIN_EFFECT:g}%", compact=True, id="smallest")
            yield Folding(id="plan")
            yield self.complaint()
            yield CommandLine()
            with Horizontal(classes="buttons"):
                yield Button("Start", variant="primary", id="start", compact=True)
                yield Button("Cancel (esc)", id="cancel", compact=True)

    def on_mount(self) -> None:
        self._check()

    def _specs(self) -> Iterator[Pair]:
        a = msgspec.structs.asdict(self._a.spec)
        yield "A", run_headline(a)
        if self._b is not None:
            b = msgspec.structs.asdict(self._b.spec)
            words = [f"{key}={as_typed(key, b[key])}" for key in differing_keys(a, b)]
            changed = run_headline(b) if self._b.spec.is_job else f"A with {', '.join(words)}"
            yield "B", changed if words else "the same spec as A"

    def order(self) -> Order:
        """Read the order from the fields; raises SpecError, also if a run uses a Python not chosen
        here."""
        of_b = self._b or self._a
        python_a, python_b = require_chosen(self._a.python), require_chosen(of_b.python)
        spec = of_b.spec
        if self._b is None:
            spec = spec_of_side(spec, self.query_one("#changes", Input).value)
        return Order(
            a=self._a.spec,
            b=spec if spec.is_job else resolve(spec, python=python_b),
            pythons=(python_a, python_b),
            minutes=_minutes(self.query_one("#minutes", Input).value),
            smallest=_smallest(self.query_one("#smallest", Input).value),
        )

    @on(Input.Changed)
    def _edited(self) -> None:
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(PAUSE_SECONDS, self._check)

    def _check(self) -> None:
        try:
            order = self.order()
        except SpecError as error:
            self.complain(f"{error.field}: {error.allowed}")
            self._show_plan([])
            return
        self.complain("")
        self.query_one(CommandLine).show(self._command(order))
        self._plan(order)

    def complain(self, text: str) -> None:
        super().complain(text)
        self.query_one("#start", Button).disabled = bool(text)

    def _command(self, order: Order) -> str:
        words = ["sysbench-tui", "ab", self._a.id]
        if self._b is not None:
            words.append(self._b.id)
        else:
            for setting in self.query_one("#changes", Input).value.split():
                words += ["--set-b", setting]
        words += ["--max-minutes", f"{order.minutes:g}", "--smallest", f"{100 * order.smallest:g}%"]
        return shlex.join(words)

    @work(thread=True, group="measure.plan", exclusive=True)
    def _plan(self, order: Order) -> None:
        try:
            self.call_later(self._take_plan, order, plan_of(order.a, order.b, order.minutes))
        except SysbenchError as error:
            self.call_later(self._take_plan, order, None, str(error))

    def _take_plan(self, order: Order, plan: Plan | None, problem: str = "") -> None:
        self._order, self._forecast = order, plan
        self._show_plan([("plan", problem)] if plan is None else plan_facts(plan, order.minutes))

    def _show_plan(self, pairs: list[Pair]) -> None:
        self.query_one("#plan", Folding).show(wrap_lines(lambda width: pair_lines(pairs, width)))

    @on(Input.Submitted)
    @on(Button.Pressed, "#start")
    def action_start(self) -> None:
        try:
            order = self.order()
        except SpecError as error:
            self.complain(f"{error.field}: {error.allowed}")
            return
        # Store the plan only if it was made for this order.
        plan = self._forecast if self._order == order else None
        self.dismiss(replace(order, plan=plan))

    @on(Button.Pressed, "#cancel")
    def _cancel(self) -> None:
        self.dismiss(None)


def spec_of_side(spec: RunSpec, text: str) -> RunSpec:
    """Apply ``key=value key=value`` to a spec; raises SpecError, also without settings."""
    if spec.is_job:
        raise SpecError("changes", text, "none of a command: compare it with a second run of watch")
    changes = parse_settings(text.split())
    if not changes:
        raise SpecError("changes", text, "at least one key=value")
    return changed_spec(spec.settings(), changes)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 24 * 60:
        raise SpecError("minutes", text, "a number of minutes, at most 1440")
    return minutes


def _smallest(text: str) -> float:
    try:
        share = parse_ratio(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise SpecError("smallest", text, "a share such as 1% or 0.01")
    return share
