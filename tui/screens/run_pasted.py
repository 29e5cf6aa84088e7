"""A command line pasted into the form: ``sysbench-tui run …`` as a spec, its passes and rounds."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from sysbench.core.errors import SpecError
from sysbench.core.machine.cards import known_cards
from sysbench.core.record.blocks import DEFAULT_PASSES, PassName
from sysbench.core.spec.fields import FIELDS
from sysbench.core.spec.own_model import ARGUMENT
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.commands.arguments import WORDS
from sysbench.tui.commands.spec_arguments import (
    SETTING,
    add_spec_arguments,
    asked_spec,
    chosen_passes,
    is_model,
)

COMMAND = re.compile(r"\s*(?:\$\s+)?sysbench-tui\s+(run|estimate)(?:\s|$)")
"""How such a line begins, a shell's prompt before it or none."""
CONTINUED = re.compile(r"\\\r?\n|\\\r")
"""The end of a line that goes on."""
ELSEWHERE = ("--peak", "--python")
"""Options of `run` that have a value and no field in the form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pasted:
    """What a command says to the form.

    Attributes:
        repeat: Rounds of the timing pass.
        card: Key of the card to predict for; empty for this machine.
        unknown: Words that the form has no field for, as they were typed.
    """

    spec: RunSpec
    passes: list[PassName]
    repeat: int
    card: str
    unknown: list[str]


class _Parser(argparse.ArgumentParser):
    """A parser that neither prints nor exits."""

    def error(self, message: str) -> NoReturn:
        raise SpecError("command", message, "as `sysbench-tui run --help` has it")


def is_command(text: str) -> bool:
    """Whether a text is a command that the form can take."""
    return COMMAND.match(text) is not None


def read_command(text: str) -> Pasted:
    """The content of a command's line; a backslash at the end of a line goes on with the next.

    Raises:
        SpecError: It is no such line, or a value in it is not allowed.
        ProfileError, NotFoundError: A file or a profile that it names cannot be read.
    """
    text = CONTINUED.sub(" ", text).strip()
    begin = COMMAND.match(text)
    if begin is None:
        raise SpecError("command", text, "`sysbench-tui run …`")
    try:
        words = shlex.split(next(iter(text[begin.end() :].splitlines()), ""))
    except ValueError as error:
        raise SpecError("command", text, f"closed quotes: {error}") from error
    settings, others = _settings(words)
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_spec_arguments(parser)
    parser.add_argument("--passes")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--card", default="")
    for name in ELSEWHERE:
        parser.add_argument(name)
    arguments, unknown = parser.parse_known_args(others)
    unknown += [
        f"{name} {value}"
        for name in ELSEWHERE
        if (value := getattr(arguments, name.removeprefix("--"))) is not None
    ]
    names = getattr(arguments, WORDS)
    what = next(filter(is_model, names), next(iter(names), None))
    unknown += [word for word in names if word != what]
    setattr(arguments, WORDS, [] if what is None else [what])
    known = {field.name for field in FIELDS}
    for setting in settings:
        key = setting.partition("=")[0]
        if key in known or key.startswith(ARGUMENT):
            getattr(arguments, WORDS).append(setting)
        else:
            unknown.append(setting)
    spec = asked_spec(arguments)
    passes = chosen_passes(arguments, spec)
    if others_asked := [one for one in passes if one not in DEFAULT_PASSES]:
        unknown.append(f"--passes {','.join(others_asked)}")
    card = arguments.card
    if card and card not in known_cards():
        unknown.append(f"--card {card}")
        card = ""
    return Pasted(spec=spec, passes=passes, repeat=arguments.repeat, card=card, unknown=unknown)


def _settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of ``KEY=VALUE``, also those after ``--set``, and all others."""
    settings: list[str] = []
    others: list[str] = []
    for word in words:
        if word == "--set":
            continue
        word = word.removeprefix("--set=")
        (settings if SETTING.match(word) else others).append(word)
    return settings, others
