"""The specs of both sides, from what was typed."""

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
    """The specs of A and B, resolved for this machine.

    Args:
        a: A TOML file, a profile, a model or a run; None is the default spec.
        b: As ``a``; None is A's spec.
        settings: ``KEY=VALUE`` for both.
        settings_b: ``KEY=VALUE`` for B only.
        pythons: Interpreters of the sides' workers (default: the chosen one).

    Raises:
        SpecError, ProfileError, NotFoundError, DamagedFileError: Naming what is at fault.
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
    a: str | None, b: str | None, given: str | None, given_b: str | None
) -> tuple[str | None, str | None]:
    """Interpreters of the sides' workers; None is the chosen one.

    A run's spec is measured in the run's own, unless one is given.

    Args:
        a: As `both_specs` takes it.
        b: As `both_specs` takes it.
        given: ``--python``, which is the chosen one then.
        given_b: ``--python-b``.

    Raises:
        InterpreterError: ``given_b`` names none, or a run one that nobody chose here.
        NotFoundError, DamagedFileError: Naming what is at fault.
    """
    python_a = None if given else _python_of(a)
    python_b = python_a if given or b is None else _python_of(b)
    return python_a, named_python(given_b) if given_b else python_b


def _python_of(name: str | None) -> str | None:
    """The interpreter of a run; None of what is no run."""
    run = None if name is None else _run(name)
    return None if run is None else require_chosen(run.header().python)


def side_settings(name: str | None) -> Mapping[str, object]:
    """Settings of a TOML file, a profile or a model, else of a run by (a part of) its id."""
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
        words = f"{error}; nor a profile of that name: {profiles_in_words()}"
        raise NotFoundError(words) from error
