"""Parse the specs and interpreters of both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sysbench.core.errors import NotFoundError
from sysbench.core.machine.interpreter import named_python, require_chosen
from sysbench.core.runs.run_directory import RunDirectory, find_run
from sysbench.core.spec.profiles import list_profiles, profiles_in_words, resolve
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.commands.spec_arguments import changed_spec, from_file, is_model, parse_settings


def both_specs(
    a: str | None,
    b: str | None,
    settings: Sequence[str],
    settings_b: Sequence[str],
    pythons: tuple[str | None, str | None] = (None, None),
) -> tuple[RunSpec, RunSpec]:
    """Return the specs of A and B, resolved for this machine.

    Args:
        a: A TOML file, a profile, a model or a run; None is the default spec.
        b: As ``a``; None is A's spec.
        settings: ``KEY=VALUE`` for both.
        settings_b: ``KEY=VALUE`` for B only.
        pythons: As `both_pythons` returns them.

    Raises:
        SpecError, ProfileError, NotFoundError, DamagedFileError
    """
    for_both, for_b = parse_settings(settings), parse_settings(settings_b)
    spec_a = resolve(changed_spec(side_settings(a), for_both), python=pythons[0])
    spec_b = spec_a
    if b is not None or pythons[0] != pythons[1]:
        settings_b_alone = side_settings(a if b is None else b)
        spec_b = resolve(changed_spec(settings_b_alone, for_both), python=pythons[1])
    if for_b:
        spec_b = resolve(changed_spec(spec_b.settings(), for_b), python=pythons[1])
    return spec_a, spec_b


def both_pythons(
    a: str | None, b: str | None, python: str | None, python_for_b: str | None
) -> tuple[str | None, str | None]:
    """Return the interpreters of both sides' workers; None is the default one.

    A run is measured again in its own interpreter, unless one is given.

    Args:
        python: ``--python``.
        python_for_b: ``--python-b``.

    Raises:
        InterpreterError: An interpreter does not exist, or a run's was never chosen here.
        NotFoundError, DamagedFileError
    """
    python_a = None if python else _python_of(a)
    python_b = python_a if python or b is None else _python_of(b)
    return python_a, named_python(python_for_b) if python_for_b else python_b


def _python_of(name: str | None) -> str | None:
    """Return the interpreter of a run; None if the name is not a run."""
    run = None if name is None else _run(name)
    return None if run is None else require_chosen(run.header().python)


def side_settings(name: str | None) -> Mapping[str, object]:
    if name is not None and (run := _run(name)) is not None:
        return run.header().spec.settings()
    return from_file(name)[0]


def _run(name: str) -> RunDirectory | None:
    """Find the run of that name, unless it names a file, profile or model."""
    path = Path(name)
    if (path / "run.json").is_file():
        return RunDirectory(path.resolve())
    is_file = name.endswith(".toml") or "/" in name or path.is_file()
    if is_file or name in list_profiles() or is_model(name):
        return None
    try:
        return find_run(name)
    except NotFoundError as error:
        words = f"{error}; no profile has that name: {profiles_in_words()}"
        raise NotFoundError(words) from error
