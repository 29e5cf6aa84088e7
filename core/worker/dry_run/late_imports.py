"""Imports that a step on tensors without data can do without: they take longer than the step."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

from .device import replaced

COMPILER = "torch._dynamo"
DECORATORS = ("disable", "assume_constant_result", "allow_in_graph")
"""Of the compiler: in eager code they change nothing."""

LATE = (f"{COMPILER}._trace_wrapped_higher_order_op", "scipy.optimize")
"""Modules of which transformers imports functions by name and calls them in few models."""

OF_TEXTS = ("tokenizers", "jinja2")
"""Packages that turn texts into tokens: transformers does without where they are not installed."""

MODELS = os.path.join("transformers", "models")
"""End of the folder that has a package for each kind of model."""
KEPT_FOLDER = "auto"
"""Of transformers' models: has the names of configurations, and no model of its own."""
ANY_MODEL = "BertConfig"
"""A name that every version of transformers has."""


@contextmanager
def few_imports(*, is_of_one_package: bool) -> Iterator[None]:
    """Spare transformers, in the block, the imports that no model needs on one process.

    That is what `plain_torch` spares, the tensors of several ranks, and what `LATE` has, which is
    imported when it is called.

    Args:
        is_of_one_package: Whether the package of the model's configuration has all of the model.
            transformers, imported for the first time, then finds none of `OF_TEXTS` and lists no
            other model by name. For the list it reads the sources of all models, twice: longer
            than the rest of its import.
    """
    import torch.distributed

    with ExitStack() as stack:
        stack.enter_context(plain_torch())
        if is_of_one_package:
            stack.enter_context(replaced(os, "scandir", partial(_few_entries, os.scandir)))
            found = partial(_found_unless_of_texts, importlib.util.find_spec)
            stack.enter_context(replaced(importlib.util, "find_spec", found))
        else:
            list_every_model()
        stack.enter_context(replaced(torch.distributed, "is_available", lambda: False))
        for name in LATE:
            stack.enter_context(_stand_ins({name: {}}, _late_call))
        yield


def list_every_model() -> None:
    """Let transformers have the models, and the packages, that `few_imports` had it leave out."""
    transformers = sys.modules.get("transformers")
    if transformers is not None and not hasattr(transformers, ANY_MODEL):
        importlib.import_module("transformers.utils.import_utils").clear_import_cache()


def _few_entries(scan: Callable[..., Any], path: Any = ".") -> Any:
    """What ``os.scandir`` gives, without the packages of transformers' models."""
    if not str(path).endswith(MODELS):
        return scan(path)
    with scan(path) as entries:
        return nullcontext([entry for entry in entries if entry.name == KEPT_FOLDER])


def _found_unless_of_texts(find: Callable[..., Any], name: str, package: Any = None) -> Any:
    """What ``importlib.util.find_spec`` gives; None for a package of `OF_TEXTS`."""
    return None if name in OF_TEXTS else find(name, package)


@contextmanager
def plain_torch() -> Iterator[None]:
    """Spare torch, in the block, its compiler and its symbols for sizes, if it has none yet.

    The compiler is as large as the rest of torch, and meta kernels import it only for one of
    `DECORATORS`. Every other use raises `AttributeError` or `ImportError`. Symbols stand for sizes
    that a compiler does not know; meta kernels ask of each size whether it is one.
    """
    import torch

    with _stand_ins(SYMBOLS, _imported):
        if COMPILER in sys.modules:
            yield
            return
        compiler = ModuleType(COMPILER)
        for name in DECORATORS:
            setattr(compiler, name, _undecorated)
        sys.modules[COMPILER] = torch._dynamo = compiler
        try:
            yield
        finally:
            del sys.modules[COMPILER], torch._dynamo


def _undecorated(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    """The function as it is; without one, as a decorator with arguments is used, a decorator."""
    return _undecorated if function is None else function


def _itself(size: object, *_: object, **__: object) -> object:
    return size


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Sequence):
        return bool(one == other)
    return len(one) == len(other) and all(map(_equal, one, other))


SYMBOLS: Mapping[str, Mapping[str, object]] = {
    "sympy": {"Basic": type("Basic", (), {})},
    "torch.fx.experimental.symbolic_shapes": {
        **dict.fromkeys(("guard_or_false", "guard_or_true", "statically_known_true"), _itself),
        **dict.fromkeys(("guard_size_oblivious", "guarding_hint_or_throw"), _itself),
        **dict.fromkeys(("expect_true", "guard_int", "guard_scalar"), _itself),
        "free_unbacked_symbols": lambda sizes: frozenset(),
        "has_free_unbacked_symbols": lambda sizes: False,
        "has_guarding_hint": lambda size: True,
        "is_nested_int": lambda size: False,
        "sym_eq": _equal,
        "sym_and": lambda *ones: all(ones),
        "sym_or": lambda *ones: any(ones),
    },
}
"""Modules of symbols, and what their functions say of numbers, which every size is here."""


Real = Callable[[], ModuleType]
"""Imports the module that another one stands in for."""


@contextmanager
def _stand_ins(
    modules: Mapping[str, Mapping[str, object]], other: Callable[[Real, str], Any]
) -> Iterator[None]:
    """Put modules with these members in the place of the real ones, if none is imported yet.

    Args:
        other: Gives any other member. Once it imports a real module, none has a stand-in.
    """
    if any(name in sys.modules for name in modules):
        yield
        return
    stand_ins = {name: ModuleType(name) for name in modules}

    def leave() -> None:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    def real(name: str) -> ModuleType:
        leave()
        return importlib.import_module(name)

    for name, module in stand_ins.items():
        vars(module).update(modules[name])
        module.__getattr__ = partial(_member, partial(other, partial(real, name)))  # type: ignore[method-assign]
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        leave()


def _member(other: Callable[[str], Any], name: str) -> Any:
    if name.startswith("__"):  # the import system asks for its own
        raise AttributeError(name)
    return other(name)


def _imported(real: Real, name: str) -> Any:
    return getattr(real(), name)


def _late_call(real: Real, name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(real(), name)(*args, **kwargs)
