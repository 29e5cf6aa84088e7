"""Why nothing ran: the gaps of a device, split by what the host was doing."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from .idle_causes import BETWEEN, HOST_LATE, ON_SYNC, UNKNOWN
from .trace.activities import Activities
from .trace.events import NONE, HostEvents, Kind, Trace
from .trace.intervals import Cover, Times

LAUNCH = re.compile(r"Launch(?!HostFunc)|Memcpy|Memset|Enqueue")
SYNC = re.compile(r"(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy$")


def idle_causes(trace: Trace, work: Activities, low: int, high: int) -> tuple[dict[str, int], int]:
    """Split the time of [low, high) in which nothing ran.

    Up to the moment the host began to launch what ends a gap, the host is late; it is on a
    sync if it was inside a synchronising call when the gap began. After that moment the
    work was launched and had not started. From the launch of something that the trace never
    shows running, a gap cannot be called idle.

    Returns:
        Nanoseconds by cause (they and the next sum to all gaps), unattributed nanoseconds.
    """
    host = trace.host
    begin, end = Cover(work.start, work.end).gaps(low, high)
    lost = _until_lost_launch(lost_launches(trace), begin, end)
    order = np.argsort(work.start, kind="stable")
    following = np.searchsorted(work.start[order], end)
    has_next = following < len(order)
    launched = np.full(len(end), high)
    launched[has_next] = work.launched[order[following[has_next]]]
    is_sync = _named(trace, host, SYNC)
    syncs = Cover(host.start[is_sync], host.end[is_sync])
    on_sync = syncs.within(begin, begin + 1) > 0
    late = np.clip(launched, begin, lost) - begin
    unknown = has_next & (launched == NONE)
    causes = {
        HOST_LATE: late[~on_sync & ~unknown],
        ON_SYNC: late[on_sync & ~unknown],
        BETWEEN: (lost - begin - late)[~unknown],
        UNKNOWN: (lost - begin)[unknown],
    }
    return {cause: int(part.sum()) for cause, part in causes.items()}, int((end - lost).sum())


def count_launches(trace: Trace, work: Activities, low: int, high: int) -> int:
    """Calls in [low, high) that asked a device for work, and the earlier ones of work in it."""
    host = trace.host
    low = int(work.launched[work.linked].min(initial=low))
    is_launch = _named(trace, host, LAUNCH) & (host.start >= low) & (host.start < high)
    return len(np.unique(host.correlation[is_launch]))


def lost_launches(trace: Trace) -> Times:
    """When the host launched what no device, as far as the trace tells, ever ran."""
    host = trace.host
    launches = host.take(_named(trace, host, LAUNCH) & (host.correlation > 0))
    shown = np.isin(launches.correlation, trace.device.correlation)
    _, first = np.unique(launches.correlation[~shown], return_index=True)
    return launches.start[~shown][first]


def _until_lost_launch(lost: Times, begin: Times, end: Times) -> Times:
    """For each gap the first lost launch in it or shortly before it, or its end."""
    result = end.copy()
    gap = np.searchsorted(end, lost, side="right")
    lost, gap = lost[gap < len(end)], gap[gap < len(end)]
    np.minimum.at(result, gap, np.maximum(lost, begin[gap]))
    return result


def _named(trace: Trace, host: HostEvents, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    matches = np.array([bool(pattern.search(name)) for name in trace.names], dtype=bool)
    return np.asarray((host.kind == Kind.RUNTIME) & matches[host.name])
