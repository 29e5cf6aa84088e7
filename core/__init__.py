"""The measuring engine as a library.

>>> from sysbench.core import RunSpec, run
>>> result = run(RunSpec(model="tiny", step="inference"), passes=["timing"])
>>> result.record.status
'finished'
>>> result.tables()["timing"]  # doctest: +SKIP

Names are loaded when they are first used, so that the screens start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .errors import SysbenchError as SysbenchError
    from .record.record import Record as Record
    from .runs.api import Run as Run
    from .runs.api import open_run as open_run
    from .runs.api import run as run
    from .runs.api import start as start
    from .runs.library import Library as Library
    from .spec.spec import RunSpec as RunSpec
    from .spec.spec import parse_spec as parse_spec

_MODULES = {
    "Library": ".runs.library",
    "Record": ".record.record",
    "Run": ".runs.api",
    "RunSpec": ".spec.spec",
    "SysbenchError": ".errors",
    "open_run": ".runs.api",
    "parse_spec": ".spec.spec",
    "run": ".runs.api",
    "start": ".runs.api",
}
"""The module that defines each public name."""

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
