"""FLOPs and bytes of a kernel table's rows: each operator's cost goes to one piece of work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.core.formatting import percent
from sysbench.core.record.record import KernelRow, Kernels
from sysbench.core.trace.captures import Joined
from sysbench.core.trace.classify import classify
from sysbench.core.trace.intervals import Times, sums_by
from sysbench.core.trace.module_tree import fold_layer_numbers
from sysbench.core.trace.operands import parse_operands
from sysbench.core.trace.operators import (
    COUNTED_CATEGORIES,
    Cost,
    may_multiply,
    operator_cost,
)
from sysbench.core.trace.scopes import Scopes, host_scopes, launches_of
from sysbench.core.trace.time_ledger import TimeLedger, Window, steps_window
from sysbench.core.trace.trace_events import (
    NONE,
    Index,
    Kind,
    Trace,
    follow_flow,
    names_fit,
    nearest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCosts:
    """Distinct costs, and the index of each host event's cost; -1 for none."""

    costs: list[Cost]
    cost: Index

    def flag(self, name: str) -> NDArray[np.bool_]:
        flag_of_cost = np.array([getattr(cost, name) for cost in self.costs], dtype=bool)
        return np.asarray(follow_flow(self.cost, flag_of_cost.astype(np.int64), 0) == 1)

    def counting(self, parent: Index) -> EventCosts:
        """Return the costs without duplicates: of nested operators the outermost counts.

        If a composite operator contains operators with a cost, these count instead.
        """
        has_cost, is_composite = self.cost != NONE, self.flag("is_composite")
        # `nearest` includes the event itself: read at the parent it is the nearest above.
        above = follow_flow(parent, nearest(has_cost & ~is_composite, parent))
        counts = has_cost & ~is_composite & (above == NONE)
        # A composite counts only where nothing counts inside it or around it: on this device it
        # was one kernel. Composites may nest in each other: then, too, the outermost.
        inside_counted = nearest(counts, parent) != NONE
        undivided = has_cost & is_composite & ~_around(counts, parent) & ~inside_counted
        counts |= undivided & (follow_flow(parent, nearest(undivided, parent)) == NONE)
        return EventCosts(costs=self.costs, cost=np.where(counts, self.cost, NONE))


def _around(inside: NDArray[np.bool_], parent: Index) -> NDArray[np.bool_]:
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
    """Return costs from the shapes in the trace itself, in the order of the scopes' events."""
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
    """Return names of operators that may multiply matrices and have shapes but no known cost.

    Operators inside one with a cost or around a product are excluded: their work is counted there.
    So are torch's own around any arithmetic, as ``einsum`` around ``mul``. Of nested ones the
    outermost is named.
    """
    events = scopes.events
    covered = nearest(costs.cost != NONE, scopes.parent) != NONE
    is_own = names_fit(trace.names, events.name, lambda name: name.startswith("aten::"))
    around = _around(costs.flag("is_product"), scopes.parent)
    around |= is_own & _around(costs.flag("flops"), scopes.parent)
    may = names_fit(trace.names, events.name, may_multiply)
    open_ = (events.operands != NONE) & (events.kind == Kind.OPERATOR) & may & ~covered & ~around
    inside = follow_flow(scopes.parent, nearest(open_, scopes.parent)) != NONE
    return sorted({trace.names[name] for name in np.unique(events.name[open_ & ~inside]).tolist()})


def _calls(
    trace: Trace, scopes: Scopes, window: Window | None = None
) -> dict[tuple[str, str], Index]:
    """Return the operator calls by phase and name, in time order."""
    events = scopes.events
    wanted = events.kind == Kind.OPERATOR
    if window is not None:  # half-open, like every interval
        wanted &= (events.start >= window.low) & (events.start < window.high)
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


RowKey = tuple[str, str, str, str]
Amounts = tuple[float | None, float]


