"""A worker's job, and the function by which it reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from sysbench.core.record.blocks import PassName
from sysbench.core.record.events import AnyEvent
from sysbench.core.spec.spec import RunSpec

Report = Callable[[AnyEvent], None]
"""Sends one fact to the supervisor."""


CACHE_FOLDER = "inductor-cache"
"""In a timing pass's folder: the compiler's cache of a run that compiles with an empty one."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over one spec.

    Attributes:
        spec: What to measure; its device is resolved.
        name: Which pass.
        folder: Folder of the pass's artifacts; exists.
        capture: An outside profiler watches: emit NVTX ranges, mark the measured steps.
    """

    spec: RunSpec
    name: PassName
    folder: str
    capture: bool = False

    @property
    def path(self) -> Path:
        """The folder, as a path."""
        return Path(self.folder)
