"""Import and call the user's factory, and check its result."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.spec.model_source import digest_of, root_of
from sysbench.core.spec.own_model import ARGUMENT, ModelSource, decoded_arguments, source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.stepped_workload import MarkedCache, TokenCache, tensors_in

SIZES = ("batch", "context")
"""Spec keys that are passed to arguments of the same name."""

MESH = "mesh"
"""Argument of a factory that divides its model itself."""

PARTS = ("batch", "loss", "optimizer", "optimizers", "step", "cache", "decode", "parallelize")
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
        parallelize: Divides the model over a mesh of all ranks; returns what to call.
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
    parallelize: Callable[[nn.Module, Any], nn.Module] | None = None
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


def built_parts(spec: RunSpec, mesh: Any = None) -> FactoryParts:
    """Call the spec's factory and check its result.

    Args:
        mesh: That of all ranks, for a factory that takes it, and returns a divided model.

    Raises:
        SpecError: The factory does not take an argument, or needs a mesh.
        ModelError: It returned neither a module nor an object with one.
        Exception: Any error of the factory.
    """
    factory = import_factory(spec)
    name = source_of(spec.model).factory
    arguments, takes = _arguments(factory, name, spec)
    place = _parameters(factory).get(MESH)
    if place is not None and mesh is not None:
        arguments[MESH] = mesh
    elif place is not None and place.default is place.empty:
        raise SpecError("model", spec.model, f"used with --world: {name}() needs a mesh")
    with guarded(f"{name}()"):
        result = factory(**arguments)
    parallelize = _already_divided if MESH in arguments else None
    if isinstance(result, nn.Module):
        # Without a `batch` of the factory's, ids of both sizes are made.
        return FactoryParts(model=result, takes=takes | set(SIZES), parallelize=parallelize)
    model = getattr(result, "model", None)
    parts = {key: getattr(result, key, None) for key in PARTS}
    parts["parallelize"] = parts["parallelize"] or parallelize
    if not spec.has_cache:  # these names may stand for something else
        parts |= {key: parts[key] if callable(parts[key]) else None for key in ("cache", "decode")}
    has_inputs = any(parts[key] for key in ("batch", "step", "decode"))
    if not isinstance(model, nn.Module) or not has_inputs:
        raise ModelError(
            f"{name}() returned {a_kind(result)}: it has to return a torch.nn.Module, or an object "
            "with model and batch()"
        )
    for key, value in parts.items():
        if value is not None and not callable(value):
            raise ModelError(f"{key} of what {name}() returned is {a_kind(value)}, not a function")
    if parts["optimizer"] is not None and parts["optimizers"] is not None:
        raise ModelError(f"what {name}() returned has optimizer and optimizers: one of them")
    make, taken = _bound(parts["batch"], "batch()", spec)
    if make is None and parts["step"] is None:
        taken = frozenset(SIZES)  # ids of both sizes are made
    made = FactoryParts(
        model=model,
        batch=make,
        loss=parts["loss"],
        optimizer=parts["optimizer"],
        optimizers=parts["optimizers"],
        step=parts["step"],
        parallelize=parts["parallelize"],
        takes=takes | taken,
    )
    make_cache, of_cache = _bound(parts["cache"], "cache()", spec)
    if not spec.has_cache or make_cache is None or parts["decode"] is None:
        return made
    tokens = functools.partial(_tokens, made, spec)
    return replace(
        made,
        batch=lambda: tokens()[:, -1:].clone() if spec.step == "decode" else tokens(),
        cache=functools.partial(OwnCache, spec, make_cache, parts["decode"], tokens),
        decode=OwnCache.decode,
        takes=made.takes | of_cache,
    )


def _already_divided(model: nn.Module, mesh: object) -> nn.Module:
    return model


def _bound(
    function: Callable[..., Any] | None, name: str, spec: RunSpec
) -> tuple[Callable[[], Any] | None, frozenset[str]]:
    """Bind the spec's sizes to a function of the user's; also return their names."""
    if function is None:
        return None, frozenset()
    sizes, taken = _sizes(function, name, spec)
    return functools.partial(function, **sizes), taken


def _tokens(parts: FactoryParts, spec: RunSpec) -> Tensor:
    """The first tensor of ``batch()``, or random token ids, of shape (batch, context).

    Raises:
        SpecError: There are fewer tokens than the step needs.
    """
    if parts.batch is None:
        found = [torch.randint(vocabulary_of(parts.model), (spec.batch, spec.context))]
    else:
        with guarded("batch()"):
            found = tensors_in(parts.batch())
    least = 2 if spec.step == "decode" else 1
    if not found or found[0].dim() < 2 or found[0].shape[1] < least:
        allowed = f"at least {least} tokens in the first tensor of batch(), (batch, context, …)"
        raise SpecError("context", spec.context, f"{allowed}, for step = {spec.step}")
    return found[0]


def vocabulary_of(model: nn.Module) -> int:
    """Number of rows of the model's first embedding.

    Raises:
        ModelError: It has none.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return module.num_embeddings
    raise ModelError(
        "the module has no embedding, so its inputs are not token ids: return an object "
        "with model and batch() instead"
    )


class OwnCache(MarkedCache):
    """What the user's ``cache()`` makes, with tensors of the dtype of keys by default.

    In decode the model has read all tokens but the last, in one call of the user's ``decode``. In
    prefill each step has a new one.
    """

    def __init__(
        self,
        spec: RunSpec,
        make: Callable[[], Any],
        decode: Callable[[nn.Module, Any, Any], Any],
        tokens: Callable[[], Tensor],
        model: nn.Module,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(spec.batch)
        self._make, self._decode, self._dtype = make, decode, dtype
        self._device = next((one.device for one in model.parameters()), torch.device(spec.device))
        self.rewind()
        if spec.step == "prefill":
            return
        self.decode(model, tokens()[:, :-1].to(self._device), self)
        if not self.tensors:
            raise ModelError(
                f"no tensor was found in the {type(self.held).__name__} of cache() after decode(): "
                "lists, dictionaries and attributes of objects are searched"
            )
        self.mark()

    @staticmethod
    def decode(model: nn.Module, tokens: Any, cache: OwnCache) -> Any:
        """Call the user's ``decode`` with the cache that the user's code made."""
        with guarded("decode()"):
            return cache._decode(model, tokens, cache.held)

    @property
    def words(self) -> str:
        after = "rewound before each step" if self._marks else "made before each step"
        return f"{type(self.held).__name__} of cache(); {after}"

    @property
    def bytes_per_token(self) -> int | None:
        return super().bytes_per_token or None  # one of its full length at once does not grow

    def rewind(self) -> None:
        if self._marks:
            super().rewind()
            return
        self.held = None
        usual = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)
        try:
            with self._device, guarded("cache()"):
                self.held = self._make()
        finally:
            torch.set_default_dtype(usual)


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
            raise SpecError(ARGUMENT + key, value, f"leave it out; {key}=… is a key of the spec")
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
