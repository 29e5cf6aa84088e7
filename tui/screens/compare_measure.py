"""Dialog that asks for the limits of an A/B test and shows its plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import msgspec
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.timer import Timer
from textual.widgets import Button, Input, Label

from sysbench.core.compare.verdict import MIN_EFFECT
from sysbench.core.errors import SpecError, SysbenchError
from sysbench.core.experiments.plan import Plan, plan_of
from sysbench.core.formatting import parse_ratio
from sysbench.core.machine.interpreter import require_chosen
from sysbench.core.runs.run_directory import Header
from sysbench.core.spec.command_line import as_typed
from sysbench.core.spec.fields import differing_keys
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.commands.spec_arguments import changed_spec, parse_settings
from sysbench.tui.run_text import plan_facts
from sysbench.tui.text import run_headline
from sysbench.tui.widgets.choice import Completer, complete_setting
from sysbench.tui.widgets.dialog import Dialog
from sysbench.tui.widgets.drawing import Folding, Framed, Pair, pair_lines, wrap_lines
from sysbench.tui.widgets.key_bar import CommandLine

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
