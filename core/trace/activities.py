"""Pieces of work with phase, module and operator: kernels of a device or operators of a host.

A call of a host operator can have several pieces: the time of inner operators is cut out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.classify import is_communication
from sysbench.core.trace.intervals import Times
from sysbench.core.trace.kernel_names import is_migration
from sysbench.core.trace.scopes import UNKNOWN_PHASE, Scopes
from sysbench.core.trace.trace_events import (
    NONE,
    DeviceEvents,
    EventColumns,
    HostEvents,
    Index,
    Kind,
    Trace,
    follow_flow,
    names_fit,
    self_times,
)

ENGINE_NAME = "autograd engine"
COMPUTE, COMMUNICATION, MEMORY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities(EventColumns):
    """Pieces of work as columns of equal length, unordered.

    ``name``, ``operator``, ``phase`` and ``module`` are indices. ``rank`` decides which of several
    concurrent pieces an instant counts for: computation, then communication, then copies. ``call``
    numbers the call that contains a piece. ``launched`` and ``returned`` are the begin and end of
    the launch call on the host, -1 if not recorded. ``in_graph`` marks pieces launched by a CUDA
    graph. ``collective`` and ``bytes`` are as in `DeviceEvents`. ``lane`` is the stream of the
    device (-1 if unknown) or the thread of the host.
    """

    name: Index
    rank: Index
    call: Index
    phase: Index
    module: Index
    operator: Index
    launched: Times
    returned: Times
    in_graph: NDArray[np.bool_]
    collective: Index
    bytes: Index
    lane: Index

    @property
    def linked(self) -> NDArray[np.bool_]:
        return np.asarray(self.launched != NONE)

    def clipped(self, low: int, high: int) -> Activities:
        start, end = np.clip(self.start, low, high), np.clip(self.end, low, high)
        # A piece without length covers no time but is a call: it stays unless clipping moved it.
        inside = np.flatnonzero((end > start) | ((self.start == self.end) & (start == self.start)))
        return replace(self.take(inside), start=start[inside], end=end[inside])


def device_activities(trace: Trace, scopes: Scopes, device: int) -> Activities:
    """Return the work of one device; phase, module and operator are those of the launching call."""
    events = trace.device
    events = events.take(events.device == device)
    launch = launches_of(events, scopes.events)
    # An access to a page starts its migration, not a call: it is its own launch.
    own = (launch == NONE) & names_fit(trace.names, events.name, is_migration)
    unknown = scopes.phases.index(UNKNOWN_PHASE)
    is_graph_launch = scopes.names.is_graph_launch[scopes.events.name]
    return Activities(
        name=events.name,
        start=events.start,
        end=events.end,
        rank=_ranks(trace, events),
        call=np.arange(len(events)),
        phase=follow_flow(launch, scopes.phase, unknown),
        module=follow_flow(launch, scopes.module),
        operator=follow_flow(launch, scopes.operator),
        launched=np.where(own, events.start, follow_flow(launch, scopes.events.start)),
        returned=np.where(own, events.start, follow_flow(launch, scopes.events.end)),
        in_graph=follow_flow(launch, is_graph_launch.astype(np.int64), 0) == 1,
        collective=events.collective,
        bytes=events.bytes,
        lane=events.stream,
    )


def launches_of(events: DeviceEvents, host: HostEvents) -> Index:
    """Return the index of each event's runtime call by correlation id, or -1."""
    # Id 0 links nothing, like -1.
    calls = np.flatnonzero((host.kind == Kind.RUNTIME) & (host.correlation > 0))
    ids, first = np.unique(host.correlation[calls], return_index=True)
    if not len(ids):
        return np.full(len(events), NONE)
    # An id beyond the largest would be found past the end; the comparison rejects it.
    position = np.minimum(np.searchsorted(ids, events.correlation), len(ids) - 1)
    return np.where(ids[position] == events.correlation, calls[first[position]], NONE)


def host_activities(trace: Trace, scopes: Scopes) -> tuple[list[str], Activities]:
    """Return the operators of all host threads as pieces of work, without inner operators.

    A call that consists of inner operators only is a piece of length 0, so that it is counted.

    Returns:
        The trace's names, plus one for the work of the autograd engine around each node; and the
            pieces.
    """
    names = scopes.names
    owner, start, end = self_times(scopes.events, scopes.parent)
    is_operator = (scopes.events.kind == Kind.OPERATOR) & ~names.is_range[scopes.events.name]
    owned = is_operator[owner]
    covered = is_operator.copy()
    covered[owner] = False
    inner = np.flatnonzero(covered)
    begin = scopes.events.start[inner]
    owner = np.r_[owner[owned], inner]
    start, end = np.r_[start[owned], begin], np.r_[end[owned], begin]
    name = scopes.events.name[owner]
    return [*trace.names, ENGINE_NAME], Activities(
        # The engine's events are named by their node: one added name stands for all of them.
        name=np.where(names.is_engine[name], len(trace.names), name),
        start=start,
        end=end,
        rank=np.zeros(len(owner), dtype=np.int64),
        call=owner,
        phase=scopes.phase[owner],
        module=scopes.module[owner],
        operator=scopes.operator[owner],
        launched=start,  # an operator is its own launch, so every piece is linked
        returned=end,
        in_graph=np.zeros(len(owner), dtype=bool),
        collective=np.full(len(owner), NONE),
        bytes=np.full(len(owner), NONE),
        lane=scopes.events.thread[owner],
    )


def _ranks(trace: Trace, events: DeviceEvents) -> Index:
    communicates = names_fit(trace.names, events.name, is_communication)
    kernel_rank = np.where(communicates, COMMUNICATION, COMPUTE)
    return np.where(events.kind == Kind.KERNEL, kernel_rank, MEMORY)
