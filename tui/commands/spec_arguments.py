"""Arguments that describe a spec: a model, SPEC.toml or a profile, then ``key=value``."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from sysbench.core.errors import NotFoundError, SpecError
from sysbench.core.record.blocks import PassName
from sysbench.core.spec.fields import FIELDS
from sysbench.core.spec.models import find_model, model_presets, published_models
from sysbench.core.spec.own_model import is_own
from sysbench.core.spec.passes import parse_passes
from sysbench.core.spec.profiles import (
    list_profiles,
    load_profile,
    profiles_in_words,
    read_spec_file,
    resolve,
)
from sysbench.core.spec.spec import DIMENSION_NAMES, RunSpec, parse_spec
from sysbench.tui.commands.arguments import WORDS, add_settings, complete_with

OPTIONS = ("model", "context", "precision", "batch", "compile")
"""Keys that are also options."""
SETTING = re.compile(r"[A-Za-z_][\w.]*=")
"""Matches ``KEY=VALUE``; other words are names."""


def add_spec_arguments(parser: argparse.ArgumentParser) -> None:
    words = parser.add_argument(
        WORDS,
        nargs="*",
        metavar="WHAT|KEY=VALUE",
        help="a model, a TOML file or a saved profile, and keys of the spec: tiny context=512",
    )
    complete_with(words, "spec")
    for name in OPTIONS:
        parser.add_argument(f"--{name}", metavar="VALUE", help=f"the same as {name}=VALUE")
    add_settings(parser, "--set", "the same as KEY=VALUE alone; may be repeated")
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="simulate a smaller device, such as 24GiB; the same as memory_limit=SIZE",
    )


def spec_keys() -> str:
    default = RunSpec()
    lines = ["keys of a spec, here and in TOML, with their defaults:"]
    for field in FIELDS:
        if not field.is_typed:
            continue
        value = getattr(default, field.name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        key = field.name if field.name in DIMENSION_NAMES else f"{field.name}={text}"
        lines += textwrap.wrap(
            f"{field.help}: {field.allowed}",
            width=100,
            initial_indent=f"  {key:<26}",
            subsequent_indent=" " * 28,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def chosen_spec(arguments: argparse.Namespace) -> RunSpec:
    """Return the spec that the arguments describe, resolved for this machine.

    Raises:
        SpecError, ProfileError, NotFoundError
    """
    return resolve(asked_spec(arguments))


def asked_spec(arguments: argparse.Namespace) -> RunSpec:
    """Return the spec that the arguments describe; its device may be ``auto`` or missing here.

    Raises:
        SpecError, ProfileError, NotFoundError
    """
    what, words = _what(arguments)
    settings, _ = from_file(what)
    options = {name: getattr(arguments, name) for name in OPTIONS}
    changes = parse_settings(words)
    changes |= {key: text for key, text in options.items() if text is not None}
    changes |= parse_settings(arguments.settings)
    if arguments.memory_limit is not None:
        changes["memory_limit"] = arguments.memory_limit
    return changed_spec(settings, changes)


def changed_spec(settings: Mapping[str, object], changes: Mapping[str, object]) -> RunSpec:
    """Return the spec of these settings with changes applied.

    Raises:
        SpecError: Naming the key at fault.
    """
    return parse_spec({**_without_replaced_model(settings, changes), **changes})


def chosen_passes(arguments: argparse.Namespace, spec: RunSpec) -> list[PassName]:
    if arguments.passes is not None:
        return parse_passes(arguments.passes)
    return from_file(_what(arguments)[0])[1] or list(spec.default_passes)


def _what(arguments: argparse.Namespace) -> tuple[str | None, list[str]]:
    """Split the words into a name and ``KEY=VALUE`` settings.

    Raises:
        SpecError: More than one name.
    """
    words: list[str] = getattr(arguments, WORDS)
    settings = [word for word in words if SETTING.match(word)]
    names = [word for word in words if word not in settings]
    if len(names) > 1:
        if script := next((name for name in names if name.endswith(".py")), None):
            raise SpecError("spec", " ".join(names), _no_script(script))
        raise SpecError(
            "spec", " ".join(names), "expected one model, file or profile, then KEY=VALUE"
        )
    return (names[0] if names else None), settings


def _no_script(file: str) -> str:
    return (
        f"scripts cannot be run: name the function that builds the model, {file}:make, or record "
        "a trace in the script and open it with `sysbench-tui inspect`"
    )


def names_own_model(arguments: argparse.Namespace) -> bool:
    """Whether a word of the command line is a user model; does not look into files."""
    words: list[str] = [*getattr(arguments, WORDS), *arguments.settings]
    models = [
        word.removeprefix("model=")
        for word in words
        if word.startswith("model=") or not SETTING.match(word)
    ]
    return any(map(is_own, (*models, arguments.model)))


def parse_settings(texts: Sequence[str]) -> dict[str, object]:
    """Parse ``["batch=8", …]``; the last value of a repeated key counts.

    Raises:
        SpecError: No equals sign, or no key.
    """
    settings: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise SpecError("--set", text, "must be KEY=VALUE, such as batch=8")
        settings[key.strip()] = value.strip()
    return settings


def _without_replaced_model(
    settings: Mapping[str, object], changes: Mapping[str, object]
) -> dict[str, object]:
    replaced: set[str] = set()
    if "model" in changes:
        replaced = set(DIMENSION_NAMES)
    elif changes.keys() >= set(DIMENSION_NAMES):
        replaced = {"model"}
    return {key: value for key, value in settings.items() if key not in replaced}


def is_model(word: str) -> bool:
    return word in model_presets() or is_own(word)


def from_file(name: str | None) -> tuple[Mapping[str, object], list[PassName] | None]:
    """Return settings and passes of a TOML file, a saved profile or a model.

    Raises:
        SpecError, ProfileError, NotFoundError: Naming the file, or the key at fault.
    """
    if name is None:
        return {}, None
    if is_model(name):
        return {"model": name}, None
    if name.lower() in published_models():
        return {"model": name.lower()}, None
    if name.endswith(".py"):
        raise SpecError("spec", name, _no_script(name))
    if name.endswith(".toml") or name.startswith((".", "/", "~")) or Path(name).is_file():
        return read_spec_file(Path(name))
    if name not in list_profiles():
        return {"model": _size_named(name)}, None
    spec, passes = load_profile(name)
    return spec.settings(), passes


def _size_named(name: str) -> str:
    """Return the full name of the preset with that size.

    Raises:
        NotFoundError: No such preset; the message contains similar names.
    """
    try:
        return find_model(name).name
    except SpecError as error:
        raise NotFoundError(f"{error}; no profile {name!r}: {profiles_in_words()}") from error
