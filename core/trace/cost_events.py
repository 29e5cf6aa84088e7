"""The cost of each operator call in a trace, from the shapes in that trace or in another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.classify import classify_operator
from sysbench.core.trace.intervals import Times
from sysbench.core.trace.operands import parse_operands
from sysbench.core.trace.operators import COUNTED_CATEGORIES, Cost, operator_cost
from sysbench.core.trace.scopes import Scopes
from sysbench.core.trace.trace_events import NONE, Index, Kind, Trace, follow, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCosts:
    """The distinct costs, and for each host event the index of its cost; -1 for none."""

    costs: list[Cost]
    cost: Index

    def flag(self, name: str) -> NDArray[np.bool_]:
        """A boolean attribute of every event's cost; false where it has none."""
        flag_of_cost = np.array([getattr(cost, name) for cost in self.costs], dtype=bool)
        return np.asarray(follow(self.cost, flag_of_cost.astype(np.int64), 0) == 1)

    def counting(self, parent: Index) -> EventCosts:
        """The same costs without duplicates: of nested operators the outermost counts.

        Where a composite operator has operators with a cost inside, these count instead of it.
        """
        has_cost, is_composite = self.cost != NONE, self.flag("is_composite")
        # `nearest` includes the event itself: read at the parent it is the nearest above.
        above = follow(parent, nearest(has_cost & ~is_composite, parent))
        counts = has_cost & ~is_composite & (above == NONE)
        # A composite counts only where nothing counts inside it or around it: on this device it
        # was one kernel. Composites may nest in each other: then, too, the outermost.
        inside_counted = nearest(counts, parent) != NONE
        undivided = has_cost & is_composite & ~_around(counts, parent) & ~inside_counted
        counts |= undivided & (follow(parent, nearest(undivided, parent)) == NONE)
        return EventCosts(costs=self.costs, cost=np.where(counts, self.cost, NONE))


def _around(inside: NDArray[np.bool_], parent: Index) -> NDArray[np.bool_]:
    """Mask of the events that enclose one of these, at any depth."""
    result = np.zeros(len(parent), dtype=bool)
    above = parent[inside]
    while len(above := np.unique(above[above != NONE])):
        above = above[~result[above]]  # what is above a marked event is marked, too
        result[above] = True
        above = parent[above]
    return result


def costs_from_shapes(
    trace: Trace, scopes: Scopes, list_item_bytes: int | None = None
) -> EventCosts:
    """Costs from the shapes in the trace itself, in the order of the scopes' events."""
    events = scopes.events
    parsed = [parse_operands(text) for text in trace.operands]
    # One integer for each pair of name and operands, which `divmod` takes apart again; operands
    # of -1 take the place 0. A cost is reckoned once per pair: a trace has few of them.
    count = len(parsed) + 1
    pairs, which = np.unique(events.name * count + events.operands + 1, return_inverse=True)
    costs: list[Cost] = []
    cost_of_pair = []
    for pair in pairs.tolist():
        name, index = divmod(pair, count)
        operands = parsed[index - 1] if index else None
        cost = operator_cost(trace.names[name], operands, list_item_bytes) if operands else None
        cost_of_pair.append(NONE if cost is None else len(costs))
        if cost is not None:
            costs.append(cost)
    is_operator = events.kind == Kind.OPERATOR
    cost_of_event = np.array(cost_of_pair, dtype=np.int64)[which]
    return EventCosts(costs=costs, cost=np.where(is_operator, cost_of_event, NONE))


def uncounted(trace: Trace, scopes: Scopes, costs: EventCosts) -> list[str]:
    """Names of operators that multiply matrices, have shapes, but no known cost.

    An operator inside or around one with a cost is left out: its work is counted there.
    """
    events = scopes.events
    covered = nearest(costs.cost != NONE, scopes.parent) != NONE
    around = _around(costs.cost != NONE, scopes.parent)
    open_ = (events.operands != NONE) & (events.kind == Kind.OPERATOR) & ~covered & ~around
    names = {trace.names[name] for name in np.unique(events.name[open_]).tolist()}
    return sorted(
        name
        for name in names
        if name.startswith("aten::") and classify_operator(name) in COUNTED_CATEGORIES
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCensus:
    """The costs of one step's operator calls, by phase and name, in order of time."""

    costs: list[Cost]
    calls: dict[tuple[str, str], Index]


def count_operator_calls(trace: Trace, scopes: Scopes, costs: EventCosts) -> ShapeCensus:
    """All operator calls of a trace of one step, with their costs."""
    calls = {key: costs.cost[places] for key, places in _calls(trace, scopes).items()}
    return ShapeCensus(costs=costs.costs, calls=calls)


def costs_from_other_trace(
    trace: Trace, scopes: Scopes, shapes: ShapeCensus, steps: int, window: tuple[int, int]
) -> tuple[EventCosts, list[str]]:
    """Costs of a trace without shapes, whose steps are equal, from one step that has them.

    The k-th call of a name in a phase of each step gets the cost of the k-th such call in
    ``shapes``.

    Returns:
        The costs, and the names with another number of calls, whose costs stay unknown.
    """
    cost = np.full(len(scopes.events), NONE)
    unlike = set()
    traced = _calls(trace, scopes, window)
    for key, counted in shapes.calls.items():
        places = traced.get(key, np.array([], dtype=np.int64))
        if len(places) == steps * len(counted):
            # The calls are in order of time, so all of one step come before those of the next.
            cost[places] = np.tile(counted, steps)
        elif (counted != NONE).any():
            unlike.add(key[1])
    return EventCosts(costs=shapes.costs, cost=cost), sorted(unlike)


def _calls(
    trace: Trace, scopes: Scopes, window: tuple[int, int] | None = None
) -> dict[tuple[str, str], Index]:
    """Indices of operator events by phase and name, in order of time across threads."""
    events = scopes.events
    wanted = events.kind == Kind.OPERATOR
    if window is not None:  # half-open, like every interval
        wanted &= (events.start >= window[0]) & (events.start < window[1])
    chosen: Times = np.flatnonzero(wanted)
    phase, name = scopes.phase[chosen], events.name[chosen]
    order = np.lexsort((events.start[chosen], name, phase))  # by phase, name, then start
    chosen, phase, name = chosen[order], phase[order], name[order]
    ends = np.flatnonzero((np.diff(phase) != 0) | (np.diff(name) != 0)) + 1
    groups = np.split(np.arange(len(chosen)), ends) if len(chosen) else []
    return {
        (scopes.phases[phase[group[0]]], trace.names[name[group[0]]]): chosen[group]
        for group in groups
    }
