"""The words that name a spec: a model, SPEC.toml or a profile, then ``key=value``.

Modules that read files or look for devices are imported with a spec, not for ``--help``.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from sysbench.core.errors import NotFoundError, SpecError
from sysbench.core.record.blocks import PassName
from sysbench.core.spec.fields import FIELDS
from sysbench.core.spec.models import find_model, model_presets
from sysbench.core.spec.own_model import is_own
from sysbench.core.spec.spec import DIMENSION_NAMES, RunSpec, parse_spec
from sysbench.tui.commands.arguments import WORDS, add_settings, complete_with

OPTIONS = ("model", "context", "precision", "batch", "compile")
"""Keys that are options, too."""
SETTING = re.compile(r"[A-Za-z_][\w.]*=")
"""How a word of ``KEY=VALUE`` begins; other words are names."""


def add_spec_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `chosen_spec` and `asked_spec` read."""
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
        help="stand for a smaller device, such as 24GiB: the same as memory_limit=SIZE",
    )


def spec_keys() -> str:
    """Every key of a spec with its default, meaning and allowed values."""
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
    """The spec that the arguments describe, resolved for this machine.

    Raises:
        SpecError, ProfileError, NotFoundError: Naming the key or the file at fault.
    """
    from sysbench.core.spec.profiles import resolve

    return resolve(asked_spec(arguments))


def asked_spec(arguments: argparse.Namespace) -> RunSpec:
    """The spec that the arguments describe; its device may be ``auto``, or not be here.

    Raises:
        SpecError, ProfileError, NotFoundError: Naming the key or the file at fault.
    """
    what, words = _what(arguments)
    settings, _ = from_file(what)
    given = {name: getattr(arguments, name) for name in OPTIONS}
    changes = parse_settings(words) | {key: text for key, text in given.items() if text is not None}
    changes |= parse_settings(arguments.settings)
    if arguments.memory_limit is not None:
        changes["memory_limit"] = arguments.memory_limit
    return changed_spec(settings, changes)


def changed_spec(settings: Mapping[str, object], changes: Mapping[str, object]) -> RunSpec:
    """The spec of a file's settings with those of ``--set`` in their place.

    Raises:
        SpecError: Naming the key at fault.
    """
    return parse_spec({**_without_replaced_model(settings, changes), **changes})


def chosen_passes(arguments: argparse.Namespace, spec: RunSpec) -> list[PassName]:
    """The passes of ``--passes``, else of the file, else the spec's default ones."""
    from sysbench.core.spec.passes import parse_passes

    if arguments.passes is not None:
        return parse_passes(arguments.passes)
    return from_file(_what(arguments)[0])[1] or list(spec.default_passes)


def _what(arguments: argparse.Namespace) -> tuple[str | None, list[str]]:
    """The one word that is no ``KEY=VALUE``, and those that are.

    Raises:
        SpecError: Two words name something.
    """
    words: list[str] = getattr(arguments, WORDS)
    settings = [word for word in words if SETTING.match(word)]
    names = [word for word in words if word not in settings]
    if len(names) > 1:
        raise SpecError("spec", " ".join(names), "one model, file or profile, then KEY=VALUE")
    return (names[0] if names else None), settings


def names_own_model(arguments: argparse.Namespace) -> bool:
    """Whether a word of the command line, though maybe not the last one, is a model of the user's.

    It reads no file: a profile's model is not seen.
    """
    words: list[str] = [*getattr(arguments, WORDS), *arguments.settings]
    models = [
        word.removeprefix("model=")
        for word in words
        if word.startswith("model=") or not SETTING.match(word)
    ]
    return any(map(is_own, (*models, arguments.model)))


def parse_settings(texts: Sequence[str]) -> dict[str, object]:
    """``["batch=8", …]`` to a mapping; the last of a repeated key counts.

    Raises:
        SpecError: A text without an equals sign, or without a key.
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
    """The file's settings without the model or the dimensions that ``--set`` replaces."""
    gone: set[str] = set()
    if "model" in changes:
        gone = set(DIMENSION_NAMES)
    elif changes.keys() >= set(DIMENSION_NAMES):
        gone = {"model"}
    return {key: value for key, value in settings.items() if key not in gone}


def is_model(word: str) -> bool:
    """Whether a word names a preset, or a model of the user's."""
    return word in model_presets() or is_own(word)


def from_file(name: str | None) -> tuple[Mapping[str, object], list[PassName] | None]:
    """Settings and passes of a TOML file, a saved profile or a model; of None no settings.

    Raises:
        SpecError, ProfileError, NotFoundError: Naming the file, or the key at fault.
    """
    if name is None:
        return {}, None
    from sysbench.core.spec.profiles import list_profiles, load_profile, read_spec_file

    if is_model(name):
        return {"model": name}, None
    if name.endswith(".py"):
        raise SpecError("spec", name, f"a model in Python is named with its factory: {name}:make")
    if name.endswith(".toml") or name.startswith((".", "/", "~")) or Path(name).is_file():
        return read_spec_file(Path(name))
    if name not in list_profiles():
        return {"model": _size_named(name)}, None
    spec, passes = load_profile(name)
    return spec.settings(), passes


def _size_named(name: str) -> str:
    """The preset that only one family has in that size, by its full name.

    Raises:
        NotFoundError: Another word, with the names that are close to it.
    """
    from sysbench.core.spec.profiles import profiles_in_words

    try:
        return find_model(name).name
    except SpecError as error:
        raise NotFoundError(f"{error}; no profile {name!r}: {profiles_in_words()}") from error
