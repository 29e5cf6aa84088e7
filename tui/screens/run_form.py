"""The form of a spec: one row per field, checked while typing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import Paste
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from sysbench.core.formatting import counted
from sysbench.core.machine.peaks import known_cards
from sysbench.core.record.blocks import DEFAULT_PASSES, PassName
from sysbench.core.spec.choices import OWN_ATTENTION
from sysbench.core.spec.fields import Field, field_named, group_keys, unused_keys
from sysbench.core.spec.models import CUSTOM, model_presets, note_of, parameters_of_models
from sysbench.core.spec.own_model import WAYS, is_own, names_code
from sysbench.core.spec.spec import DIMENSION_NAMES, RunSpec
from sysbench.core.spec.world import World
from sysbench.tui.keys import give_focus
from sysbench.tui.screens.run_filled import (
    CARD,
    HERE,
    ROUNDS,
    WORLD,
    FormContent,
    FormState,
    field_texts,
    is_command,
    parse_form,
)
from sysbench.tui.text import amount, short_count
from sysbench.tui.widgets.choice import Choice, Completer, Tick, complete_path

UPDATE = group_keys("update")
Group = tuple[str, tuple[str, ...]]
"""A heading, which may be empty, and its fields."""

FIRST: tuple[Group, ...] = (
    ("", (*group_keys("work"), CARD, WORLD)),
    ("", (*UPDATE, "passes")),
)
LATER: tuple[Group, ...] = (
    ("when to stop", (*group_keys("stop"), ROUNDS)),
    ("machine", group_keys("machine")),
)
"""Rows that are mounted after the first frame."""

YOURS, CODE = "yours", "code"
"""Value of the choice "a model of yours", and the row of its code."""
ARGUMENTS = "arguments"
"""A model that takes arguments of its own: the user's, or a published one."""

ON_DEMAND = {
    CUSTOM: ("model", DIMENSION_NAMES),
    ARGUMENTS: ("model", ("model_args",)),
    YOURS: ("model", (CODE,)),
    "compile": ("compile", group_keys("compile")),
}
"""Rows that appear below another field for some of its values."""

CODE_HELP = f"press enter to choose a recent model or a file, or type {WAYS}"

THIS_MACHINE = ("this machine", HERE)
ZERO_COLUMN = 3
"""Column of the explanation of a 0, after the 0 and the cursor."""

CARD_HELP = "Predict for this GPU (the run itself still uses this machine)."

WORLD_HELP = "Predict each rank of a cluster, such as dp=8,tp=4; the run ignores it."

ROUNDS_HELP = "time in this many fresh processes; the interval is then between processes"

PASSES_HELP = "each pass is a fresh process; only timing runs without instrumentation"

LABELS = {"until": "target ±", "card": "predict for"}
"""Labels of rows whose field has another name."""


def _card_choices() -> list[tuple[str, str]]:
    cards = [(f"{key}  {amount(known.memory_bytes)}", key) for key, known in known_cards().items()]
    return [THIS_MACHINE, *cards]


def _control(field: Field, text: str) -> Choice | Input:
    name = f"field-{field.name}"
    if field.name == "model":
        choices = [
            (f"{model}  {short_count(parameters)}", model)
            for model, parameters in parameters_of_models().items()
        ]
        choices += [("a model of yours", YOURS), ("custom dimensions", CUSTOM)]
        return Choice("model", choices, _choice_of(text), id=name)
    if field.choices:
        return Choice(field.name, [(choice, choice) for choice in field.choices], text, id=name)
    return _text_field(text, name, field.zero)


