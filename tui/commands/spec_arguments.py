"""SPEC.toml or a profile, plus ``--set key=value``, to one checked spec."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.errors import NotFoundError, SpecError
from ...core.record.blocks import PassName
from ...core.spec.files import load_profile, read_spec_file
from ...core.spec.models import model_presets
from ...core.spec.resolve import parse_passes, resolved
from ...core.spec.spec import DIMENSION_NAMES, RunSpec, parse_spec


def chosen_spec(arguments: argparse.Namespace) -> RunSpec:
    """The spec that the arguments describe, resolved for this machine.

    Raises:
        SpecError, ProfileError, NotFoundError: Naming the key or the file at fault.
    """
    return resolved(asked_spec(arguments))


def asked_spec(arguments: argparse.Namespace) -> RunSpec:
    """The spec that the arguments describe; its device may be ``auto``, or not be here.

    Raises:
        SpecError, ProfileError, NotFoundError: Naming the key or the file at fault.
    """
    settings, _ = _from_file(arguments.spec)
    changes = parse_settings(arguments.settings)
    if arguments.memory_limit is not None:
        changes["memory_limit"] = arguments.memory_limit
    return parse_spec(_without_replaced_model(settings, changes) | changes)


def chosen_passes(arguments: argparse.Namespace, spec: RunSpec) -> list[PassName]:
    """The passes of ``--passes``, else of the file, else the spec's default ones."""
    if arguments.passes is not None:
        return parse_passes(arguments.passes)
    return _from_file(arguments.spec)[1] or list(spec.default_passes)


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
    """The file's settings, less the model or the dimensions that ``--set`` puts aside."""
    gone: set[str] = set()
    if "model" in changes:
        gone = set(DIMENSION_NAMES)
    elif changes.keys() >= set(DIMENSION_NAMES):
        gone = {"model"}
    return {key: value for key, value in settings.items() if key not in gone}


def _from_file(name: str | None) -> tuple[Mapping[str, object], list[PassName] | None]:
    if name is None:
        return {}, None
    if name in model_presets():
        raise NotFoundError(f"no profile {name!r}; a model is chosen with --set model={name}")
    if name.endswith(".toml") or "/" in name or Path(name).is_file():
        return read_spec_file(Path(name))
    spec, passes = load_profile(name)
    return spec.settings(), passes
