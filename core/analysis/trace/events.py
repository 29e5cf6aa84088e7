"""The events of a trace that say where time goes, as columns of integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .intervals import Times

MODULE_PREFIX = "nn.Module: "
"""How torch.profiler begins the name of a module's range."""


class Kind(IntEnum):
    """What an event of a trace is. Kinds from KERNEL on run on a device."""

    OPERATOR = 0
    ANNOTATION = 1
    MODULE = 2
    RUNTIME = 3
    KERNEL = 4
    COPY = 5
    FILL = 6


class Columns:
    """Events as columns of equal length: what the dataclasses below have in common."""

    __slots__: tuple[str, ...] = ()
    kind: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, index: NDArray[np.integer] | NDArray[np.bool_]) -> Self:
        """Some of the events, in the order of the index."""
        return type(self)(**{name: getattr(self, name)[index] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvents(Columns):
    """Operators, annotations, modules and runtime calls.

    ``name`` is an index of `Trace.names`, threads are numbered as they appear, times are
    nanoseconds since `Trace.base_ns`. ``correlation`` is what a runtime call shares with
    the work that it launched, ``sequence`` the number of the autograd node that an operator
    makes, or that runs; -1 where there is none. ``operands`` is an index of
    `Trace.operands`, -1 where the profiler noted no shapes.
    """

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    thread: NDArray[np.int64]
    start: Times
    end: Times
    correlation: NDArray[np.int64]
    sequence: NDArray[np.int64]
    operands: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvents(Columns):
    """Kernels, copies and fills; columns as in `HostEvents`."""

    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    device: NDArray[np.int64]
    start: Times
    end: Times
    correlation: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The timed events of a trace that say where time goes; the others are left out.

    ``operands`` are the different inputs that operators had, as `core.analysis.operands`
    reads them; ``devices`` are the devices' names by number, where the file has them.
    """

    names: list[str]
    base_ns: int
    host: HostEvents
    device: DeviceEvents
    operands: list[bytes] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)
