"""Import and call the user's factory, and check its result."""

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

import torch
from torch import nn

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.spec.model_source import digest_of, root_of
from sysbench.core.spec.own_model import ARGUMENT, ModelSource, decoded_arguments, source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.stepped_workload import TokenCache

SIZES = ("batch", "context")
"""Spec keys that are passed to arguments of the same name."""


PARTS = ("batch", "loss", "optimizer", "optimizers", "step")
"""Attributes of what a factory returns apart from its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryParts:
    """A model and the parts of its steps.

    Attributes:
        batch: Makes the inputs once: a tensor, a tuple of arguments or a mapping of keyword
            arguments. None: random token ids below the rows of the first embedding.
        loss: Called with model and batch; None uses the output's loss or a default.
        optimizers: Called as ``optimizer``; returns several, which step in that order.
        step: A whole step; calls its argument with each phase name.
        makes_signals: Whether ``batch`` makes images or sound from a configuration.
        takes: Sizes of the spec that the factory or ``batch`` uses.
        cache: Makes the cache of step = prefill or decode, for the model and the dtype of products.
        decode: Computes tokens after those in a cache: called with model, batch and cache.
    """

    model: nn.Module
    batch: Callable[[], Any] | None = None
    loss: Callable[[nn.Module, Any], Any] | None = None
    optimizer: Callable[[list[nn.Parameter]], Any] | None = None
    optimizers: Callable[[list[nn.Parameter]], Any] | None = None
    step: Callable[[Callable[[str], None]], None] | None = None
    makes_signals: bool = False
    takes: frozenset[str] = frozenset()
    cache: Callable[[nn.Module, torch.dtype], TokenCache] | None = None
    decode: Callable[[nn.Module, Any, Any], Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Run the user's code; convert an exit into an error.

    Raises:
        ModelError: The code ended the process.
    """
    try:
        yield
    except SystemExit as error:
        raise ModelError(f"{what} ended the process by exit({error.code!r})") from error


def import_factory(spec: RunSpec) -> Callable[..., Any]:
    """Import the model's module and return its factory.

    Raises:
        ModelError: The code changed since the spec was made, or has no such factory.
        Exception: Any error of the user's code.
    """
    source, path = source_of(spec.model), Path(spec.model_file)
    if digest_of(source, path) != spec.model_source:
        raise ModelError(f"{path.name} was changed since the run began: run it again")
    root = str(root_of(source, path))
    if root not in sys.path:
        sys.path.append(root)  # last, so that nothing here shadows an installed library
    with guarded(f"importing {path.name}"):
        module = _import(source, path)
    found: Any = module
    for name in source.factory.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        others = ", ".join(_factories(module)) or "none"
        raise ModelError(
            f"{path.name} has no function or class {source.factory}; available: {others}"
        )
    factory: Callable[..., Any] = found
    return factory


def _import(source: ModelSource, path: Path) -> ModuleType:
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
    sys.modules[name] = module  # dataclasses and pickle look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _factories(module: ModuleType) -> list[str]:
    """Functions and classes defined by the module itself."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]


def built_parts(spec: RunSpec) -> FactoryParts:
    """Call the spec's factory and check its result.

    Raises:
        SpecError: The factory does not take an argument.
        ModelError: It returned neither a module nor an object with one.
        Exception: Any error of the factory.
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
    parts = {key: getattr(result, key, None) for key in PARTS}
    if not isinstance(model, nn.Module) or not (parts["batch"] or parts["step"]):
        raise ModelError(
            f"{name}() returned {a_kind(result)}: it has to return a torch.nn.Module, or an object "
            "with model and batch()"
        )
    for key, value in parts.items():
        if value is not None and not callable(value):
            raise ModelError(f"{key} of what {name}() returned is {a_kind(value)}, not a function")
    if parts["optimizer"] is not None and parts["optimizers"] is not None:
        raise ModelError(f"what {name}() returned has optimizer and optimizers: one of them")
    make, taken = _batch_maker(parts["batch"], spec)
    return FactoryParts(
        model=model,
        batch=make,
        loss=parts["loss"],
        optimizer=parts["optimizer"],
        optimizers=parts["optimizers"],
        step=parts["step"],
        takes=takes | taken,
    )


def _batch_maker(
    batch: Callable[..., Any] | None, spec: RunSpec
) -> tuple[Callable[[], Any] | None, frozenset[str]]:
    """Bind the spec's sizes to the user's ``batch``; also return their names."""
    if batch is None:
        return None, frozenset()
    sizes, taken = _sizes(batch, "batch()", spec)
    return functools.partial(batch, **sizes), taken


def a_kind(value: object) -> str:
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
    sizes, takes = _sizes(factory, f"{name}()", spec)
    return sizes | arguments, takes


def _sizes(
    function: Callable[..., Any], name: str, spec: RunSpec
) -> tuple[dict[str, int], frozenset[str]]:
    """Values of the sizes that a function takes.

    Raises:
        SpecError: A required size is not set.
    """
    parameters = _parameters(function)
    sizes = {}
    for key in SIZES:
        if key not in parameters:
            continue
        value = getattr(spec, key)
        if value:
            sizes[key] = value
        elif parameters[key].default is inspect.Parameter.empty:
            raise SpecError(key, value, f"an integer from 1: {name} needs it")
    return sizes, frozenset(sizes)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return {}
