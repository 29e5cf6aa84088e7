"""The user's code: its factory is imported and called, and what it returns is checked."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.spec.model_source import digest_of, root_of
from sysbench.core.spec.own_model import ARGUMENT, ModelSource, decoded_arguments, source_of
from sysbench.core.spec.spec import RunSpec

SIZES = ("batch", "context")
"""Keys of a spec that a factory or its ``batch`` takes as arguments of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryParts:
    """A model, and what its steps are made of.

    Attributes:
        model: The module.
        batch: Makes the inputs of a step, once: a tensor, a tuple of arguments or a mapping of
            keyword arguments. None: token ids below the rows of the first embedding.
        loss: From model and batch; None takes the loss of the output, or one made of it.
        optimizer: From the parameters that need gradients.
        step: A whole step, which calls its argument with the name of each phase as it begins.
        takes: Sizes of the spec that somebody took.
        facts: Further facts for the record.
    """

    model: nn.Module
    batch: Callable[[], Any] | None = None
    loss: Callable[[nn.Module, Any], Any] | None = None
    optimizer: Callable[[list[nn.Parameter]], Any] | None = None
    step: Callable[[Callable[[str], None]], None] | None = None
    takes: frozenset[str] = frozenset()
    facts: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Run the user's code: an exit is an error as any other.

    Raises:
        ModelError: The code ended the process.
    """
    try:
        yield
    except SystemExit as error:
        raise ModelError(f"{what} ended the process by exit({error.code!r})") from error


def import_factory(spec: RunSpec) -> Callable[..., Any]:
    """The factory of the spec's model, its module imported.

    Raises:
        ModelError: The code is another one than when the spec was made, or has no such factory.
        Exception: Whatever the code raises.
    """
    source, path = source_of(spec.model), Path(spec.model_file)
    if digest_of(source, path) != spec.model_source:
        raise ModelError(f"{path.name} was changed since the run began: run it again")
    root = str(root_of(source, path))
    if root not in sys.path:
        sys.path.append(root)  # last: nothing here can stand in for an installed library
    with guarded(f"importing {path.name}"):
        module = _imported(source, path)
    found: Any = module
    for name in source.factory.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        others = ", ".join(_factories(module)) or "none"
        raise ModelError(
            f"{path.name} has no function or class {source.factory}; there is: {others}"
        )
    factory: Callable[..., Any] = found
    return factory


def _imported(source: ModelSource, path: Path) -> ModuleType:
    if source.door == "module":
        module = importlib.import_module(source.place)
        if Path(str(module.__file__)).resolve() != path:
            raise ModelError(f"{source.place} is {module.__file__} here, not {path}")
        return module
    names = (path.stem, f"own_{path.stem}")
    for name in names:
        if getattr(sys.modules.get(name), "__file__", None) == str(path):
            return sys.modules[name]
    name = names[path.stem in sys.modules]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _factories(module: ModuleType) -> list[str]:
    """Names of the functions and classes that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]


def built_parts(spec: RunSpec) -> FactoryParts:
    """What the spec's factory returns, checked.

    Raises:
        SpecError: An argument that the factory does not take.
        ModelError: It returned neither a module nor an object with one.
        Exception: Whatever the factory raises.
    """
    factory = import_factory(spec)
    name = source_of(spec.model).factory
    arguments, takes = _arguments(factory, name, spec)
    with guarded(f"{name}()"):
        result = factory(**arguments)
    if isinstance(result, nn.Module):
        # Without a `batch` of the factory's, ids of both sizes are made.
        return FactoryParts(model=result, takes=takes | set(SIZES))
    model = getattr(result, "model", None)
    parts = {key: getattr(result, key, None) for key in ("batch", "loss", "optimizer", "step")}
    if not isinstance(model, nn.Module) or not (parts["batch"] or parts["step"]):
        raise ModelError(
            f"{name}() returned {_a(result)}: it has to return a torch.nn.Module, or an object "
            "with model and batch()"
        )
    for key, value in parts.items():
        if value is not None and not callable(value):
            raise ModelError(f"{key} of what {name}() returned is {_a(value)}, and no function")
    make, taken = _batch_maker(parts["batch"], spec)
    return FactoryParts(
        model=model,
        batch=make,
        loss=parts["loss"],
        optimizer=parts["optimizer"],
        step=parts["step"],
        takes=takes | taken,
    )


def _batch_maker(
    batch: Callable[..., Any] | None, spec: RunSpec
) -> tuple[Callable[[], Any] | None, frozenset[str]]:
    """The user's ``batch`` with the sizes that it takes, and these."""
    if batch is None:
        return None, frozenset()
    given, taken = _sizes(batch, "batch()", spec)
    return functools.partial(batch, **given), taken


def _a(value: object) -> str:
    """``a tuple``, ``an int``, ``None``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"a{'n' if name[0] in 'aeiouAEIOU' else ''} {name}"


def _arguments(
    factory: Callable[..., Any], name: str, spec: RunSpec
) -> tuple[dict[str, Any], frozenset[str]]:
    arguments = decoded_arguments(spec.model_args)
    parameters = _parameters(factory)
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for key, value in arguments.items():
        if key in SIZES:
            raise SpecError(ARGUMENT + key, value, f"left out: {key} = … is a key of the spec")
        if key not in parameters and not takes_all:
            known = ", ".join(parameters) or "none"
            raise SpecError(ARGUMENT + key, value, f"an argument of {name}(), which has: {known}")
    given, takes = _sizes(factory, f"{name}()", spec)
    return given | arguments, takes


def _sizes(
    function: Callable[..., Any], name: str, spec: RunSpec
) -> tuple[dict[str, int], frozenset[str]]:
    """The sizes that a function takes, with the spec's values.

    Raises:
        SpecError: The function needs one, and the spec has none.
    """
    parameters = _parameters(function)
    given = {}
    for key in SIZES:
        if key not in parameters:
            continue
        value = getattr(spec, key)
        if value:
            given[key] = value
        elif parameters[key].default is inspect.Parameter.empty:
            raise SpecError(key, value, f"an integer from 1: {name} needs it")
    return given, frozenset(given)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return {}
