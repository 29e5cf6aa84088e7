"""Content of the Run form: texts of its fields, the spec they make, a pasted command."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from sysbench.core.errors import SpecError, SysbenchError
from sysbench.core.formatting import parse_ratio
from sysbench.core.machine.peaks import known_cards
from sysbench.core.record.blocks import DEFAULT_PASSES, PassName
from sysbench.core.runs.run_directory import newest_run
from sysbench.core.spec.command_line import as_typed
from sysbench.core.spec.fields import FIELDS, field_named, unused_keys
from sysbench.core.spec.models import CUSTOM
from sysbench.core.spec.own_model import ARGUMENT, OWN_MODEL, model_setting
from sysbench.core.spec.passes import check_repeat
from sysbench.core.spec.spec import DIMENSION_NAMES, PLACE_NAMES, RunSpec
from sysbench.core.spec.world import World, check_world
from sysbench.tui.commands.arguments import WORDS
from sysbench.tui.commands.spec_arguments import (
    SETTING,
    add_spec_arguments,
    asked_spec,
    chosen_passes,
    is_model,
)

CARD, HERE = "card", ""
"""Row of the GPU to predict for, and its value for this machine."""

WORLD = "world"
"""Row of the ranks to predict; empty for one device."""

ROUNDS = "rounds"
"""Row of the rounds of the timing pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormContent:
    """The form as a spec and passes, or errors by field.

    Attributes:
        card: Key of the GPU to predict for; empty for this machine.
        world: Ranks to predict; None for one device.
    """

    spec: RunSpec | None
    passes: list[PassName]
    errors: dict[str, str]
    card: str = HERE
    world: World | None = None
    repeat: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FormState:
    texts: dict[str, str]
    passes: tuple[str, ...]


def field_text(name: str, value: Any) -> str:
    """Format a value as a user would type it; it parses back to the same value."""
    if name == "until" and parse_ratio(percent := f"{value * 100:g}%") == value:
        return percent
    return as_typed(name, value).removesuffix(".0")


def field_texts(
    spec: RunSpec, card: str = HERE, rounds: int = 1, world: str = ""
) -> dict[str, str]:
    """The texts of all rows by name, those of the card, world and rounds included."""
    texts = {name: field_text(name, getattr(spec, name)) for name in spec.__struct_fields__}
    if spec.is_own:
        places = dict.fromkeys(PLACE_NAMES, "")
        model = model_setting(spec.model, spec.model_file)
        texts |= {"model": model, "workload": RunSpec().workload, **places}
    return texts | {CARD: card, WORLD: world, ROUNDS: str(rounds)}


def first_state() -> FormState:
    """The spec, passes and rounds of the newest run; the default spec's if the form cannot hold it.

    A study's cell of another workload has keys without a field, and its passes may have no box.
    """
    default = RunSpec()
    try:
        header = run.header() if (run := newest_run()) else None
    except SysbenchError:  # damaged, or of a later version
        header = None
    if header is None or header.spec.workload not in (default.workload, OWN_MODEL):
        return FormState(texts=field_texts(default), passes=tuple(DEFAULT_PASSES))
    passes = [name for name in DEFAULT_PASSES if name in header.passes] or DEFAULT_PASSES
    texts = field_texts(header.spec, rounds=header.repeat)
    return FormState(texts=texts, passes=tuple(passes))


def fields_in_use(texts: dict[str, str]) -> list[str]:
    """Names of the fields that decide the spec; the others keep their defaults."""
    custom = texts["model"] == CUSTOM
    unused = unused_keys(texts) | ({"model"} if custom else set(DIMENSION_NAMES))
    unused |= {CARD, WORLD, ROUNDS}
    return [name for name in texts if name not in unused]