class WorkCosts(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs (None if unknown) and bytes per step by row; products by phase, also those in no row.

    ``reasons`` say why values are unknown, by name of the value.
    """

    rows: dict[RowKey, Amounts]
    products: dict[str, float]
    reasons: dict[str, str] = {}


def work_from_shapes(trace: Trace, ledger: TimeLedger) -> WorkCosts | None:
    if not trace.operands:
        return None
    costs = costs_from_shapes(trace, ledger.scopes)
    return work_costs(trace, ledger, costs, uncounted(trace, ledger.scopes, costs))


def work_from_other_trace(
    trace: Trace, ledger: TimeLedger, shapes: Trace, list_item_bytes: int
) -> WorkCosts:
    """Return costs of a trace without shapes, from one equal step that has shapes.

    The k-th call of a name in a phase of each step gets the cost of the k-th such call of that
    step. Names whose number of calls differs have no cost.
    """
    scopes, shape_scopes = ledger.scopes, host_scopes(shapes)
    shape_costs = costs_from_shapes(shapes, shape_scopes, list_item_bytes)
    traced = _calls(trace, scopes, ledger.window)
    steps = ledger.window.steps
    unlike: set[str] = set()
    cost = np.full(len(scopes.events), NONE)
    for key, shaped in _calls(shapes, shape_scopes).items():
        counted, places = shape_costs.cost[shaped], traced.get(key, shaped[:0])
        if len(places) == steps * len(counted):
            # The calls are in order of time, so all of one step come before those of the next.
            cost[places] = np.tile(counted, steps)
        elif (counted != NONE).any():
            unlike.add(key[1])
    costs = EventCosts(costs=shape_costs.costs, cost=cost)
    left_out = uncounted(shapes, shape_scopes, shape_costs)
    return work_costs(trace, ledger, costs, sorted({*left_out, *unlike}))


def work_from_capture(joined: Joined, ledger: TimeLedger) -> WorkCosts | None:
    """Return costs of graph replays from the shapes of their capture, or None.

    Args:
        ledger: With the operators of the capture.
    """
    capture, scopes = joined.capture, joined.scopes
    if not capture.operands:
        return None
    counting = costs_from_shapes(capture, scopes).counting(scopes.parent)
    root = follow_flow(joined.launch, nearest(counting.cost != NONE, scopes.parent))
    is_product = counting.flag("is_product")[root]
    # An operator of the capture runs once in each replay.
    counts = (root != NONE) & joined.shaped
    of_replay = np.where(counts, joined.replay * len(scopes.events) + root, NONE)
    calls, roots = _longest_fitting(ledger, of_replay, _multiplies(ledger) == is_product)
    return _placed(ledger, calls, counting, roots % len(scopes.events))


def add_work(own: WorkCosts | None, other: WorkCosts | None) -> WorkCosts | None:
    if own is None or other is None:
        return own or other
    phases = own.products.keys() | other.products.keys()
    return WorkCosts(
        rows=_sum_rows([*own.rows.items(), *other.rows.items()]),
        products={
            phase: own.products.get(phase, 0.0) + other.products.get(phase, 0.0)
            for phase in sorted(phases)
        },
        reasons=own.reasons | other.reasons,
    )


def work_costs(
    trace: Trace, ledger: TimeLedger, costs: EventCosts, left_out: list[str]
) -> WorkCosts:
    """Sum costs by row over the ledger's window; ``left_out`` names operators without a cost.

    On a device an operator's cost goes to the longest kernel it launched; for a matrix product, to
    the longest that multiplies matrices. On the host it goes to the operator itself, or to the
    inner operator with most of the time over all such calls.
    """
    scopes = ledger.scopes
    counting = costs.counting(scopes.parent)
    root = nearest(counting.cost != NONE, scopes.parent)
    if ledger.source == "kernels":
        launch, multiplies = _launches(trace, ledger), _product_kernels(trace, ledger)
        root_of_piece = follow_flow(launch, root)
        # A root of -1 reads the last flag; it is left out.
        fits = multiplies == counting.flag("is_product")[root_of_piece]
        calls, roots = _longest_fitting(ledger, root_of_piece, fits)
        without = multiplies & (launch != NONE) & (root_of_piece == NONE)
        left_out = sorted({*left_out, *_launchers(ledger, launch, np.flatnonzero(without))})
    else:
        calls, roots = _carriers(ledger, root)
    placed = _placed(ledger, calls, counting, roots)
    products = _products(scopes, ledger.host_window or steps_window(trace), counting)
    placed_flops, all_flops = (sum(flops.values()) for flops in (placed.products, products))
    return msgspec.structs.replace(
        placed, products=products, reasons=_reasons(left_out, placed_flops, all_flops)
    )


def _placed(ledger: TimeLedger, pieces: Index, costs: EventCosts, events: Index) -> WorkCosts:
    pairs = [
        (key, costs.costs[cost])
        for key, cost in zip(_keys(ledger, pieces), costs.cost[events].tolist(), strict=True)
    ]
    products: dict[str, float] = defaultdict(float)
    for (_, phase, *_), cost in pairs:
        if cost.is_product:
            products[phase] += cost.flops or 0.0
    rows = _sum_rows((key, (cost.flops, cost.moved_bytes)) for key, cost in pairs)
    steps = ledger.window.steps
    return WorkCosts(
        rows={
            key: (None if flops is None else flops / steps, moved / steps)
            for key, (flops, moved) in rows.items()
        },
        products={phase: flops / steps for phase, flops in products.items()},
    )


def _sum_rows(amounts: Iterable[tuple[RowKey, Amounts]]) -> dict[RowKey, Amounts]:
    """Sum by row; FLOPs are unknown if any are."""
    rows: dict[RowKey, Amounts] = {}
    for key, (flops, moved) in amounts:
        before, moved_before = rows.get(key, (0.0, 0.0))
        both = None if flops is None or before is None else before + flops
        rows[key] = (both, moved_before + moved)
    return rows


def _reasons(left_out: list[str], placed: float, products: float) -> dict[str, str]:
    reasons = {}
    if left_out:
        reasons["counted_flops"] = f"not counted: {', '.join(left_out)}"
    if placed < products * (1 - 1e-9):
        reasons["flops"] = (
            f"{percent(1 - placed / products)} of the FLOPs are in no row: the kernels that "
            "ran them are unknown"
        )
    return reasons


def with_costs(kernels: Kernels, costs: WorkCosts | None) -> Kernels:
    if costs is None:
        reason = "the trace has no shapes: record it with record_shapes=True"
        return msgspec.structs.replace(kernels, missing=kernels.missing | {"flops": reason})
    # The costs are by layer; a label that the table lacks was folded there.
    labels = {row.module for row in kernels.rows}
    sums = _sum_rows(
        ((name, phase, module if module in labels else fold_layer_numbers(module), op), amounts)
        for (name, phase, module, op), amounts in costs.rows.items()
    )

    def with_cost(row: KernelRow) -> KernelRow:
        key = (row.name, row.phase, row.module, row.op)
        if not row.linked or key not in sums:
            return row
        flops, moved = sums[key]
        return msgspec.structs.replace(row, flops=flops, moved_bytes=moved)

    return msgspec.structs.replace(
        kernels,
        rows=[with_cost(row) for row in kernels.rows],
        counted_flops=costs.products,
        missing=kernels.missing | costs.reasons,
    )


def _keys(ledger: TimeLedger, pieces: Index) -> Iterator[RowKey]:
    work = ledger.work
    columns = (work.name[pieces], work.phase[pieces], work.module[pieces], work.operator[pieces])
    for name, phase, module, operator in zip(*map(np.ndarray.tolist, columns), strict=True):
        yield (
            ledger.names[name],
            ledger.phases[phase],
            ledger.modules[module] if module != NONE else "",
            ledger.names[operator] if operator != NONE else "",
        )


def _launches(trace: Trace, ledger: TimeLedger) -> Index:
    events = trace.device
    # `work.call` numbers the events of the ledger's device alone.
    events = events.take(np.isin(events.device, ledger.other_devices, invert=True))
    return launches_of(events, ledger.scopes.events)[ledger.work.call]


def _launchers(ledger: TimeLedger, launch: Index, pieces: Index) -> Iterator[str]:
    """Names of the operators that launched pieces of work; of a piece without one its own.

    Graphs are left out: their operators ran when they were captured.
    """
    events, names = ledger.scopes.events, ledger.names
    for call, piece in zip(launch[pieces].tolist(), pieces.tolist(), strict=True):
        if not names[events.name[call]].endswith("GraphLaunch"):
            operator = ledger.work.operator[piece]
            yield names[operator if operator != NONE else ledger.work.name[piece]]


def _product_kernels(trace: Trace, ledger: TimeLedger) -> NDArray[np.bool_]:
    """Return whether each piece of work is a kernel that multiplies matrices, by its name."""
    events = trace.device
    kind = events.kind[np.isin(events.device, ledger.other_devices, invert=True)]
    return np.asarray(_multiplies(ledger) & (kind[ledger.work.call] == Kind.KERNEL))


def _multiplies(ledger: TimeLedger) -> NDArray[np.bool_]:
    return names_fit(
        ledger.names, ledger.work.name, lambda name: classify(name) in COUNTED_CATEGORIES
    )


def _longest_fitting(
    ledger: TimeLedger, root_of_piece: Index, fits: NDArray[np.bool_]
) -> tuple[Index, Index]:
    work = ledger.work
    pieces = np.flatnonzero(root_of_piece != NONE)
    # By root, then those that fit last, then by duration: the last of a root is its choice.
    roots = root_of_piece[pieces]
    order = np.lexsort((work.end[pieces] - work.start[pieces], fits[pieces], roots))
    return _last_of_each(pieces[order], roots[order])


def _carriers(ledger: TimeLedger, root: Index) -> tuple[Index, Index]:
    """Return one piece of work for each host operator with a cost, and the operators.

    The choice is by name over all calls: every ``aten::linear`` gives its cost to the same row,
    even if another piece took longer in one call.
    """
    work = ledger.work
    root_of_piece = root[work.call]  # on the host a call is its event
    pieces = np.flatnonzero(root_of_piece != NONE)
    roots = root_of_piece[pieces]
    # One integer for each pair of names, the operator's and the piece's.
    pair = ledger.scopes.events.name[roots] * len(ledger.names) + work.name[pieces]
    pairs, which = np.unique(pair, return_inverse=True)
    time = sums_by(which, ledger.exclusive[pieces], len(pairs))
    # By root, then by the time of the pair; of one name in a call the first piece comes last.
    order = np.lexsort((-work.start[pieces], time[which], roots))
    return _last_of_each(pieces[order], roots[order])


def _last_of_each(pieces: Index, group: Index) -> tuple[Index, Index]:
    last = np.flatnonzero(np.diff(group, append=-1) != 0)  # no group is -1
    return pieces[last], group[last]


def _products(scopes: Scopes, marked: Window | None, costs: EventCosts) -> dict[str, float]:
    """Return FLOPs of matrix products by phase, per marked step or for a whole imported trace.

    The window of an imported trace begins with device work, after the host launched some of it.
    """
    start = scopes.events.start
    is_counted = costs.flag("is_product")
    if marked is not None:
        is_counted &= (start >= marked.low) & (start < marked.high)
    places = np.flatnonzero(is_counted)
    sums: dict[str, float] = defaultdict(float)
    for phase, cost in zip(scopes.phase[places].tolist(), costs.cost[places].tolist(), strict=True):
        sums[scopes.phases[phase]] += costs.costs[cost].flops or 0.0
    steps = marked.steps if marked is not None else 1
    return {phase: flops / steps for phase, flops in sums.items()}
