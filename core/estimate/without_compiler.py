"""Keeps torch's compiler out of a process that compiles nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

NAME = "torch._dynamo"


@contextmanager
def without_compiler() -> Iterator[None]:
    """Stand in for ``torch._dynamo`` while the block runs, unless it is there already.

    It is as large as all the rest of torch, and meta kernels import it only to have themselves
    left alone by it. What asks for more gets an `AttributeError` or an `ImportError`.
    """
    if NAME in sys.modules:
        yield
        return
    compiler = ModuleType(NAME)
    compiler.disable = _left_alone  # type: ignore[attr-defined]
    sys.modules[NAME] = torch._dynamo = compiler
    try:
        yield
    finally:
        del sys.modules[NAME], torch._dynamo


def _left_alone(function: Callable[..., Any], *how: Any, **options: Any) -> Callable[..., Any]:
    return function
