"""Dialog before an experiment: its forecast and its limits."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import msgspec
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Button, Input, Label, Static

from sysbench.core.compare.verdict import MIN_EFFECT
from sysbench.core.errors import SpecError, SysbenchError
from sysbench.core.experiments.plan import Plan, plan_of
from sysbench.core.formatting import parse_ratio
from sysbench.core.machine.interpreter import require_chosen
from sysbench.core.runs.run_directory import Header
from sysbench.core.spec.command_line import as_typed
from sysbench.core.spec.fields import differing_keys, field_named
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.plan_text import plan_facts
from sysbench.tui.text import run_headline
from sysbench.tui.widgets.choice import SettingSuggester
from sysbench.tui.widgets.dialog import Dialog, Pair, dialog_room, pair_lines
from sysbench.tui.widgets.key_bar import CommandLine

MINUTES = 15.0
PAUSE_SECONDS = 0.3
"""Time without a key after which the forecast is updated: it reads earlier runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An experiment to be started: two resolved specs, its limits, the forecast that was shown.

    Attributes:
        pythons: Interpreters of the two sides; empty is this program's.
    """

    a: RunSpec
    b: RunSpec
    pythons: tuple[str, str]
    minutes: float
    smallest: float
    plan: Plan | None = None


class MeasureScreen(Dialog[Order]):
    """Asks for the limits, and without a second spec for its changes; dismisses with the order."""

    CSS_PATH = "compare_measure.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel", id="dialog.cancel"),
        Binding("ctrl+r", "start", "Start", id="measure.start"),
    ]

    @dataclass
    class Planned(Message):
        """The forecast is made, or the reason why there is none."""

        order: Order
        plan: Plan | None
        problem: str = ""

    def __init__(self, a: Header, b: Header | None) -> None:
        """
        Args:
            a: Of the run whose spec is judged against.
            b: Of that whose spec is judged; None asks for the keys in which A's shall differ.
        """
        super().__init__()
        self._a, self._b = a, b
        self._pause: Timer | None = None
        self._order: Order | None = None
        self._forecast: Plan | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Measure both in turn"
            dialog.border_subtitle = "enter starts, esc cancels"
            yield Static(id="specs", markup=False)
            if self._b is None:
                with Horizontal(classes="row"):
                    yield Label("B is A with")
                    yield Input(
                        placeholder="key=value, such as compile=default; → completes",
                        suggester=SettingSuggester(),
                        compact=True,
                        id="changes",
                    )
            with Horizontal(classes="row"):
                yield Label("minutes")
                yield Input(f"{MINUTES:g}", compact=True, id="minutes")
                yield Label("smallest difference that matters")
                yield Input(f"{100 * MIN_EFFECT:g}%", compact=True, id="smallest")
            yield Static(id="plan", markup=False)
            yield Static(classes="complaint", markup=False)
            yield CommandLine()
            with Horizontal(classes="buttons"):
                yield Button("Start", variant="primary", id="start", compact=True)
                yield Button("Cancel (esc)", id="cancel", compact=True)

    def on_mount(self) -> None:
        width = dialog_room(self.app.size.width)
        self.query_one("#specs", Static).update(
            Content("\n").join(pair_lines(list(self._specs()), width))
        )
        self._check()

    def _specs(self) -> Iterator[Pair]:
        a = msgspec.structs.asdict(self._a.spec)
        yield "A", run_headline(a)
        if self._b is not None:
            b = msgspec.structs.asdict(self._b.spec)
            words = [f"{key}={as_typed(key, b[key])}" for key in differing_keys(a, b)]
            yield "B", f"A with {', '.join(words)}" if words else "the same spec as A"

    def order(self) -> Order:
        """The order as it is typed.

        Raises:
            SpecError: A field does not hold what it must, or a run names a Python that nobody
                chose here.
        """
        of_b = self._b or self._a
        python_a, python_b = require_chosen(self._a.python), require_chosen(of_b.python)
        spec = of_b.spec
        if self._b is None:
            spec = spec_of_side(spec, self.query_one("#changes", Input).value)
        return Order(
            a=self._a.spec,
            b=resolve(spec, python=python_b),
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
        """Check what is typed, and make its forecast."""
        try:
            order = self.order()
        except SpecError as error:
            self._complain(f"{error.field}: {error.allowed}")
            self.query_one("#plan", Static).update("")
            return
        self._complain("")
        self.query_one(CommandLine).show(self._command(order))
        self._plan(order)

    def _complain(self, text: str) -> None:
        label = self.query_one(".complaint", Static)
        label.update(f"✗ {text}" if text else "")
        label.display = bool(text)
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
        """Forecast in a thread: it reads the records of earlier runs."""
        try:
            plan = plan_of(order.a, order.b, order.minutes)
        except SysbenchError as error:
            self.post_message(self.Planned(order, None, str(error)))
        else:
            self.post_message(self.Planned(order, plan))

    def on_measure_screen_planned(self, message: Planned) -> None:
        width = dialog_room(self.app.size.width)
        self._order, self._forecast = message.order, message.plan
        pairs = [("plan", message.problem)]
        if message.plan is not None:
            pairs = plan_facts(message.plan, message.order.minutes)
        self.query_one("#plan", Static).update(Content("\n").join(pair_lines(pairs, width)))

    @on(Input.Submitted)
    @on(Button.Pressed, "#start")
    def action_start(self) -> None:
        try:
            order = self.order()
        except SpecError as error:
            self._complain(f"{error.field}: {error.allowed}")
            return
        # The forecast is kept with the experiment if it is the one of this order.
        shown = self._forecast if self._order == order else None
        self.dismiss(replace(order, plan=shown))

    @on(Button.Pressed, "#cancel")
    def _cancel(self) -> None:
        self.dismiss(None)


def spec_of_side(spec: RunSpec, text: str) -> RunSpec:
    """The spec with the settings of ``key=value key=value``.

    Raises:
        SpecError: Nothing is changed, or a key or a value is not allowed.
    """
    changes: dict[str, object] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals:
            raise SpecError("changes", word, "key=value, such as compile=default")
        field = field_named(key, value)
        changes[field.name] = field.parse(value)
    if not changes:
        raise SpecError("changes", text, "at least one key=value in which B differs")
    return spec.changed(**changes)


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
