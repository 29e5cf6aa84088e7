"""The specs of both sides, from what was typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ....core.errors import NotFoundError
from ....core.runs.directory import RunDirectory, find_run
from ....core.spec.files import list_profiles
from ....core.spec.resolve import resolved
from ....core.spec.spec import RunSpec
from ..spec_arguments import changed_spec, from_file, is_model, parse_settings


def both_specs(
    a: str | None, b: str | None, settings: Sequence[str], settings_b: Sequence[str]
) -> tuple[RunSpec, RunSpec]:
    """The specs of A and B, resolved for this machine.

    Args:
        a: A TOML file, a profile, a model or a run; None is the default spec.
        b: As ``a``; None is A's spec.
        settings: ``KEY=VALUE`` for both.
        settings_b: ``KEY=VALUE`` for B only.

    Raises:
        SpecError, ProfileError, NotFoundError, DamagedFileError: Naming what is at fault.
    """
    for_both, for_b = parse_settings(settings), parse_settings(settings_b)
    spec_a = resolved(changed_spec(settings_of(a), for_both))
    spec_b = spec_a if b is None else resolved(changed_spec(settings_of(b), for_both))
    return spec_a, resolved(changed_spec(spec_b.settings(), for_b)) if for_b else spec_b


def settings_of(name: str | None) -> Mapping[str, object]:
    """Settings of a TOML file, a profile or a model, else of a run by its id or a part of it."""
    if name is not None and (run := _run(name)) is not None:
        return run.header().spec.settings()
    return from_file(name)[0]


def _run(name: str) -> RunDirectory | None:
    """The run of that name, if it names one and no file, profile or model."""
    path = Path(name)
    if (path / "run.json").is_file():
        return RunDirectory(path.resolve())
    is_file = name.endswith(".toml") or "/" in name or path.is_file()
    if is_file or name in list_profiles() or is_model(name):
        return None
    try:
        return find_run(name)
    except NotFoundError as error:
        profiles = ", ".join(list_profiles()) or "none saved yet"
        raise NotFoundError(f"{error}; nor a profile of that name: {profiles}") from error
