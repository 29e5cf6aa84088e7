"""The arguments that name a spec: SPEC.toml or a profile, plus ``--set key=value``.

Modules that read files or look for devices are imported with a spec, not for ``--help``.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.errors import NotFoundError, SpecError
from ...core.record.blocks import PassName
from ...core.spec.fields import FIELDS
from ...core.spec.models import model_presets
from ...core.spec.spec import DIMENSION_NAMES, RunSpec, parse_spec
from .arguments import add_settings


def add_spec_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `chosen_spec` and `asked_spec` read."""
    parser.add_argument(
        "spec", nargs="?", metavar="SPEC.toml|PROFILE", help="a TOML file or a saved profile"
    )
    add_settings(parser, "--set", "change one key of the spec; may be repeated")
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="stand for a smaller device, such as 24GiB: the same as --set memory_limit=SIZE",
    )


def spec_keys() -> str:
    """Every key of a spec with its default, meaning and allowed values."""
    default = RunSpec()
    lines = ["keys of a spec, for --set and TOML, with their defaults:"]
    for field in FIELDS:
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
    from ...core.spec.resolve import resolved

    return resolved(asked_spec(arguments))


def asked_spec(arguments: argparse.Namespace) -> RunSpec:
    """The spec that the arguments describe; its device may be ``auto``, or not be here.

    Raises:
        SpecError, ProfileError, NotFoundError: Naming the key or the file at fault.
    """
    settings, _ = from_file(arguments.spec)
    changes = parse_settings(arguments.settings)
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
    from ...core.spec.passes import parse_passes

    if arguments.passes is not None:
        return parse_passes(arguments.passes)
    return from_file(arguments.spec)[1] or list(spec.default_passes)


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


def from_file(name: str | None) -> tuple[Mapping[str, object], list[PassName] | None]:
    """Settings and passes of a TOML file or a saved profile; of None no settings.

    Raises:
        SpecError, ProfileError, NotFoundError: Naming the file, or the key at fault.
    """
    if name is None:
        return {}, None
    from ...core.spec.files import load_profile, read_spec_file

    if name in model_presets():
        raise NotFoundError(f"no profile {name!r}; a model is chosen with --set model={name}")
    if name.endswith(".toml") or "/" in name or Path(name).is_file():
        return read_spec_file(Path(name))
    spec, passes = load_profile(name)
    return spec.settings(), passes