class TextField(Input):
    """A text field; leaves a pasted command to the screen."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"text-field--zero"}

    zero = ""

    def render_line(self, y: int) -> Strip:
        line = super().render_line(y)
        if y or self.value != "0" or not self.zero:
            return line
        words = Strip([Segment(self.zero, self.get_component_rich_style("text-field--zero"))])
        parts = line.crop(0, ZERO_COLUMN), words, line.crop(ZERO_COLUMN + words.cell_length)
        return Strip.join(parts).crop(0, line.cell_length)

    def on_paste(self, event: Paste) -> None:
        if is_command(event.text):
            event.prevent_default()


def _text_field(text: str, id: str, zero: str = "") -> TextField:
    field = TextField(text, compact=True, id=id, select_on_focus=True)
    field.zero = zero
    return field


def world_help(world: World | None) -> str:
    if world is None:
        return WORLD_HELP
    stages = f", {counted(world.pp, 'stage')}" if world.pp > 1 else ""
    return f"{counted(world.size, 'rank')}{stages}; the run itself uses one device."


def _choice_of(model: str) -> str:
    return YOURS if names_code(model) else model


class FieldRow(Horizontal):
    def __init__(self, name: str, control: Widget, help: str) -> None:
        super().__init__(id=f"row-{name}")
        self.field = name
        self.help = help
        self.control = control
        self.complaint: Static | None = None
        self.tooltip = help

    def compose(self) -> ComposeResult:
        words = self.field.removeprefix("compile_").replace("_", " ")
        yield Label(LABELS.get(self.field, words), markup=False)
        yield self.control


def _as_code(text: str) -> str:
    """Mark the text as a user model, even if it is incomplete."""
    return text if names_code(text) else f"{text}:"


class SpecForm(VerticalScroll, can_focus=False):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", "Previous field", show=False),
        Binding("down", "app.focus_next", "Next field", show=False),
    ]

    @dataclass
    class Edited(Message):
        filled: FormContent

    def __init__(self, state: FormState) -> None:
        super().__init__()
        self.texts = dict(state.texts)
        self._first_passes = state.passes
        self._due = False
        self.is_read = False
        """Whether `latest` includes every edit."""
        self.latest: FormContent | None = None

    def compose(self) -> ComposeResult:
        yield from self._rows(*FIRST)

    def _rows(self, *groups: Group) -> Iterator[Widget]:
        for title, names in groups:
            if title:
                yield Static(title, classes="group")
            yield from map(self._row, names)

    def _row(self, name: str) -> FieldRow:
        if name == "passes":
            ticks = (Tick(label, label in self._first_passes) for label in DEFAULT_PASSES)
            return FieldRow(name, Horizontal(*ticks), PASSES_HELP)
        if name == CARD:
            card = Choice(CARD, [THIS_MACHINE], HERE, id=f"field-{CARD}")
            return FieldRow(name, card, CARD_HELP)
        if name in (ROUNDS, WORLD):
            help = ROUNDS_HELP if name == ROUNDS else WORLD_HELP
            return FieldRow(name, _text_field(self.texts[name], f"field-{name}"), help)
        if name == CODE:
            code = TextField(
                self._code, suggester=Completer(complete_path), compact=True, id=f"field-{CODE}"
            )
            return FieldRow(name, code, CODE_HELP)
        field = field_named(name)
        return FieldRow(name, _control(field, self.texts[name]), field.help)

    def on_mount(self) -> None:
        self._later()

    def focus_row(self, name: str) -> None:
        control = next((part for part in self.query(f"#row-{name} *") if part.focusable), None)
        if control is not None:
            give_focus(control)

    def fill(
        self,
        spec: RunSpec,
        passes: Sequence[PassName],
        repeat: int = 1,
        card: str | None = None,
        world: str | None = None,
    ) -> None:
        texts = field_texts(
            spec,
            self.texts[CARD] if card is None else card,
            repeat,
            self.texts[WORLD] if world is None else world,
        )
        self.state = FormState(texts=texts, passes=tuple(passes))

    @property
    def state(self) -> FormState:
        return FormState(texts=dict(self.texts), passes=self._ticked)

    @state.setter
    def state(self, state: FormState) -> None:
        self.texts = dict(state.texts)
        shown = self.texts | {"model": _choice_of(self.texts["model"]), CODE: self._code}
        for row in self.query(FieldRow):
            if isinstance(row.control, Choice | Input):
                row.control.value = shown[row.field]
        for tick in self.query(Tick):
            tick.value = tick.label in state.passes
        self._later()

    @property
    def _ticked(self) -> tuple[str, ...]:
        return tuple(tick.label for tick in self.query(Tick) if tick.value)

    @on(Input.Changed)
    @on(Choice.Changed)
    def _edited(self, event: Input.Changed | Choice.Changed) -> None:
        control = event.input if isinstance(event, Input.Changed) else event.choice
        name = str(control.id).removeprefix("field-")
        before = self.texts["model"]
        if name == CODE:
            if names_code(before):
                self.texts["model"] = _as_code(control.value)
        elif name == "model" and control.value == YOURS:
            if not names_code(before):
                code = self.query(f"#field-{CODE}").results(Input)
                self.texts["model"] = _as_code(next((box.value for box in code), ""))
        else:
            self.texts[name] = control.value
            if name == "model" and control.value != before:
                self._clear_arguments()
            if name == "model" and control.value in model_presets():
                self._take_dimensions(control.value)
        if is_own(self.texts["model"]) != is_own(before):
            self._take_attention()
        self._later()

    @on(Input.Submitted, f"#field-{CODE}")
    def _pick_code(self, event: Input.Submitted) -> None:
        from sysbench.tui.screens.pick_model_dialog import PickModelScreen  # lazy: first frame

        box = event.input

        def picked(model: str | None) -> None:
            if model is not None:
                box.value = model
                box.cursor_position = len(model)

        self.app.push_screen(PickModelScreen(), picked)

    @property
    def _code(self) -> str:
        model = self.texts["model"]
        return model.removesuffix(":") if names_code(model) else ""

    def _take_dimensions(self, model: str) -> None:
        size = model_presets()[model].dimensions
        self.texts |= {name: str(getattr(size, name)) for name in DIMENSION_NAMES}
        for name in DIMENSION_NAMES:
            for box in self.query(f"#field-{name}").results(Input):
                box.value = self.texts[name]

    def _clear_arguments(self) -> None:
        """Drop the arguments: another model has others."""
        self.texts["model_args"] = ""
        for box in self.query("#field-model_args").results(Input):
            box.value = ""

    def _take_attention(self) -> None:
        is_of_model = is_own(self.texts["model"])
        self.texts["attention"] = OWN_ATTENTION if is_of_model else RunSpec().attention
        self.query_one("#field-attention", Choice).value = self.texts["attention"]

    @on(Tick.Changed)
    def _later(self) -> None:
        """Schedule one update for all edits that arrive together."""
        if not self._due:
            self._due = True
            self.is_read = False
            self.call_after_refresh(self._update)

    async def _update(self) -> None:
        """Mount the used rows, show the errors, then post `Edited`."""
        self._due = False
        rows = self._by_field()
        if ROUNDS not in rows:
            for card in self.query(f"#field-{CARD}").results(Choice):
                card.choices = _card_choices()
            await self.mount_all(self._rows(*LATER))
            rows = self._by_field()
        if not rows.keys() >= {*(owner for owner, _ in ON_DEMAND.values()), *UPDATE}:
            return  # the app exits and has already removed rows
        wanted = {
            CUSTOM: self.texts["model"] == CUSTOM,
            ARGUMENTS: is_own(self.texts["model"]),
            YOURS: names_code(self.texts["model"]),
            "compile": self.texts["compile"] != "off",
        }
        for value, (owner, names) in ON_DEMAND.items():
            if wanted[value] and names[0] not in rows:
                await self.mount_all(map(self._row, names), after=rows[owner])
                rows |= self._by_field()
            for name in rows.keys() & set(names):
                rows[name].display = wanted[value]
        model = self.texts["model"]
        rows["model"].help = note_of(model) or field_named("model").help
        unused = unused_keys(self.texts)
        for name in UPDATE:
            rows[name].disabled = name in unused
        ticked = self._ticked
        passes = [name for name in DEFAULT_PASSES if name in ticked]
        filled = parse_form(self.texts, passes)
        rows[WORLD].help = world_help(filled.world)
        for row in rows.values():
            await self._complain(row, filled.errors.get(row.field, ""))
        self.latest = filled
        self.post_message(self.Edited(filled))
        self.is_read = not self._due

    async def _complain(self, row: FieldRow, text: str) -> None:
        if row.complaint is None:
            if not text:
                return
            row.complaint = Static(id=f"why-{row.field}", classes="complaint", markup=False)
            await self.mount(row.complaint, after=row)
        row.set_class(bool(text), "-refused")
        row.complaint.update(f"✗ {text}")
        row.complaint.display = bool(text)

    def _by_field(self) -> dict[str, FieldRow]:
        return {row.field: row for row in self.query_children(FieldRow)}
