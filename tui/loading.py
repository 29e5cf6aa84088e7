"""Import of a class by its name, when it is first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load_class(place: str) -> Any:
    """The class of ``module:Class``, the module as seen from this package.

    Raises:
        ImportError, AttributeError: There is no such module, or no such class in it.
    """
    module, _, name = place.partition(":")
    return getattr(import_module(f".{module}", __package__), name)
