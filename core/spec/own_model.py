"""Names and arguments of models from code or from a configuration, in a spec.

Reads only what ships: `sysbench.core.spec.model_source` finds the code behind a name.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from sysbench.core.errors import SpecError
from sysbench.core.spec.models import configuration_path, published_models

Door = Literal["file", "module", "hf"]

OWN_MODEL = "own-model"
"""Workload of users' models."""
JOB = "job"
"""Workload of a command that `watch` starts: its code decides everything else."""
HF = "hf:"
ARGUMENT = "model."
"""Prefix of a keyword argument among the settings: ``model.layers``."""

MAX_ARGUMENT_CHARS = 4096
"""Maximum characters of all arguments."""
WAYS = "FILE.py:FACTORY, PACKAGE.MODULE:FACTORY or hf:PATH"


class ModelSource(NamedTuple):
    """Place of a model's code, as in the spec.

    Attributes:
        door: ``file`` and ``module`` call a factory; ``hf`` reads a configuration.
        place: Path of the file, dotted name of the module, or path or id of the configuration.
        factory: Name of the factory; empty for ``hf``.
    """

    door: Door
    place: str
    factory: str = ""

    @property
    def top_package(self) -> str:
        return self.place.partition(".")[0]


def is_job(spec: Mapping[str, object]) -> bool:
    """Return whether this is the spec of a watched command."""
    return spec.get("workload") == JOB


def is_own(model: object) -> bool:
    """Return whether the value of ``model`` names a user's or a published model, not a size."""
    return isinstance(model, str) and (names_code(model) or model in published_models())


def names_code(model: object) -> bool:
    """Return whether the value of ``model`` names a user's code or configuration."""
    return isinstance(model, str) and ":" in model


def source_of(model: str) -> ModelSource:
    """Parse ``model``; raises SpecError if it names neither a user's nor a published model."""
    if model in published_models():
        return ModelSource("hf", str(configuration_path(model)))
    if model.startswith(HF):
        if place := model.removeprefix(HF).strip():
            return ModelSource("hf", place)
        raise SpecError("model", model, "hf:PATH of a config.json or its folder, or hf:ORG/NAME")
    place, _, factory = model.rpartition(":")
    if not _is_dotted(factory):
        raise SpecError("model", model, f"{WAYS}; a factory is the name of a function or class")
    if place.endswith(".py"):
        return ModelSource("file", place, factory)
    if _is_dotted(place):
        return ModelSource("module", place, factory)
    raise SpecError("model", model, f"{WAYS}, or the name of a preset")


def _is_dotted(text: str) -> bool:
    return bool(text) and all(map(_is_name, text.split(".")))


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def with_arguments(settings: Mapping[str, object]) -> dict[str, object]:
    """Move every ``model.NAME`` of the settings into ``model_args``.

    A value that is JSON (``4``, ``true``, ``[1, 2]``) is decoded; anything else is a text.

    Raises:
        SpecError: A name that is not a valid keyword argument.
    """
    prefixed = {key: value for key, value in settings.items() if key.startswith(ARGUMENT)}
    if not prefixed:
        return dict(settings)
    rest = {key: value for key, value in settings.items() if key not in prefixed}
    try:
        arguments = decoded_arguments(canonical_arguments(rest.get("model_args", "")))
        for key, value in prefixed.items():
            arguments[key.removeprefix(ARGUMENT)] = _read(value)
        return rest | {"model_args": _encode(arguments)}
    except (ValueError, TypeError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(next(iter(prefixed)), prefixed, "JSON values") from error


def canonical_arguments(value: object) -> str:
    """Encode keyword arguments as sorted JSON text; empty for none.

    Raises:
        ValueError: Not a JSON object, or an invalid key.
        TypeError: Neither a text nor a mapping.
    """
    if isinstance(value, Mapping):
        return _encode(dict(value))
    if not isinstance(value, str):
        raise TypeError
    if not value.strip():
        return ""
    if len(value) > MAX_ARGUMENT_CHARS:
        raise ValueError
    decoded = _decode(value)
    if not isinstance(decoded, dict):
        raise ValueError
    return _encode(decoded)


def decoded_arguments(text: str) -> dict[str, Any]:
    return dict(json.loads(text)) if text else {}


def model_setting(model: str, file: str) -> str:
    """Return the value of ``model`` that finds the code from any folder.

    Args:
        model: The spec's, which has lost its folder if ``file`` is known.
        file: Path of the code; empty if it was not located yet.
    """
    source = source_of(model)
    if not file or source.door == "module" or not names_code(model):
        return model
    return f"{file}:{source.factory}" if source.door == "file" else f"{HF}{file}"


def argument_settings(text: str) -> dict[str, str]:
    """Return the arguments as settings for `with_arguments`: ``{"model.layers": "4"}``."""
    return {ARGUMENT + name: _as_typed(value) for name, value in decoded_arguments(text).items()}


def argument_words(text: object) -> str:
    """Format as ``layers 4, width 64``; empty for none, and for text that is not canonical."""
    if not isinstance(text, str) or not text:
        return ""
    try:
        return ", ".join(f"{name} {value}" for name, value in decoded_arguments(text).items())
    except ValueError:  # of a record that was edited by hand
        return text


def _encode(arguments: Mapping[str, object]) -> str:
    if not all(map(_is_name, arguments)):
        wrong = next(name for name in arguments if not _is_name(name))
        raise SpecError(ARGUMENT + wrong, arguments[wrong], "the name of a keyword argument")
    return json.dumps(arguments, sort_keys=True, allow_nan=False) if arguments else ""


def _read(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return _decode(value)
    except ValueError:
        return value


def _decode(text: str) -> object:
    """Decode JSON, but no NaN or infinity; raises ValueError."""

    def refuse(name: str) -> object:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError(text[:20]) from error


def _as_typed(value: object) -> str:
    if isinstance(value, str) and _read(value) == value:
        return value
    return json.dumps(value, allow_nan=False)
