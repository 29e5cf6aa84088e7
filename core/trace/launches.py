"""The host's calls that launch work on a device: lost ones, captured ones, and their number."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.idle_causes import LAUNCH
from sysbench.core.trace.intervals import Times
from sysbench.core.trace.trace_events import Index, Kind, Trace

KERNEL_LAUNCH = re.compile(r"Launch(?!HostFunc)")
BEGIN_CAPTURE = re.compile(r"StreamBeginCapture")
END_CAPTURE = re.compile(r"StreamEndCapture")
FILL_LAUNCH = re.compile(r"Memset")

Flags = NDArray[np.bool_]


class RuntimeCalls:
    """The calls of the runtime and the driver, with what their names tell.

    A file may have a million of them under a few dozen names: a pattern is searched in a name once,
    and the columns are taken once for all questions.
    """

    def __init__(self, trace: Trace) -> None:
        at = np.flatnonzero(trace.host.kind == Kind.RUNTIME)
        self._names = trace.names
        self._name = trace.host.name[at]
        used = np.zeros(len(trace.names), dtype=np.bool_)
        used[self._name] = True
        self._used = np.flatnonzero(used).tolist()
        self.thread = trace.host.thread[at]
        self.start = trace.host.start[at]
        self.end = trace.host.end[at]
        self.correlation = trace.host.correlation[at]

    def named(self, pattern: re.Pattern[str]) -> Flags:
        """Mask of the calls whose names match."""
        matches = np.zeros(len(self._names), dtype=np.bool_)
        matches[[name for name in self._used if pattern.search(self._names[name])]] = True
        return matches[self._name]


class Launches:
    """The calls that launch work, of which a graph's capture takes some and the trace loses some.

    Attributes:
        calls: All calls of the runtime.
    """

    def __init__(self, trace: Trace) -> None:
        self.calls = RuntimeCalls(trace)
        self._is_launch = self.calls.named(LAUNCH)
        self._captured = self._is_launch & _in_captures(self.calls)
        ran = self._is_launch & ~self._captured & (self.calls.correlation > 0)
        at = np.flatnonzero(ran)
        self._lost = at[~np.isin(self.calls.correlation[at], trace.device.correlation)]

    def lost(self, pattern: re.Pattern[str] = LAUNCH) -> Times:
        """Times of launches whose work the trace shows on no device, each launch once; of the calls
        whose names match the pattern, which is `LAUNCH` or a narrower one."""
        at = self._lost[self.calls.named(pattern)[self._lost]]
        _, first = np.unique(self.calls.correlation[at], return_index=True)
        return self.calls.start[at[first]]

    def count(self, low: int, high: int) -> int:
        """Number of launches in [low, high) of work that runs by itself."""
        # A driver's call inside a runtime's may have the same id: one launch.
        return self._distinct(self._is_launch & ~self._captured, low, high)

    def count_captured(self, low: int, high: int) -> int:
        """Number of launches in [low, high) that a graph took, and that ran nothing themselves."""
        return self._distinct(self._captured, low, high)

    def _distinct(self, chosen: Flags, low: int, high: int) -> int:
        inside = chosen & (self.calls.start >= low) & (self.calls.start < high)
        # The ids are nearly in order: sorting them is quicker than np.unique's hashing.
        ids: Index = np.sort(self.calls.correlation[inside])
        return int(np.count_nonzero(np.diff(ids))) + 1 if len(ids) else 0


def _in_captures(calls: RuntimeCalls) -> Flags:
    """The calls between those that begin and end the capture of a graph, by thread."""
    begins, ends = calls.named(BEGIN_CAPTURE), calls.named(END_CAPTURE)
    captured = np.zeros(len(calls.start), dtype=np.bool_)
    for thread in np.unique(calls.thread[begins]).tolist():
        own = calls.thread == thread
        begun, ended = (
            np.searchsorted(np.sort(calls.start[marks & own]), calls.start[own])
            for marks in (begins, ends)
        )
        captured[own] = begun > ended
    return captured
