"""What ran, when, and whose it was: the kernels of a device, or the operators of a host."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..kernels.classify import classify
from .events import NONE, DeviceEvents, HostEvents, Index, Kind, Trace, follow, self_times
from .intervals import Times
from .scopes import UNKNOWN_PHASE, Scopes

ENGINE_NAME = "autograd engine"
COMPUTE, COMMUNICATION, MEMORY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities:
    """Pieces of work as columns of equal length, in no order.

    ``name`` and ``operator`` are indices of the names, ``phase`` and ``module`` of theirs.
    ``rank`` decides whose an instant is when several run: computation before communication
    before copies. ``call`` numbers the call that a piece is part of. ``launched`` is when
    the host asked for it, -1 if that is not in the trace (then ``linked`` is false);
    ``in_graph`` is what the launch of a CUDA graph asked for.
    """

    name: Index
    start: Times
    end: Times
    rank: Index
    call: Index
    phase: Index
    module: Index
    operator: Index
    launched: Times
    in_graph: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.name)

    @property
    def linked(self) -> NDArray[np.bool_]:
        """Whose launch is in the trace."""
        return np.asarray(self.launched != NONE)

    def clipped(self, low: int, high: int) -> Activities:
        """What lies in [low, high)."""
        start, end = np.clip(self.start, low, high), np.clip(self.end, low, high)
        inside = np.flatnonzero((end > start) | ((self.start == self.end) & (start == self.start)))
        columns = {field.name: getattr(self, field.name)[inside] for field in fields(self)}
        return Activities(**columns | {"start": start[inside], "end": end[inside]})


def device_activities(trace: Trace, scopes: Scopes, device: int) -> Activities:
    """What one device ran; phase, module and operator by the call that launched it."""
    events = trace.device
    events = events.take(events.device == device)
    launch = launches_of(events, scopes.events)
    unknown = scopes.phases.index(UNKNOWN_PHASE)
    is_graph_launch = scopes.names.is_graph_launch[scopes.events.name]
    return Activities(
        name=events.name,
        start=events.start,
        end=events.end,
        rank=_ranks(trace, events),
        call=np.arange(len(events)),
        phase=follow(launch, scopes.phase, unknown),
        module=follow(launch, scopes.module),
        operator=follow(launch, scopes.operator),
        launched=follow(launch, scopes.events.start),
        in_graph=follow(launch, is_graph_launch.astype(np.int64), 0) == 1,
    )


def launches_of(events: DeviceEvents, host: HostEvents) -> Index:
    """For each device event the index of the runtime call with its correlation id, or -1."""
    calls = np.flatnonzero((host.kind == Kind.RUNTIME) & (host.correlation > 0))
    ids, first = np.unique(host.correlation[calls], return_index=True)
    if not len(ids):
        return np.full(len(events), NONE)
    place = np.minimum(np.searchsorted(ids, events.correlation), len(ids) - 1)
    return np.where(ids[place] == events.correlation, calls[first[place]], NONE)


def host_activities(trace: Trace, scopes: Scopes) -> tuple[list[str], Activities]:
    """The operators of all host threads, each without the operators inside it.

    Returns:
        The trace's names, what the autograd engine does around each node under one; and
        the pieces of work.
    """
    names = scopes.names
    owner, start, end = self_times(scopes.events, scopes.parent)
    is_operator = (scopes.events.kind == Kind.OPERATOR) & ~names.is_range[scopes.events.name]
    kept = is_operator[owner]
    owner, start, end = owner[kept], start[kept], end[kept]
    name = scopes.events.name[owner]
    return [*trace.names, ENGINE_NAME], Activities(
        name=np.where(names.is_engine[name], len(trace.names), name),
        start=start,
        end=end,
        rank=np.zeros(len(owner), dtype=np.int64),
        call=owner,
        phase=scopes.phase[owner],
        module=scopes.module[owner],
        operator=scopes.operator[owner],
        launched=start,
        in_graph=np.zeros(len(owner), dtype=bool),
    )


def _ranks(trace: Trace, events: DeviceEvents) -> Index:
    used = np.unique(events.name)
    of_name = np.full(len(trace.names), COMPUTE)
    of_name[used] = [
        COMMUNICATION if classify(trace.names[name]) == "communication" else COMPUTE
        for name in used.tolist()
    ]
    return np.where(events.kind == Kind.KERNEL, of_name[events.name], MEMORY)