def parse_form(texts: dict[str, str], passes: list[PassName]) -> FormContent:
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
        errors["passes"] = "select at least one"
    world = None
    try:
        world = _parse_world(texts[WORLD], spec)
    except SpecError as error:
        key = "" if error.field == "--world" else f"{error.field}={error.value}: "
        errors[WORLD] = f"{key.removeprefix('world.')}{error.allowed}"
    repeat = int(texts[ROUNDS]) if texts[ROUNDS].strip().isdecimal() else 0
    try:
        check_repeat(repeat, passes or ["timing"])
    except SpecError as error:
        errors[ROUNDS] = error.allowed
    return FormContent(
        spec=spec, passes=passes, errors=errors, card=texts[CARD], world=world, repeat=repeat
    )


def _parse_world(text: str, spec: RunSpec | None) -> World | None:
    """The world of `estimate --world`, checked in the same way; None for an empty text."""
    if not text.strip():
        return None
    world = World.parse(text)
    if spec is not None:
        check_world(spec, world)
    return world


COMMAND = re.compile(r"\s*(?:\$\s+)?sysbench-tui\s+(run|estimate)(?:\s|$)")
"""Start of a command line, with or without a shell prompt."""
CONTINUED = re.compile(r"\\\r?\n|\\\r")
"""Line continuation."""
ELSEWHERE = ("--peak", "--python")
"""Options of `run` with a value that the form does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastedCommand:
    """Content of a pasted command.

    Attributes:
        unknown: Words that the form has no field for.
    """

    spec: RunSpec
    passes: list[PassName]
    repeat: int
    card: str
    world: str
    unknown: list[str]


class _Parser(argparse.ArgumentParser):
    """A parser that neither prints nor exits."""

    def error(self, message: str) -> NoReturn:
        raise SpecError("command", message, "see `sysbench-tui run --help`")


def is_command(text: str) -> bool:
    return COMMAND.match(text) is not None


def read_command(text: str) -> PastedCommand:
    """Parse a `run` or `estimate` command line, which may continue over lines with backslashes.

    Raises SpecError; ProfileError or NotFoundError for a file or profile that it names.
    """
    text = CONTINUED.sub(" ", text).strip()
    match = COMMAND.match(text)
    if match is None:
        raise SpecError("command", text, "`sysbench-tui run …`")
    try:
        words = shlex.split(next(iter(text[match.end() :].splitlines()), ""))
    except ValueError as error:
        raise SpecError("command", text, f"closed quotes: {error}") from error
    settings, options = _split_settings(words)
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_spec_arguments(parser)
    parser.add_argument("--passes")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--card", default="")
    parser.add_argument("--world", default="")
    for name in ELSEWHERE:
        parser.add_argument(name)
    arguments, unknown = parser.parse_known_args(options)
    unknown += [
        f"{name} {value}"
        for name in ELSEWHERE
        if (value := getattr(arguments, name.removeprefix("--"))) is not None
    ]
    names = getattr(arguments, WORDS)
    model = next(filter(is_model, names), next(iter(names), None))
    unknown += [word for word in names if word != model]
    setattr(arguments, WORDS, [] if model is None else [model])
    known = {field.name for field in FIELDS}
    for setting in settings:
        key = setting.partition("=")[0]
        if key in known or key.startswith(ARGUMENT):
            getattr(arguments, WORDS).append(setting)
        else:
            unknown.append(setting)
    spec = asked_spec(arguments)
    passes = chosen_passes(arguments, spec)
    if extra_passes := [name for name in passes if name not in DEFAULT_PASSES]:
        unknown.append(f"--passes {','.join(extra_passes)}")
    card = arguments.card
    if card and card not in known_cards():
        unknown.append(f"--card {card}")
        card = ""
    return PastedCommand(
        spec=spec,
        passes=passes,
        repeat=arguments.repeat,
        card=card,
        world=arguments.world,
        unknown=unknown,
    )


def _split_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    settings: list[str] = []
    others: list[str] = []
    for before, word in pairwise(["", *words]):
        if word == "--set":
            continue
        word = word.removeprefix("--set=")
        is_setting = before != "--world" and SETTING.match(word)
        (settings if is_setting else others).append(word)
    return settings, others
