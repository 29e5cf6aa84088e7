"""Join replays of CUDA graphs with the trace of their capture, which has operators and shapes.

A replay is one launch of many kernels, without operators. The capture has the launches in the order
of the graph; on HIP also the names of their kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.classify import LAUNCH, classify, classify_operator
from sysbench.core.trace.columns import BEGIN_CAPTURE, END_CAPTURE
from sysbench.core.trace.scopes import OTHER_PHASE, Scopes, host_scopes, launches_of
from sysbench.core.trace.time_ledger import TimeLedger
from sysbench.core.trace.trace_events import (
    NONE,
    Index,
    Kind,
    Trace,
    follow_flow,
    names_fit,
    nearest,
)

MAX_CHAIN_LENGTH = 64
"""Maximum number of operators compared around a launch; real traces nest about ten."""


MIN_CAPTURED_SHARE = 0.5
"""Least share of a capture's launches that a replay has, to be a part of it."""


class Node(NamedTuple):
    """One piece of work of a graph; ``kernel`` is empty if unknown."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One graph: its launches during capture, as indices of the scopes' events.

    ``whole`` are all launches, if ``launches`` are those of a replay that lacks some.
    """

    launches: list[int]
    nodes: list[Node]
    whole: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Pieces of a ledger's work with the launches of the capture that made them.

    ``launch`` is an index in ``scopes.events`` and ``replay`` a number, or -1, by piece. ``named``
    counts pieces with the kernel name of the capture; ``shaped`` says whether operands are known:
    if several captures fit, they agree. ``reasons`` counts replays that could not be joined.
    ``incomplete`` replays lack launches of their capture; ``unused`` are those in no replay, from
    1, if it is certain.
    """

    capture: Trace
    scopes: Scopes
    launch: Index
    replay: Index
    named: int
    shaped: NDArray[np.bool_]
    reasons: dict[str, int]
    incomplete: int
    unused: list[int]

    @property
    def words(self) -> str:
        of_replays, joined = int((self.replay != NONE).sum()), int((self.launch != NONE).sum())
        text = (
            f"{joined:,} of {of_replays:,} kernels of graph replays are joined with their capture"
        )
        if joined:
            by = "their names and order" if self.named == joined else "their order"
            text += f", by {by}"
        without = int((~self.shaped & (self.launch != NONE)).sum())
        if without:
            text += f"; {without:,} without FLOPs: captures with different shapes fit"
        if self.incomplete:
            lack = "replay lacks" if self.incomplete == 1 else "replays lack"
            text += f"; {self.incomplete:,} {lack} launches of the capture"
        if len(self.unused) == 1:
            text += f": launch {self.unused[0]} is in no replay"
        elif self.unused:
            text += (
                f": {len(self.unused):,} of them, the first launch {self.unused[0]}, are in none"
            )
        return "; ".join([text, *(f"{count:,} not: {why}" for why, count in self.reasons.items())])


NOT_CAPTURED = "no capture has these kernels in this order"
AMBIGUOUS = "several captures with different operators fit"
AGAINST = "matrix products of the capture and the replay differ"


def join_replays(trace: Trace, ledger: TimeLedger, capture: Trace) -> Joined:
    """Find the capture of each replay of the ledger's device.

    A capture fits a replay if it has the same number of pieces, of the same kinds in the same
    order, with the same names where known. If several fit, they must have the same operators, and
    the same operands if these count. Their modules are distinguished only if there are as many
    captures as replays. If none fits, a replay may lack launches of a capture with known names:
    recorders lose some, and a recording can begin or end inside a replay.
    """
    scopes = host_scopes(capture)
    captures = list(_captures(capture, scopes))
    of_device = trace.device.take(trace.device.device == ledger.device)
    call = launches_of(of_device, trace.host)
    is_replay = names_fit(trace.names, trace.host.name, lambda name: name.endswith("GraphLaunch"))
    replayed = np.flatnonzero(follow_flow(call, is_replay.astype(np.int64), 0) == 1)
    order = replayed[np.lexsort((of_device.start[replayed], call[replayed]))]
    launch, replay = (np.full(len(of_device), NONE) for _ in range(2))
    shaped = np.zeros(len(of_device), dtype=np.bool_)
    named, incomplete, reasons = 0, 0, defaultdict[str, int](int)
    used: set[int] = set()
    lacking: dict[int, list[int]] = {}
    groups: defaultdict[tuple[Node, ...], list[list[int]]] = defaultdict(list)
    pieces_of: defaultdict[int, list[int]] = defaultdict(list)
    for piece in order.tolist():
        pieces_of[int(call[piece])].append(piece)
    by_launch = sorted(pieces_of, key=lambda event: int(trace.host.start[event]))
    for number, event in enumerate(by_launch):
        pieces = pieces_of[event]
        replay[pieces] = number
        kinds, names = of_device.kind[pieces].tolist(), of_device.name[pieces].tolist()
        pairs = zip(kinds, names, strict=True)
        groups[tuple(Node(Kind(kind), trace.names[name]) for kind, name in pairs)].append(pieces)
    for nodes, members in groups.items():
        fitting = [capture for capture in captures if _fits(capture, nodes)]
        fitting = fitting or _parts(captures, nodes)
        count = len(nodes) * len(members)
        if why := _ambiguity(fitting, nodes, capture, scopes):
            reasons[why] += count
            continue
        # As many captures as replays: pair them in order. Else use the first for all.
        is_pair = len(fitting) == len(members) and not fitting[0].whole
        chosen = fitting if is_pair else [fitting[0]] * len(members)
        if whole := fitting[0].whole:
            incomplete += len(members)
            if len(fitting) == 1:
                lacking[whole[0]] = whole
        used.update(at for graph in chosen for at in graph.launches)
        first, *others = (_operators(graph, capture, scopes) for graph in fitting)
        for pieces, graph in zip(members, chosen, strict=True):
            launch[pieces] = graph.launches
            shaped[pieces] = all(other == first for other in others)
            named += sum(bool(node.name) or node.kind != Kind.KERNEL for node in graph.nodes)
    return Joined(
        capture=capture,
        scopes=scopes,
        launch=launch[ledger.work.call],
        replay=replay[ledger.work.call],
        named=named,
        shaped=shaped[ledger.work.call],
        reasons=dict(reasons),
        incomplete=incomplete,
        unused=[
            number
            for whole in lacking.values()
            for number, at in enumerate(whole, 1)
            if at not in used
        ],
    )


def _parts(captures: list[Capture], nodes: tuple[Node, ...]) -> list[Capture]:
    """Return the launches of the replay's kernels in the shortest captures that contain them in
    this order, taken as early and as late as possible."""
    longer = [
        capture
        for capture in captures
        if len(nodes) < len(capture.nodes) <= len(nodes) / MIN_CAPTURED_SHARE
        and all(node.name or node.kind != Kind.KERNEL for node in capture.nodes)
    ]
    parts: list[Capture] = []
    for capture in sorted(longer, key=lambda capture: len(capture.nodes)):
        if parts and len(capture.launches) > len(parts[0].whole):
            break
        early = _positions(capture.nodes, nodes)
        if early is not None:
            late = _positions(capture.nodes[::-1], nodes[::-1]) or []
            last = len(capture.nodes) - 1
            ways = (tuple(early), tuple(last - place for place in reversed(late)))
            for places in dict.fromkeys(ways):
                launches = [capture.launches[place] for place in places]
                parts.append(Capture(launches=launches, nodes=[*nodes], whole=capture.launches))
    return parts


def _positions(captured: list[Node], nodes: tuple[Node, ...]) -> list[int] | None:
    """Return where each node is first found after the one before it, or None."""
    positions: list[int] = []
    place, surplus = 0, len(captured) - len(nodes)
    for node in nodes:
        while place - len(positions) <= surplus and not _is_same(captured[place], node):
            place += 1
        if place - len(positions) > surplus:
            return None
        positions.append(place)
        place += 1
    return positions


def _is_same(own: Node, node: Node) -> bool:
    return own.kind == node.kind and own.name in ("", node.name)


def _fits(capture: Capture, nodes: tuple[Node, ...]) -> bool:
    return len(capture.nodes) == len(nodes) and all(
        _is_same(own, node) for own, node in zip(capture.nodes, nodes, strict=True)
    )


def _ambiguity(
    fitting: list[Capture], nodes: tuple[Node, ...], trace: Trace, scopes: Scopes
) -> str:
    if not fitting:
        return NOT_CAPTURED
    events = scopes.events
    first, *others = (_operators(capture, trace, scopes) for capture in fitting)
    names = [[name for name, _ in around] for around in first]
    if any([[name for name, _ in around] for around in other] != names for other in others):
        return AMBIGUOUS
    multiplies: dict[int, bool] = {}
    innermost = nearest(events.kind == Kind.OPERATOR, scopes.parent)
    for own, node, at in zip(fitting[0].nodes, nodes, fitting[0].launches, strict=True):
        inner = int(innermost[at])
        is_product = inner != NONE and classify_operator(trace.names[events.name[inner]]) == "gemm"
        if is_product and not own.name:
            fits = classify(node.name) in ("gemm", "other")  # of an unknown name nothing is said
            multiplies[inner] = multiplies.get(inner, False) or fits
    return "" if all(multiplies.values()) else AGAINST


def _operators(capture: Capture, trace: Trace, scopes: Scopes) -> list[list[tuple[str, bytes]]]:
    events, parent = scopes.events, scopes.parent
    result = []
    for at in capture.launches:
        around: list[tuple[str, bytes]] = []
        while (at := int(parent[at])) != NONE and len(around) < MAX_CHAIN_LENGTH:
            if events.kind[at] == Kind.OPERATOR:
                operands = events.operands[at]
                shapes = trace.operands[operands] if operands != NONE else b""
                around.append((trace.names[events.name[at]], shapes))
        result.append(around)
    return result


def _captures(trace: Trace, scopes: Scopes) -> Iterator[Capture]:
    """Return the captures of a trace in time order, without empty and unfinished ones."""
    events = scopes.events
    is_call = events.kind == Kind.RUNTIME
    begins, ends, launches = (
        np.flatnonzero(is_call & names_fit(trace.names, events.name, pattern.search))
        for pattern in (BEGIN_CAPTURE, END_CAPTURE, LAUNCH)
    )
    bounds = []
    for begin in begins.tolist():
        later = ends[np.searchsorted(ends, begin) :]
        # Events are by thread, then by start: the end of a capture is the next one of its thread.
        if len(later) and events.thread[later[0]] == events.thread[begin]:
            bounds.append((int(events.start[begin]), begin, int(later[0])))
    for _, begin, end in sorted(bounds):
        inside = launches[np.searchsorted(launches, begin) : np.searchsorted(launches, end)]
        # A driver's call inside a runtime's may have the same id: one launch.
        _, first = np.unique(events.correlation[inside], return_index=True)
        calls = inside[np.sort(first)].tolist()
        if calls:
            yield Capture(launches=calls, nodes=[_node(trace, scopes, call) for call in calls])


def _node(trace: Trace, scopes: Scopes, call: int) -> Node:
    name = trace.names[scopes.events.name[call]]
    if "Memcpy" in name:
        return Node(Kind.COPY, "")
    if "Memset" in name:
        return Node(Kind.FILL, "")
    kernel = trace.kernel_names.get(int(scopes.events.correlation[call]))
    return Node(Kind.KERNEL, "" if kernel is None else trace.names[kernel])


def with_captured(ledger: TimeLedger, joined: Joined) -> TimeLedger:
    """Return the ledger with operators and modules of the capture; times are unchanged.

    A piece without a phase gets that of its launch.
    """
    scopes, launch = joined.scopes, joined.launch
    is_joined = launch != NONE
    if not is_joined.any():
        return ledger
    names, operator = _append_names(
        ledger.names, joined.capture.names, follow_flow(launch, scopes.operator)
    )
    modules, module = _append_names(
        ledger.modules, scopes.modules, follow_flow(launch, scopes.module)
    )
    phases, phase = _append_names(ledger.phases, scopes.phases, follow_flow(launch, scopes.phase))
    of_none = np.array([name == OTHER_PHASE for name in ledger.phases])[ledger.work.phase]
    work = replace(
        ledger.work,
        operator=np.where(operator != NONE, operator, ledger.work.operator),
        module=np.where(module != NONE, module, ledger.work.module),
        phase=np.where(of_none & (phase != NONE), phase, ledger.work.phase),
    )
    return replace(ledger, names=names, modules=modules, phases=phases, work=work)


def _append_names(own: list[str], other: list[str], index: Index) -> tuple[list[str], Index]:
    names = list(own)
    number_of = {name: number for number, name in enumerate(names)}
    place = np.full(len(other) + 1, NONE)  # index -1 reads the last
    for used in np.unique(index[index != NONE]).tolist():
        number = number_of.setdefault(other[used], len(names))
        if number == len(names):
            names.append(other[used])
        place[used] = number
    return names, place[index]
