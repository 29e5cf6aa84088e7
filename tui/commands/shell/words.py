"""Words that the shell completes to: what there is here of a kind, by how it begins.

Each press of Tab is a process of its own: a kind imports no more than its words need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

MOST_RUNS = 100
"""The newest: a list of more helps nobody, and all that begin as typed count."""


def words_of(kind: str, begin: str) -> list[str]:
    """The words of a kind that begin so, in the order in which they are offered.

    Args:
        kind: A name of `KINDS`.
        begin: What has been typed of the word.
    """
    words = (word for word in KINDS[kind](begin) if word.startswith(begin))
    return list(dict.fromkeys(words))


def _runs(begin: str) -> Iterator[str]:
    from ....core.runs.directory import list_runs

    ids = [run.id for run in list_runs()]
    yield from ("last", "last~1")[: len(ids)]
    yield from [run_id for run_id in ids if run_id.startswith(begin)][:MOST_RUNS]


def _experiments(begin: str) -> Iterator[str]:
    from ....core.runs.ab.places import experiment_folders

    found = [path.name for path in experiment_folders()]
    yield from ("last",)[: len(found)]
    yield from found


def _runs_and_experiments(begin: str) -> Iterator[str]:
    yield from _runs(begin)
    yield from _experiments(begin)


def _models(begin: str) -> Iterable[str]:
    from ....core.spec.models import model_presets

    return model_presets()


def _names_of_specs(begin: str) -> Iterator[str]:
    from ....core.spec.files import list_profiles

    yield from _models(begin)
    yield from list_profiles()


def _names_of_sides(begin: str) -> Iterator[str]:
    yield from _names_of_specs(begin)
    yield from _runs(begin)


def _settings(begin: str) -> Iterator[str]:
    """Keys with their ``=``, or of a key that is there its values."""
    from ....core.spec.fields import typed_keys

    key, equals, _ = begin.partition("=")
    if equals:
        yield from (f"{key}={value}" for value in _values(key))
    else:
        yield from (f"{name}=" for name in typed_keys())


def _spec(begin: str) -> Iterator[str]:
    if "=" not in begin:
        yield from _names_of_specs(begin)
    yield from _settings(begin)


def _values(key: str) -> Iterable[str]:
    """The values of a key whose list is closed, and the names that a model has."""
    from ....core.spec.fields import FIELDS

    if key == "model":
        return _models("")
    return next((field.choices for field in FIELDS if field.name == key), ())


def _values_of(key: str) -> Callable[[str], Iterable[str]]:
    return lambda begin: _values(key)


def _studies(begin: str) -> Iterator[str]:
    from ....core.studies.file.places import study_files

    yield from study_files()


def _studies_and_actions(begin: str) -> Iterator[str]:
    yield from ("list", "show")
    yield from _studies(begin)


def _studies_begun(begin: str) -> Iterator[str]:
    from ....core.studies.file.places import begun_studies

    yield from _studies(begin)
    yield from (path.name for path in begun_studies())


def _baselines(begin: str) -> Iterable[str]:
    from ....core.runs.ab.places import baselines_folder

    return sorted(path.stem for path in baselines_folder().glob("*.json"))


KINDS: dict[str, Callable[[str], Iterable[str]]] = {
    "run": _runs,
    "experiment": _experiments,
    "task": _runs_and_experiments,
    "spec": _spec,
    "setting": _settings,
    "side": _names_of_sides,
    "model": _models,
    "precision": _values_of("precision"),
    "compile": _values_of("compile"),
    "study": _studies_and_actions,
    "begun": _studies_begun,
    "baseline": _baselines,
}
"""By the name that the scripts ask for."""
