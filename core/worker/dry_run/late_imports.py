"""Imports that a step on tensors without data can do without: they take longer than the step."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from .device import replaced

COMPILER = "torch._dynamo"
DECORATORS = ("disable", "assume_constant_result", "allow_in_graph")
"""Of the compiler: in eager code they change nothing."""

LATE = (f"{COMPILER}._trace_wrapped_higher_order_op", "scipy.optimize")
"""Modules of which transformers imports functions by name and calls them in few models."""


@contextmanager
def stub_dynamo() -> Iterator[None]:
    """Replace ``torch._dynamo`` by a stub in the block, unless it is imported already.

    It is as large as the rest of torch, and meta kernels import it only for one of
    `DECORATORS`. Every other use raises `AttributeError` or `ImportError`.
    """
    import torch

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


@contextmanager
def few_imports() -> Iterator[None]:
    """Spare transformers, in the block, the imports that no model needs on one process.

    That is the compiler, the tensors of several ranks, and what `LATE` has, which is imported
    when it is called.
    """
    import torch.distributed

    with ExitStack() as stack:
        stack.enter_context(stub_dynamo())
        stack.enter_context(replaced(torch.distributed, "is_available", lambda: False))
        for name in LATE:
            if name not in sys.modules:
                sys.modules[name] = module = _late(name)
                stack.callback(_forget, name, module)
        yield


def _late(name: str) -> ModuleType:
    """A module whose functions import the real one when they are called."""
    module = ModuleType(name)

    def member(attribute: str) -> Callable[..., Any]:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            _forget(name, module)
            return getattr(importlib.import_module(name), attribute)(*args, **kwargs)

        return call

    module.__getattr__ = member  # type: ignore[method-assign]
    return module


def _forget(name: str, module: ModuleType) -> None:
    if sys.modules.get(name) is module:
        del sys.modules[name]
