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
    from .errors import SysbenchError
    from .record.record import Record
    from .runs.api import Run, open_run, run, start
    from .runs.library import Library
    from .spec.spec import RunSpec, parse_spec

__all__ = [
    "Library",
    "Record",
    "Run",
    "RunSpec",
    "SysbenchError",
    "open_run",
    "parse_spec",
    "run",
    "start",
]

_HOMES = {
    "Library": "library",
    "Record": "record",
    "Run": "runner",
    "RunSpec": "spec",
    "SysbenchError": "errors",
    "open_run": "runner",
    "parse_spec": "spec",
    "run": "runner",
    "start": "runner",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
