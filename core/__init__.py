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
    from sysbench.core.errors import SysbenchError as SysbenchError
    from sysbench.core.record.record import Record as Record
    from sysbench.core.runs.api import Run as Run
    from sysbench.core.runs.api import open_run as open_run
    from sysbench.core.runs.api import run as run
    from sysbench.core.runs.api import start as start
    from sysbench.core.runs.library import Library as Library
    from sysbench.core.spec.spec import RunSpec as RunSpec
    from sysbench.core.spec.spec import parse_spec as parse_spec

_MODULES = {
    "Library": "sysbench.core.runs.library",
    "Record": "sysbench.core.record.record",
    "Run": "sysbench.core.runs.api",
    "RunSpec": "sysbench.core.spec.spec",
    "SysbenchError": "sysbench.core.errors",
    "open_run": "sysbench.core.runs.api",
    "parse_spec": "sysbench.core.spec.spec",
    "run": "sysbench.core.runs.api",
    "start": "sysbench.core.runs.api",
}
"""The module that defines each public name."""

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
