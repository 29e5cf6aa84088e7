"""The form of a spec: one row a field, checked as you type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Checkbox, Input, Label, Select, Static

from ...core.errors import SpecError
from ...core.presets import CUSTOM, model_presets
from ...core.spec import DIMENSION_NAMES, PASSES, PassName, RunSpec
from ...core.spec_fields import Field, field_named
from ..numerals import short_count
from .choice import Choice

COMPILE_DETAILS = (
    "compile_backend",
    "compile_scope",
    "compile_fullgraph",
    "compile_dynamic",
    "compile_cache",
)
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("model", *DIMENSION_NAMES, "batch", "context", "precision", "attention", "step")),
    ("", ("optimizer", "clip", "compile", *COMPILE_DETAILS, "passes")),
    ("when to stop", ("warmup", "steps", "until", "max_steps", "max_seconds", "sync")),
    ("machine", ("device", "threads", "seed", "memory_limit")),
)
TRAIN_ONLY = ("optimizer", "clip")
PASSES_HELP = "each pass is a fresh process: timing is bare, trace and memory are instrumented"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What the form says now: a spec and passes, or why there is none by field."""

    spec: RunSpec | None
    passes: list[PassName]
    errors: dict[str, str]


def field_text(name: str, value: Any) -> str:
    """The value of a field as a person would type it; parses back to the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if name == "until":
        return f"{value * 100:g}%"
    if name == "memory_limit" and value:
        for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
            if value % size == 0:
                return f"{value // size}{unit}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _control(field: Field, value: str) -> Choice | Input:
    if field.name == "model":
        choices = [
            (f"{name}  {short_count(preset.dimensions.parameters)}", name)
            for name, preset in model_presets().items()
        ]
        return Choice([*choices, ("custom dimensions", CUSTOM)], value, id="field-model")
    if field.choices:
        return Choice([(name, name) for name in field.choices], value, id=f"field-{field.name}")
    return Input(value, compact=True, id=f"field-{field.name}", select_on_focus=True)


class FieldRow(Vertical):
    """Label and control on a line; the complaint, when there is one, under it."""

    def __init__(self, name: str, control: Choice | Input | Horizontal, help: str) -> None:
        super().__init__(id=f"row-{name}")
        self.field = name
        self.help = help
        self.control = control
        self.tooltip = help

    def compose(self) -> ComposeResult:
        with Horizontal(classes="line"):
            yield Label(self.field.removeprefix("compile_").replace("_", " "), markup=False)
            yield self.control
        yield Static(classes="complaint", markup=False)

    def complain(self, text: str) -> None:
        """Show why the value is refused; an empty text means it is fine."""
        complaint = self.query_one(".complaint", Static)
        complaint.update(f"✗ {text}" if text else "")
        complaint.display = bool(text)
        self.set_class(bool(text), "-refused")


class SpecForm(VerticalScroll, can_focus=False):
    """All fields of a spec and the passes. Posts `Edited` when anything changes."""

    @dataclass
    class Edited(Message):
        """The form says something else now."""

        filled: Filled

    def __init__(self, spec: RunSpec) -> None:
        super().__init__()
        self._initial = spec
        self._due = False

    def compose(self) -> ComposeResult:
        for title, names in GROUPS:
            if title:
                yield Static(title, classes="group")
            for name in names:
                if name == "passes":
                    boxes = [Checkbox(one, value=True, compact=True, name=one) for one in PASSES]
                    yield FieldRow("passes", Horizontal(*boxes), PASSES_HELP)
                else:
                    field = field_named(name)
                    value = field_text(name, getattr(self._initial, name))
                    yield FieldRow(name, _control(field, value), field.help)

    def on_mount(self) -> None:
        self._changed()

    def fill(self, spec: RunSpec, passes: Sequence[PassName]) -> None:
        """Show this spec and these passes."""
        for name in spec.__struct_fields__:
            control = self.query_one(f"#field-{name}")
            assert isinstance(control, Choice | Input)
            control.value = field_text(name, getattr(spec, name))
        for box in self.query(Checkbox):
            box.value = box.name in passes

    def filled(self) -> Filled:
        """Parse every field that counts; the rest keep their defaults."""
        texts = self._texts()
        errors: dict[str, str] = {}
        values: dict[str, Any] = {}
        for name, text in texts.items():
            try:
                values[name] = field_named(name).parse(text)
            except SpecError as error:
                errors[name] = error.allowed
        spec = None
        if not errors:
            try:
                spec = RunSpec(**values)
            except SpecError as error:
                errors[error.field] = error.allowed
        ticked = {box.name for box in self.query(Checkbox) if box.value}
        passes = [name for name in PASSES if name in ticked]
        if not passes:
            errors["passes"] = "tick at least one"
        return Filled(spec=spec, passes=passes, errors=errors)

    def _texts(self) -> dict[str, str]:
        """The texts of the fields in use: hidden and disabled ones do not decide anything."""
        texts = {}
        for row in self.query(FieldRow):
            if isinstance(row.control, Choice | Input) and row.display and not row.disabled:
                texts[row.field] = str(row.control.value)
        if texts["model"] == CUSTOM:
            del texts["model"]
        return texts

    @on(Input.Changed)
    @on(Select.Changed)
    @on(Checkbox.Changed)
    def _changed(self) -> None:
        """Settle once for all the changes that arrive together."""
        if not self._due:
            self._due = True
            self.call_after_refresh(self._settle)

    def _settle(self) -> None:
        """Show the rows that count, then the complaints, then tell."""
        self._due = False
        value = {
            row.field: row.control.value
            for row in self.query(FieldRow)
            if isinstance(row.control, Choice | Input)
        }
        for name in DIMENSION_NAMES:
            self._row(name).display = value["model"] == CUSTOM
        for name in COMPILE_DETAILS:
            self._row(name).display = value["compile"] != "off"
        for name in TRAIN_ONLY:
            self._row(name).disabled = value["step"] != "train"
        filled = self.filled()
        for row in self.query(FieldRow):
            row.complain(filled.errors.get(row.field, ""))
        self.post_message(self.Edited(filled))

    def _row(self, name: str) -> FieldRow:
        return self.query_one(f"#row-{name}", FieldRow)
