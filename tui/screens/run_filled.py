"""What stands in the form of a spec: the texts of its fields, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sysbench.core.errors import SpecError
from sysbench.core.formatting import parse_ratio
from sysbench.core.record.blocks import PassName
from sysbench.core.spec.command_line import as_typed
from sysbench.core.spec.fields import field_named, unused_keys
from sysbench.core.spec.models import CUSTOM
from sysbench.core.spec.own_model import is_own, model_setting
from sysbench.core.spec.passes import check_repeat
from sysbench.core.spec.spec import DIMENSION_NAMES, PLACE_NAMES, RunSpec

CARD, HERE = "card", ""
"""The row of the card to predict for, and its value for this machine."""

ROUNDS, ONE = "rounds", "1"
"""The row of the rounds of the timing pass, and its text for one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The form's present content: a spec and passes, or by field why there is none.

    Attributes:
        card: Key of the card to predict for; empty for this machine.
        repeat: Rounds of the timing pass.
    """

    spec: RunSpec | None
    passes: list[PassName]
    errors: dict[str, str]
    card: str = HERE
    repeat: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FormState:
    """What stands in the form, valid or not; `SpecForm.state` takes it and sets it."""

    texts: dict[str, str]
    passes: tuple[str, ...]
    card: str
    rounds: str


def field_text(name: str, value: Any) -> str:
    """The value of a field as a person would type it; parses back to the same value."""
    if name == "until" and parse_ratio(percent := f"{value * 100:g}%") == value:
        return percent
    return as_typed(name, value).removesuffix(".0")


def field_texts(spec: RunSpec) -> dict[str, str]:
    """The texts of all fields of a spec; of a model of the user's as it was typed."""
    texts = {name: field_text(name, getattr(spec, name)) for name in spec.__struct_fields__}
    if spec.is_own:
        found = dict.fromkeys(PLACE_NAMES, "")
        model = model_setting(spec.model, spec.model_file)
        texts |= {"model": model, "workload": RunSpec().workload, **found}
    return texts


def fields_in_use(texts: dict[str, str]) -> list[str]:
    """The fields that decide the spec: others keep their defaults, whatever their texts."""
    custom = texts["model"] == CUSTOM
    unused = unused_keys(texts) | ({"model"} if custom else set(DIMENSION_NAMES))
    if is_own(texts["model"]) and _is_default(texts, "attention"):
        unused.add("attention")  # nobody chose it: the model has its own
    return [name for name in texts if name not in unused]


def _is_default(texts: dict[str, str], name: str) -> bool:
    return texts[name] == field_text(name, getattr(RunSpec(), name))


def checked(
    texts: dict[str, str], passes: list[PassName], card: str = HERE, rounds: str = ONE
) -> Filled:
    """Parse every field in use by itself, then all of them together."""
    errors: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name in fields_in_use(texts):
        try:
            values[name] = field_named(name).parse(texts[name])
        except SpecError as error:
            errors[name] = error.allowed
    spec = None
    if not errors:
        try:
            spec = RunSpec(**values)
        except SpecError as error:
            errors[error.field] = error.allowed
    if not passes:
        errors["passes"] = "tick at least one"
    repeat = int(rounds) if rounds.strip().isdecimal() else 0
    try:
        check_repeat(repeat, passes or ["timing"])
    except SpecError as error:
        errors[ROUNDS] = error.allowed
    return Filled(spec=spec, passes=passes, errors=errors, card=card, repeat=repeat)
