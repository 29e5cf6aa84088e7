"""The cost of each operator call in a trace, from the shapes noted in it or in another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..kernels.classify import classify_operator
from ..trace.events import NONE, Index, Kind, Trace, follow, nearest
from ..trace.intervals import Times
from ..trace.scopes import Scopes
from .operands import parse_operands
from .operators import COUNTED_CATEGORIES, Cost, operator_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCosts:
    """The different costs, and which of them each host event has; -1 for none."""

    costs: list[Cost]
    cost: Index

    def flag(self, name: str) -> NDArray[np.bool_]:
        """A yes or no of every event's cost; no where it has none."""
        of_cost = np.array([getattr(cost, name) for cost in self.costs], dtype=bool)
        return np.asarray(follow(self.cost, of_cost.astype(np.int64), 0) == 1)

    def counting(self, parent: Index) -> EventCosts:
        """The same without what would count twice: the outermost known operator counts.

        Where an operator that yields has known ones inside, these count in its place.
        """
        known, yields = self.cost != NONE, self.flag("yields")
        above = follow(parent, nearest(known & ~yields, parent))
        counts = known & ~yields & (above == NONE)
        below = nearest(counts, parent) != NONE
        alone = known & yields & ~_around(counts, parent) & ~below
        counts |= alone & (follow(parent, nearest(alone, parent)) == NONE)
        return EventCosts(costs=self.costs, cost=np.where(counts, self.cost, NONE))


def _around(inside: NDArray[np.bool_], parent: Index) -> NDArray[np.bool_]:
    """Events with one of these inside, at any depth."""
    result = np.zeros(len(parent), dtype=bool)
    above = parent[inside]
    while len(above := np.unique(above[above != NONE])):
        above = above[~result[above]]
        result[above] = True
        above = parent[above]
    return result


def noted_costs(trace: Trace, scopes: Scopes, list_item_bytes: int | None = None) -> EventCosts:
    """Costs from the shapes in the trace itself, in the order of the scopes' events."""
    events = scopes.events
    parsed = [parse_operands(text) for text in trace.operands]
    count = len(parsed) + 1
    pairs, which = np.unique(events.name * count + events.operands + 1, return_inverse=True)
    costs: list[Cost] = []
    of_pair = []
    for pair in pairs.tolist():
        name, index = divmod(pair, count)
        operands = parsed[index - 1] if index else None
        cost = operator_cost(trace.names[name], operands, list_item_bytes) if operands else None
        of_pair.append(NONE if cost is None else len(costs))
        if cost is not None:
            costs.append(cost)
    is_operator = events.kind == Kind.OPERATOR
    found = np.array(of_pair, dtype=np.int64)[which]
    return EventCosts(costs=costs, cost=np.where(is_operator, found, NONE))


def uncounted(trace: Trace, scopes: Scopes, costs: EventCosts) -> list[str]:
    """Names of operators that multiply matrices, have shapes, and whose cost is not known."""
    events = scopes.events
    known = nearest(costs.cost != NONE, scopes.parent) != NONE
    around = _around(costs.cost != NONE, scopes.parent)
    open_ = (events.operands != NONE) & (events.kind == Kind.OPERATOR) & ~known & ~around
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


def census(trace: Trace, scopes: Scopes, costs: EventCosts) -> ShapeCensus:
    """All operator calls of a trace of one step, with the costs that count."""
    calls = {key: costs.cost[places] for key, places in _calls(trace, scopes).items()}
    return ShapeCensus(costs=costs.costs, calls=calls)


def borrowed_costs(
    trace: Trace, scopes: Scopes, shapes: ShapeCensus, steps: int, window: tuple[int, int]
) -> tuple[EventCosts, list[str]]:
    """Costs of a trace without shapes of equal steps: the k-th call of a name in a phase costs
    what it cost in the census.

    Returns:
        The costs, and the names whose calls are not as many: theirs stay unknown.
    """
    cost = np.full(len(scopes.events), NONE)
    unlike = set()
    traced = _calls(trace, scopes, window)
    for key, counted in shapes.calls.items():
        places = traced.get(key, np.array([], dtype=np.int64))
        if len(places) == steps * len(counted):
            cost[places] = np.tile(counted, steps)
        elif (counted != NONE).any():
            unlike.add(key[1])
    return EventCosts(costs=shapes.costs, cost=cost), sorted(unlike)


def _calls(
    trace: Trace, scopes: Scopes, window: tuple[int, int] | None = None
) -> dict[tuple[str, str], Index]:
    """Operator events by phase and name, in order of time whatever their thread."""
    events = scopes.events
    wanted = events.kind == Kind.OPERATOR
    if window is not None:
        wanted &= (events.start >= window[0]) & (events.start < window[1])
    chosen: Times = np.flatnonzero(wanted)
    phase, name = scopes.phase[chosen], events.name[chosen]
    order = np.lexsort((events.start[chosen], name, phase))
    chosen, phase, name = chosen[order], phase[order], name[order]
    ends = np.flatnonzero((np.diff(phase) != 0) | (np.diff(name) != 0)) + 1
    groups = np.split(np.arange(len(chosen)), ends) if len(chosen) else []
    return {
        (scopes.phases[phase[group[0]]], trace.names[name[group[0]]]): chosen[group]
        for group in groups
    }
