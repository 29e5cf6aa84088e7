"""Split a rank's span into computing, waiting for the last rank, transfer, and idle."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from sysbench.core.trace.intervals import Cover
from sysbench.core.trace.rank_summary import RankTrace


class SpanParts(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds that add up to a window; see `FileRankRow`."""

    span_ns: int
    compute_ns: int
    exposed_ns: int
    waiting_ns: int
    transfer_ns: int
    undivided_ns: int
    idle_ns: int


class SpanSplit:
    """Activity of a rank; `within` sums it over any window of its own clock.

    ``waiting`` is the exposed time until the last rank reached a collective.
    """

    def __init__(self, trace: RankTrace, last: Mapping[int, int]) -> None:
        # `last`: arrival of the last rank by the identity of the call, see `last_arrivals`.
        calls = [(call, last[id(call)]) for call in trace.calls if id(call) in last]
        # With inexact clocks a call may end before the last arrival: then it has no transfer.
        moving = trace.cover(
            [(max(call.start_ns, come), call.end_ns) for call, come in calls if come < call.end_ns]
        )
        waiting = trace.cover([(call.start_ns, min(come, call.end_ns)) for call, come in calls])
        self.work = trace.work
        self.exposed = trace.communication.without(trace.compute)
        self._transfer = moving.shared(self.exposed)
        divided = _union(moving, waiting).shared(self.exposed)
        self.waiting = divided.without(self._transfer)
        self._undivided = self.exposed.without(divided)
        self._busy = _union(self.work, self.exposed)
        self.low_ns, self.high_ns = trace.low_ns, trace.high_ns

    def whole(self) -> SpanParts:
        return self.within(self.low_ns, self.high_ns)

    def within(self, low_ns: int, high_ns: int) -> SpanParts:
        parts = (self.waiting, self._transfer, self._undivided, self._busy)
        waiting, transfer, undivided, busy = (part.length(low_ns, high_ns) for part in parts)
        return SpanParts(
            span_ns=high_ns - low_ns,
            compute_ns=busy - waiting - transfer - undivided,
            exposed_ns=waiting + transfer + undivided,
            waiting_ns=waiting,
            transfer_ns=transfer,
            undivided_ns=undivided,
            idle_ns=high_ns - low_ns - busy,
        )


def _union(a: Cover, b: Cover) -> Cover:
    return Cover(np.r_[a.start, b.start], np.r_[a.end, b.end])
